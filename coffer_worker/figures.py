"""How one upstream stands, in numbers: what heartbeat and title show.

Owns nothing but the sum. Never measures the process: the control thread does.
"""

from collections.abc import Sequence

from coffer_common.frames import UpstreamState
from coffer_worker.connections import Connections
from coffer_worker.control import Figures
from coffer_worker.core.relay import Relay


def of(
    state: UpstreamState, relay: Relay, connections: Connections, past: Sequence[int], pids: tuple[int, ...]
) -> Figures:
    """``past``: bytes in and out of connections that have ended. ``pids``: the upstream's processes."""
    oldest = relay.oldest()
    pipes = [c.pipe for c in connections.open.values() if c.pipe is not None]
    return Figures(
        state,
        relay.in_flight,
        relay.queued,
        # The loop's clock is the monotonic one.
        None if oldest is None else oldest.admitted,
        "" if oldest is None else oldest.key,
        len(connections.open),
        past[0] + sum(pipe.bytes_in for pipe in pipes),
        past[1] + sum(pipe.bytes_out for pipe in pipes),
        pids,
        connections.pool.projects(),
    )
