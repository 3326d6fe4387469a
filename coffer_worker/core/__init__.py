"""The worker's decisions, without any I/O: events and times in, what is to be done out.

``framing`` bytes to messages · ``splice`` raw JSON taken apart and joined · ``relay`` calls in flight and limits ·
``pool`` which connection serves whom · ``translate`` params in, results out · ``catalogue`` lists to entries ·
``bridge`` what crosses between eras · ``subscriptions`` who wants which resource · ``trouble`` failing sessions ·
``headers`` arguments repeated as headers · ``pace`` how often to read lists · ``sse`` event streams · ``http_rules``
what statuses, headers and redirects mean · ``verbosity`` log levels.
Nothing here imports asyncio, sockets, the clock or logging: time is passed in.
"""
