"""The one daemon process: store, endpoint, management API, router and supervision of the workers.

A call's way: ``endpoint`` -> ``router`` (``core.routing``) -> ``channel`` -> worker, and back the same way.
Never speaks MCP to an upstream, decodes a payload, or waits on a worker.

    app          makes and ends it all          core         decisions without I/O
    endpoint     clients, both eras             management   the REST API
    store        what is kept                   credentials  secrets; templates fills them in
    router       calls: pending (the table), sending, asking, subscribing, lists, scoping, recording, outcome
    supervision  wishes and views: workers (carries out the lifecycle), reports, upstream (the record), pulse
    channel      ZeroMQ                         forks        the fork server's client (forklink: its socket)
    daemon       what makes it the only one     sweep        what a crash left behind
"""
