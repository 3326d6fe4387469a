"""Sessions of legacy clients: who may use which, how long they live, what of theirs is open.

Owns the session table and its rules (bound to principal and endpoint, bounded in number, ended when idle). Pure:
time is passed in, ids are given. Never writes to a client, never cancels a call: it returns what is to be ended.
Source: MCP 2025-11-25, Lifecycle; Transports, Session Management.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from coffer_common import frames, protocol
from coffer_supervisor.core.calls import Principal, Scope

IDLE_SECONDS: Final = 1800.0
MAX_SESSIONS: Final = 10_000
# What a client may ask before it has said that it is initialized (anything else waits for its `initialize`).
BEFORE_INITIALIZE: Final = frozenset({"ping", "logging/setLevel"})
LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

Missing = Literal["unknown", "foreign"]


def id_key(raw: bytes) -> bytes:
    """One spelling for one JSON-RPC id, its type kept: ``1`` is not ``"1"``, ``"\\u00e9"`` is ``"é"``."""
    if b"\\" not in raw:
        return raw
    try:
        return msgspec.json.encode(msgspec.json.decode(raw))
    except msgspec.DecodeError:  # a lone surrogate: only its own spelling equals it
        return raw


@dataclass(slots=True)
class Session:
    """One legacy client's stay. ``calls``: its open requests by ``id_key``; ``asks``: open requests to the client,
    by the id we gave them. ``caller`` is None until ``initialize``. ``streams``: live GET streams it holds."""

    id: str
    principal: Principal
    scope: Scope
    wire: Literal["http", "shim"]
    last_used: float
    caller: frames.Caller | None = None
    client_name: str = ""
    cwd: str = ""
    initialized: bool = False
    log_level: str = ""
    streams: int = 0
    calls: dict[bytes, int] = field(default_factory=dict)
    asks: dict[bytes, int] = field(default_factory=dict)
    subscriptions: set[str] = field(default_factory=set)

    @property
    def revision(self) -> str:
        """The negotiated revision; empty before ``initialize``."""
        return "" if self.caller is None else self.caller.revision

    def initialize(self, asked: object, capabilities: bytes, client_info: bytes, name: str) -> frames.Caller:
        """The client's ``initialize``: fixes revision and capabilities for the session's life (the first one holds)."""
        if self.caller is None:
            self.client_name = name
            self.caller = frames.Caller(
                session=self.id,
                principal=self.principal.id,
                endpoint=self.scope.path,
                naming=self.scope.naming,
                revision=protocol.negotiated_legacy(asked),
                wire=self.wire,
                capabilities=capabilities,
                client_info=client_info,
                cwd=self.cwd,
            )
        return self.caller

    @property
    def busy(self) -> bool:
        """Whether something of it is open, so that silence is no idleness."""
        return self.streams > 0 or bool(self.calls)


class SessionTable:
    """The sessions of all legacy HTTP clients, least recently used first."""

    def __init__(self, *, idle_seconds: float = IDLE_SECONDS, limit: int = MAX_SESSIONS) -> None:
        self._idle, self._limit = idle_seconds, limit
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def all(self) -> list[Session]:
        """Every session."""
        return list(self._sessions.values())

    def get(self, session_id: str) -> Session | None:
        """The session of that id, whoever it belongs to."""
        return self._sessions.get(session_id)

    def open(self, session_id: str, principal: Principal, scope: Scope, now: float) -> tuple[Session, list[Session]]:
        """A new session, and those that had to give way to it (the longest unused; idle ones before busy ones)."""
        evicted: list[Session] = []
        while len(self._sessions) >= self._limit:
            victim = next((s for s in self._sessions.values() if not s.busy), None)
            victim = victim or next(iter(self._sessions.values()))
            evicted.append(self._sessions.pop(victim.id))
        session = Session(session_id, principal, scope, "http", now)
        self._sessions[session_id] = session
        return session, evicted

    def use(self, session_id: str, principal: Principal, scope: Scope, now: float) -> Session | Missing:
        """The session for a request of ``principal`` at ``scope``; ``foreign`` where it is bound to another."""
        session = self._sessions.get(session_id)
        if session is None:
            return "unknown"
        if session.principal.id != principal.id or session.scope.path != scope.path:
            return "foreign"
        session.last_used = now
        self._sessions.move_to_end(session_id)
        return session

    def close(self, session_id: str) -> Session | None:
        """Takes it out of the table."""
        return self._sessions.pop(session_id, None)

    def expire(self, now: float) -> list[Session]:
        """Takes out and returns the sessions that have been idle too long."""
        ended = [s for s in self._sessions.values() if not s.busy and now - s.last_used >= self._idle]
        for session in ended:
            del self._sessions[session.id]
        return ended
