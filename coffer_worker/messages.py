"""The upstream's log messages, on their way to clients of the pass-through endpoint.

Owns which sessions may see them, and whose a message certainly is. Never writes the log itself: that keeps all.
"""

from coffer_common import frames
from coffer_worker.calls import Outlet
from coffer_worker.connections import Connections
from coffer_worker.core import translate
from coffer_worker.core.pool import SHARED, SPARE
from coffer_worker.core.relay import Relay
from coffer_worker.upstream.connection import Connection


class Messages:
    """Those of one upstream."""

    def __init__(self, relay: Relay, connections: Connections, outlet: Outlet) -> None:
        self._relay, self._connections, self._outlet = relay, connections, outlet
        self._sessions: set[str] = set()

    def welcome(self, session: str) -> None:
        """A session of the pass-through endpoint: it may see messages."""
        self._sessions.add(session)

    def close_session(self, session: str) -> None:
        """It has ended."""
        self._sessions.discard(session)

    def pass_on(self, connection: Connection, params: bytes) -> None:
        """Send one to the only session that it can belong to; where that is not certain, to nobody."""
        member = self._connections.pool.members.get(connection.number)
        if member is None:
            return
        candidates = self._relay.of_connection(connection.number)
        if connection.related is not None:
            candidates = [flight for flight in candidates if flight.id == connection.related]
        sessions = {flight.caller.session for flight in candidates}
        if member.key.session not in (SPARE, SHARED):
            sessions = {member.key.session}
        if len(sessions) != 1 or not sessions <= self._sessions:
            return
        payload = translate.notification_params(params)
        corr = candidates[0].corr if len(candidates) == 1 else 0
        to = () if corr else tuple(sessions)
        self._outlet.send(frames.Notify("notifications/message", corr, to), payload)
