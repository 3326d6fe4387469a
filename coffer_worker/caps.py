"""Watches what an upstream takes of the machine, and ends what takes too much.

Owns the clock of that watch. ``process.usage`` measures, ``core.caps`` decides.
"""

import asyncio
from typing import Final

from coffer_common.resources import Limits
from coffer_worker.connections import Connections
from coffer_worker.core import caps
from coffer_worker.process import usage
from coffer_worker.upstream.stdio import StdioPipe

LOOK_SECONDS: Final = 0.5


async def watch(server: str, limits: Limits, connections: Connections) -> None:
    """Look until cancelled; returns at once where there is no cap."""
    if not caps.wanted(limits):
        return
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        pipes = {c.number: c.pipe for c in connections.open.values() if isinstance(c.pipe, StdioPipe)}
        pids = {number: pipe.pids[0] for number, pipe in pipes.items() if pipe.pids}
        if not pids:
            continue
        found = caps.excess(server, limits, await asyncio.to_thread(usage.measure, pids))
        if found is not None:
            pipes[found.number].fail(found.reason, found.message)
