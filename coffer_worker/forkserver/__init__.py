"""The fork server: the small process that forks workers.

``python -P -m coffer_worker.forkserver`` imports what a worker needs once (``preload``), freezes the
garbage collector and then forks on command (``server``), so that a worker costs milliseconds and shares
its pages. ``core`` decides what a reaped or adopted child means; ``child`` is what a fresh fork does
before it becomes a worker. It never runs a thread, an event loop or a ZeroMQ context, never reads
configuration or secrets, and never outlives the supervisor's end of its socket.
"""
