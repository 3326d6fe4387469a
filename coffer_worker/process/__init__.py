"""The processes of one worker: starting an upstream, watching it, ending it with all it started.

``environ`` decides what an upstream inherits and where its command is, ``family`` which processes belong
to it; ``child`` is one running process and its pipes, ``spawn`` starts them and keeps the roster,
``records`` leaves the trace that survives a crash, ``tree`` shows them to an operator. Bytes only: what
they mean is the upstream room's business.
"""
