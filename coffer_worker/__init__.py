"""The process that speaks MCP to one upstream, and the fork server that makes such processes.

A call's way: ``link`` -> ``core.relay`` -> ``core.translate`` -> ``upstream``, and back the same way.
Never sees a database, another upstream, or a client's token.
"""
