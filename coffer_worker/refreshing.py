"""Requests of the supervisor to read an upstream's lists again, from their frame to their one answer.

Owns which of them wait, and for which era's connection. Never reads a list itself (``lists`` does), never decides
when a connection is opened.
"""

from coffer_common import errors, frames
from coffer_common.frames import State
from coffer_worker.connections import Connections
from coffer_worker.lists import Lists
from coffer_worker.outlet import Outlet
from coffer_worker.upstream.connection import Connection

# How an upstream is when a refresh cannot come to anything; the state's message says why.
_DOWN = ("backoff", "failed", "needs_login")


class Refreshing:
    """The refreshes of one upstream."""

    def __init__(self, server: str, connections: Connections, lists: Lists, outlet: Outlet) -> None:
        self._server = server
        self._connections = connections
        self._lists = lists
        self._outlet = outlet
        self._waiting: list[frames.Refresh] = []

    def ask(self, frame: frames.Refresh, state: State) -> None:
        """A Refresh frame, while the upstream is in ``state``: answered once its lists have been read."""
        pool = self._connections.pool
        era = frame.era or pool.era
        if state.state in _DOWN:
            self._fail(frame.corr, state.message)
        elif era == "legacy" and pool.legacy_side is False:
            self._fail(frame.corr, f"Upstream {self._server!r} has no legacy side")
        else:
            self._waiting.append(frame)
            if not era:
                return  # discovery is under way, and ends in a reading
            connection = self._lists.primary.get(era)
            if connection is not None:
                self.again(connection)
            elif era == pool.era:
                self._connections.discover()
            else:
                self._connections.open_for(era)

    def again(self, connection: Connection) -> None:
        """Read the lists of that connection."""
        self._connections.spawn(self._read(connection))

    def state_changed(self, state: State) -> None:
        """An upstream that went down reads no lists: those that wait are told."""
        if state.state in _DOWN:
            failed, self._waiting = self._waiting, []
            for frame in failed:
                self._fail(frame.corr, state.message)

    async def _read(self, connection: Connection) -> None:
        # Only those that wait by now: one that comes while the lists are read is answered by the next reading.
        era, usual = connection.hop.era, self._connections.pool.era
        asked = [frame for frame in self._waiting if (frame.era or usual) == era]
        await self._lists.read(connection)
        if connection.gone is not None:
            return
        for frame in asked:
            if frame in self._waiting:
                self._waiting.remove(frame)
                self._outlet.send(frames.Reply(frame.corr), b"{}")

    def _fail(self, corr: int, message: str) -> None:
        reason = errors.UPSTREAM_FAILED
        error = errors.error_object(reason, message, server=self._server, era="legacy")
        self._outlet.send(frames.Fail(corr, reason.code_for("legacy"), message, reason.name, reason.status), error)
