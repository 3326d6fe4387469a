"""The one daemon process: store, endpoint, management API, router and supervision of the workers.

A call's way: ``endpoint`` -> ``router`` (``core.routing``) -> ``channel`` -> worker, and back the same way.
Never speaks MCP to an upstream, decodes a payload, or waits on a worker.
"""
