"""The words that endpoint and router share: who calls, at which endpoint, what for, how an answer comes back.

Owns the types of that seam and nothing else. Never decodes a payload, never touches a socket or a clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from coffer_common import errors, frames, protocol
from coffer_supervisor.core.pieces import Buffer

LOCAL_PRINCIPAL: Final = "local"
DAEMON_PRINCIPAL: Final = "daemon"
CLIENT_PREFIX: Final = "client:"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls. ``id``: ``local`` (over a socket), ``daemon`` (its token over TCP) or ``client:NAME``;
    ``name`` is what the invocation log shows where the client gave no name. ``servers``, ``groups``: its
    scope; None is all.
    """

    id: str
    name: str
    servers: frozenset[str] | None = None
    groups: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """Which endpoint: ``/mcp`` (neither member set), ``/servers/NAME/mcp`` or ``/groups/NAME/mcp``."""

    path: str
    server: str | None = None
    group: str | None = None

    @property
    def naming(self) -> frames.Naming:
        """``raw`` on a pass-through endpoint, where nothing is renamed."""
        return "prefixed" if self.server is None else "raw"


@dataclass(slots=True)
class CallRequest:
    """One request that an upstream answers: ``tools/call``, ``prompts/get``, ``resources/read``,
    ``completion/complete``. ``params`` is the raw JSON object (``b"{}"`` where absent); ``headers`` holds the
    ``mcp-param-*`` headers only, in lower case; ``client_name`` is empty where the client gave none. ``outline``:
    params without large values, enough to tell what is called; empty where it is not known, and params do.
    """

    caller: frames.Caller
    principal: Principal
    scope: Scope
    method: str
    params: bytes
    headers: dict[str, str] = field(default_factory=dict)
    log_level: str = ""
    trace_id: str = ""
    client_name: str = ""
    outline: bytes = b""

    @property
    def shown_client(self) -> str:
        """Who calls, for logs and operators: the identity where there is one, else what the client calls itself."""
        if self.principal.id.startswith(CLIENT_PREFIX):
            return self.principal.name
        return self.client_name or self.principal.name


@dataclass(frozen=True, slots=True)
class Failure:
    """An error for the client: ``error`` is the raw JSON error object, ``status`` that of a modern HTTP
    answer. ``reason`` names one of ``coffer_common.errors``; it is empty for an upstream's own error."""

    code: int
    error: bytes
    status: int
    reason: str
    message: str


class CallError(Exception):
    """A request that got no answer but a Failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class CallSink(Protocol):
    """Where one call's answer goes. Called on the loop; never blocks, never raises. Payloads are raw JSON,
    params and results in the shape of the client's revision. Exactly one of ``reply`` and ``fail`` comes, last."""

    def progress(self, params: bytes) -> None:
        """Params of ``notifications/progress`` with the client's own token."""

    def notify(self, method: str, params: bytes) -> None:
        """A notification that belongs to this call's stream."""

    def pause(self) -> None:
        """The upstream closed the event stream of this call and will go on with it later: where the client can take up
        a stream again, its own may end now."""

    def ask(self, ask: int, method: str, params: bytes) -> None:
        """An upstream's request to the client; ``Router.answer`` takes the answer under the same number."""

    def withdraw(self, ask: int, reason: str) -> None:
        """The upstream cancelled that ask."""

    def release(self, ask: int) -> None:
        """That ask is another call's of the same session now: it outlives this call."""

    def adopt(self, ask: int) -> None:
        """An ask that the client was shown on another call of the session is this one's now."""

    def reply(self, result: Buffer) -> None:
        """The result; a large one is not copied, and lives where it was received."""

    def fail(self, failure: Failure) -> None:
        """The error."""


class NoticeSink(Protocol):
    """Who hears what belongs to no call. Called on the loop; never blocks, never raises."""

    def lists_changed(self, server: str, kinds: frozenset[str], session: str = "") -> None:
        """Lists of ``server`` changed; ``kinds`` of ``tools``, ``resources``, ``prompts``. ``session``: only as that
        legacy session sees them."""

    def resource_updated(self, server: str, subscribers: tuple[str, ...], uri: str) -> None:
        """``uri`` is the upstream's own; empty ``subscribers`` means every subscriber of that server's."""

    def session_notice(self, server: str, sessions: tuple[str, ...], method: str, params: bytes) -> None:
        """A notification for these sessions (empty: all) on the pass-through endpoint of ``server``."""

    def session_ask(self, session: str, ask: int, method: str, params: bytes) -> bool:
        """An upstream's request that belongs to a legacy session but to no call of its; False where the session
        cannot be asked now."""

    def session_withdraw(self, session: str, ask: int) -> None:
        """The upstream took such a request back."""


class Nobody:
    """A ``NoticeSink`` while nobody listens yet."""

    def lists_changed(self, server: str, kinds: frozenset[str], session: str = "") -> None:
        """Nobody hears it."""

    def resource_updated(self, server: str, subscribers: tuple[str, ...], uri: str) -> None:
        """Nobody hears it."""

    def session_notice(self, server: str, sessions: tuple[str, ...], method: str, params: bytes) -> None:
        """Nobody hears it."""

    def session_ask(self, session: str, ask: int, method: str, params: bytes) -> bool:
        """Nobody can be asked."""
        return False

    def session_withdraw(self, session: str, ask: int) -> None:
        """Nobody was asked."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What an endpoint says it is: raw JSON objects in the shape of the client's era, and a text."""

    server_info: bytes
    capabilities: bytes
    instructions: str


def failure(
    reason: errors.Reason,
    message: str,
    era: protocol.Era,
    *,
    server: str | None = None,
    data: Mapping[str, Any] | None = None,
) -> Failure:
    """One of Coffer's own errors on a wire of ``era``."""
    error = errors.error_object(reason, message, server=server, era=era, data=dict(data) if data else None)
    return Failure(reason.code_for(era), error, reason.status, reason.name, message)


def passed_failure(code: int, error: bytes, message: str, reason: str, status: int) -> Failure:
    """An error that a worker sent, as it stands; an empty ``error`` is made of code and message."""
    body = error or msgspec.json.encode({"code": code, "message": message})
    return Failure(code, body, status, reason, message)
