"""The table of pairings: every kind of exchange, for each era and transport of client and upstream.

`stage` builds the daemon, its upstreams, the clients and the bystanders; `features` has one real exchange a kind;
`run` goes through the table; `page` writes it down as docs/matrix.md. `make matrix` does all of it.
"""
