"""The management API ``/api/v1``.

    http      aiohttp's side: routing, bodies, errors       routes       the flat table
    request   what handlers get and give                    errors       refusals and their statuses
    resources every kind's create, read, update, delete     servers      what only an mcp_server has
    register  the checks before a server is written         secrets      what looks like one
    ps, logs, daemon, credentials, views                    the rest, a noun each

Owns the management operations' words and order of steps. Never speaks MCP and never touches a worker: it asks the
store, the supervision and the router.
"""
