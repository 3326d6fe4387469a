"""The upstream's log messages: how much it logs, and which of it reaches clients of the pass-through endpoint.

Owns the level that each session wants, the level that a legacy upstream is told, and whose a message certainly is.
Never writes the log itself: that keeps all.
Source: MCP 2025-11-25, Logging; MCP 2026-07-28, Logging (a request without a level gets no message).
"""

from coffer_common import frames
from coffer_worker.connections import Connections
from coffer_worker.core import splice, translate, verbosity
from coffer_worker.core.pool import SHARED, SPARE
from coffer_worker.core.relay import Flight, Relay
from coffer_worker.outlet import Outlet
from coffer_worker.upstream.connection import Connection, ignored


class Messages:
    """Those of one upstream."""

    def __init__(self, relay: Relay, connections: Connections, outlet: Outlet) -> None:
        self._relay, self._connections, self._outlet = relay, connections, outlet
        self._sessions: dict[str, frames.Caller] = {}
        self._levels: dict[str, str] = {}

    def welcome(self, caller: frames.Caller) -> None:
        """A client of the pass-through endpoint: it may see messages."""
        self._sessions[caller.session] = caller

    def close_session(self, session: str) -> None:
        """It has ended."""
        self._sessions.pop(session, None)
        self._levels.pop(session, None)

    # ---- how much is logged

    def level(self, flight: Flight) -> str:
        """The level that a call wants: its own, or its session's; empty for none."""
        return flight.log_level or self._levels.get(flight.caller.session, "")

    def set_level(self, session: str, level: str) -> None:
        """What a session wants to hear from now on; its connection is told now, or with its first call."""
        self._levels[session] = level
        for member in self._connections.pool.of_session(session):
            connection = self._connections.open.get(member.number)
            if connection is not None and connection.hop.era == "legacy":
                self.have_level(connection, level, shared=False)

    def have_level(self, connection: Connection, level: str, *, shared: bool) -> None:
        """Have a legacy upstream log at ``level``; where others may want more (``shared``), it keeps to the most."""
        if verbosity.changes(connection.log_level, level, shared=shared) and _logs(connection):
            connection.log_level = level
            params = connection.hop.params(level=b'"%b"' % level.encode())
            connection.request(self._relay.number(), "logging/setLevel", params, ignored, None)

    # ---- who sees it

    def pass_on(self, connection: Connection, params: bytes) -> None:
        """Send one to the only client that it can belong to; where that is not certain, to nobody."""
        member = self._connections.pool.members.get(connection.number)
        if member is None:
            return
        candidates = self._relay.of_connection(connection.number)
        if connection.related is not None:
            candidates = [flight for flight in candidates if flight.id == connection.related]
        sessions = {flight.caller.session for flight in candidates}
        own = member.key.session not in (SPARE, SHARED)
        if own:
            sessions = {member.key.session}
        if len(sessions) != 1 or not sessions <= self._sessions.keys():
            return
        session = sessions.pop()
        only = candidates[0] if len(candidates) == 1 else None
        caller = self._sessions[session] if only is None else only.caller
        if caller.era == "modern":
            # Only a request that asked for messages gets any, and no listen stream does.
            if only is None or not verbosity.passes(params, only.log_level):
                return
        elif not (own and connection.hop.era == "legacy"):
            wanted = self._levels.get(session, "") if only is None else self.level(only)
            if wanted and not verbosity.passes(params, wanted):
                return
        to = () if only is not None else (session,)
        frame = frames.Notify("notifications/message", 0 if only is None else only.corr, to)
        self._outlet.send(frame, translate.notification_params(params))
        connection.passed_on()


def _logs(connection: Connection) -> bool:
    return splice.is_object(splice.members(connection.capabilities).get("logging"))
