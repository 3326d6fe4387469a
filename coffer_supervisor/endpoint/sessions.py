"""The live side of legacy HTTP sessions: their streams, their expiry, their end.

Owns what a ``core.session.Session`` cannot hold: outboxes, and the announcement to router and notices. Never reads a
request.
Source: MCP 2025-11-25, Transports, Session Management; Listening for Messages from the Server.
"""

import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from coffer_supervisor.core.calls import Principal, Scope
from coffer_supervisor.core.messages import ReplayLogs
from coffer_supervisor.core.session import Session, SessionTable
from coffer_supervisor.core.subscriptions import KINDS
from coffer_supervisor.endpoint.notices import Hearer, Notices
from coffer_supervisor.endpoint.streams import Outbox

if TYPE_CHECKING:
    from coffer_supervisor.router import Router


class Live:
    """A session with its streams. ``outbox`` is the standing one (GET), ``name`` its name in event ids."""

    __slots__ = ("logs", "name", "outbox", "session")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.logs: ReplayLogs[Outbox] = ReplayLogs()
        self.outbox = Outbox(expected=0)
        self.name = self.logs.add(self.outbox)


class Sessions:
    """All sessions of legacy HTTP clients. ``end_calls(session, reason)`` is told first when one ends."""

    def __init__(self, router: "Router", notices: Notices, table: SessionTable | None = None) -> None:
        self._router, self._notices = router, notices
        self._table = SessionTable() if table is None else table
        self._live: dict[str, Live] = {}
        self.end_calls: Callable[[Session, str], None] = lambda session, reason: None

    def __len__(self) -> int:
        return len(self._table)

    def open(self, principal: Principal, scope: Scope) -> Live:
        """A new session; the longest unused gives way where there are too many."""
        session, evicted = self._table.open(secrets.token_urlsafe(24), principal, scope, time.monotonic())
        for other in evicted:
            self._ended(other, "too many sessions")
        live = self._live[session.id] = Live(session)
        hearer = Hearer(
            id=session.id,
            principal=principal,
            scope=scope,
            deliver=live.outbox.append,
            ready=lambda: session.initialized and session.streams > 0,
            kinds=frozenset(KINDS),
            uris=session.subscriptions,
            asks=session.asks,
        )
        self._notices.add(hearer)
        return live

    def use(self, session_id: str, principal: Principal, scope: Scope) -> Live | None:
        """The session for a request; None for one that is not there, or not this principal's at this endpoint."""
        session = self._table.use(session_id, principal, scope, time.monotonic())
        return self._live[session.id] if isinstance(session, Session) else None

    def close(self, session_id: str, reason: str) -> None:
        """Ends one."""
        session = self._table.close(session_id)
        if session is not None:
            self._ended(session, reason)

    def expire(self) -> None:
        """Ends those that have been idle too long."""
        for session in self._table.expire(time.monotonic()):
            self._ended(session, "the session was idle too long")

    def close_of(self, principal_id: str, reason: str) -> None:
        """Ends every one of a principal's."""
        for session in self._table.all():
            if session.principal.id == principal_id:
                self.close(session.id, reason)

    def close_all(self, reason: str) -> None:
        """Ends every one."""
        for session in self._table.all():
            self.close(session.id, reason)

    def ready(self, live: Live) -> None:
        """It may have become possible to tell this session something."""
        if live.session.initialized and live.session.streams > 0:
            self._notices.released(live.session.id)

    def attached(self, live: Live, *, standing: bool) -> None:
        """A GET stream is there."""
        if standing:
            live.session.streams += 1
            self.ready(live)

    def detached(self, live: Live, *, standing: bool) -> None:
        """It is gone; from now on the session may be idle."""
        if standing:
            live.session.streams -= 1
            live.session.last_used = time.monotonic()

    def _ended(self, session: Session, reason: str) -> None:
        live = self._live.pop(session.id)
        self._notices.remove(session.id)
        self.end_calls(session, reason)
        self._router.close_session(session.id, reason)
        live.outbox.end()
