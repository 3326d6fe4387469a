"""Decisions of the supervisor, sans I/O: events and the time go in, what is to be done comes out.

    calls           the words of endpoint and router    routing         which upstream, under which name
    catalogue       lists: curated, joined, in pages    cursors         where a page ended
    uritemplate     whether a URI fits a template       instructions    what a client's model is told
    lifecycle       one worker's life as a table        lifecycle_words its events and effects
    liveness        who is to be replaced               gate            what a call meets: open, hold, refuse
    deadlines       many that are rarely reached        session         sessions of legacy clients
    subscriptions   who hears of which change           envelope        what a modern request says of itself
    messages        one stream's messages, for replay

Never imports asyncio, a socket, a clock or a logger.
"""
