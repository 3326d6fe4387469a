"""The room where the worker speaks to its upstream.

``pipe`` the seam every transport implements · ``stdio`` a child process · ``connection`` requests and answers on one
pipe · ``negotiate`` which era and revision · ``dispatch`` the same connection behind the SDK's own seam.
Over HTTP: ``http`` one connection, its session and its end · ``http_exchange`` one message and its answer ·
``http_streams`` standing streams · ``http_wire`` what they share · ``http_client`` the library behind all that ·
``http_pool`` its sockets.
"""
