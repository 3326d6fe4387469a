"""The MCP endpoint: HTTP in both eras, the shim's socket, and who may enter.

``server`` owns the sockets and the routes; ``security`` the door; ``http`` a request's way to its era; ``legacy`` and
``modern`` the two faces over HTTP; ``shim_socket`` both faces on one connection; ``methods`` what is the same on all;
``streams`` response streams; ``notices`` what belongs to no call. Rules live in ``coffer_supervisor.core``.
"""
