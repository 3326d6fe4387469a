"""The official MCP conformance suite as an outside judge: `make conformance`.

`install` brings the suite and a Node that can run it, `suite` runs it and reads its checks, `compare` holds a run
through Coffer against a direct one, `gateway` is the daemon under test, `driver` and `client` are what the suite's
client side starts, `logins` the person who logs in there, `__main__` runs everything and prints what was kept.
"""
