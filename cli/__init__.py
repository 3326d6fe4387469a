"""The ``coffer`` command line and the ``coffer-shim`` (imported as ``coffer_cli``).

Owns what a person types and sees. Never touches the store or an upstream: all goes through the daemon's sockets.
"""
