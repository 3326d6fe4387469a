"""The process that speaks MCP to one upstream, and the fork server that makes such processes.

A call's way: ``link`` -> ``core.relay`` -> ``core.translate`` -> ``upstream``, and back the same way.
Never sees a database, another upstream, or a client's token.

    forkserver    forks workers                        link          the two sockets to the supervisor
    runner        one upstream, whole                  control       beats, title, stacks: a thread of its own
    connections   opened, kept, tried again            waiting       who waits for one
    transports    ways to an upstream                  process       children, trees, records
    calls         in flight                            asking        upstreams' asks; parking: calls that wait for them
    lists         what is offered; refreshing: read    subscribing   who hears of which resource;
                  again when asked                                   agreed: what an upstream declares about it
    rounds        input requests put to legacy         outlet        the shape of the way out
                  clients                              stacks        tasks and threads, as text
    messages      log messages to clients              log           the upstream's log file
    logins        OAuth, carried out; keeping: its secrets           caps: what an upstream may take
    discretion    secrets out of what leaves           dump, figures how things stand
    upstream      MCP itself: pipes and negotiation    core          decisions without I/O
"""
