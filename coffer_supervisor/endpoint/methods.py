"""The methods of an MCP server, the same over HTTP and over the shim's socket.

Owns what Coffer answers by itself (handshake, discovery, ping, log level, subscriptions) and the shape of those
results in either era; lists and calls are asked of the router. Never touches a socket.
Source: MCP 2025-11-25, Lifecycle, Utilities; MCP 2026-07-28, Discovery, Versioning, Caching.
"""

import itertools
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from coffer_common import errors, frames, jsonrpc, protocol
from coffer_supervisor.core import tracing
from coffer_supervisor.core.calls import CallError, CallRequest, Identity, Principal, Scope, failure
from coffer_supervisor.core.envelope import Modern, client_name
from coffer_supervisor.core.session import BEFORE_INITIALIZE, LOG_LEVELS, Session

if TYPE_CHECKING:
    from coffer_supervisor.router import Router

Kind = Literal["tool", "resource", "template", "prompt"]

CALLS: Final = frozenset({"tools/call", "prompts/get", "resources/read", "completion/complete"})
LISTS: Final[dict[str, Kind]] = {
    "tools/list": "tool",
    "resources/list": "resource",
    "resources/templates/list": "template",
    "prompts/list": "prompt",
}
LISTEN: Final = "subscriptions/listen"
MODERN_METHODS: Final = CALLS | frozenset(LISTS) | {"server/discover", LISTEN}

_EMPTY: Final = b"{}"
# What an upstream declares is shown where both hops can keep it; tasks cannot be bridged.
_SHOWN: Final = ("tools", "resources", "prompts", "completions", "logging", "experimental", "extensions")


class _Initialize(msgspec.Struct, rename="camel"):
    protocol_version: Any = None
    capabilities: msgspec.Raw = msgspec.Raw(_EMPTY)
    client_info: msgspec.Raw = msgspec.Raw(_EMPTY)


class _Level(msgspec.Struct):
    level: str


class _Uri(msgspec.Struct):
    uri: str


class _Cursor(msgspec.Struct):
    cursor: str | None = None


class _Cancelled(msgspec.Struct, rename="camel"):
    request_id: msgspec.Raw = msgspec.Raw(b"")
    reason: Any = None


_decode_initialize: Final = msgspec.json.Decoder(_Initialize).decode
_decode_level: Final = msgspec.json.Decoder(_Level).decode
_decode_uri: Final = msgspec.json.Decoder(_Uri).decode
_decode_cursor: Final = msgspec.json.Decoder(_Cursor).decode
_decode_cancelled: Final = msgspec.json.Decoder(_Cancelled).decode


def refused(reason: errors.Reason, message: str, era: protocol.Era) -> CallError:
    """One of Coffer's own errors, to be raised."""
    return CallError(failure(reason, message, era))


def cancelled_id(params: bytes) -> tuple[bytes, str]:
    """(raw request id, reason) of ``notifications/cancelled``; an empty id where it names none."""
    try:
        view = jsonrpc.read(params, _decode_cancelled)
    except msgspec.DecodeError:
        return b"", ""
    return bytes(view.request_id), view.reason[:200] if isinstance(view.reason, str) else ""


@dataclass(frozen=True, slots=True)
class Client:
    """Who asks, and where."""

    caller: frames.Caller
    principal: Principal
    scope: Scope


class Methods:
    """What both faces need to answer a request. One per endpoint."""

    def __init__(self, router: "Router") -> None:
        self.router = router
        self._trace = itertools.count(1)
        self._run = secrets.token_hex(4)

    # ---- handshake and discovery

    @staticmethod
    def begin(session: Session, params: bytes) -> None:
        """Takes ``initialize``'s params: from here on the session is fixed; what follows may overtake the answer."""
        try:
            asked = jsonrpc.read(params or _EMPTY, _decode_initialize)
        except msgspec.DecodeError:
            asked = _Initialize()
        capabilities, info = _object(asked.capabilities), _object(asked.client_info)
        session.initialize(asked.protocol_version, capabilities, info, client_name(info))

    async def initialize(self, session: Session) -> bytes:
        """The ``initialize`` result of a session that has begun.

        Raises CallError where the endpoint's upstream cannot be started.
        """
        if session.caller is not None:
            self.router.met(session.caller)
        identity = await self.router.identity(session.scope, "legacy", session.principal)
        result: dict[str, Any] = {
            "protocolVersion": session.revision,
            "capabilities": shown_capabilities(identity, session.scope),
            "serverInfo": msgspec.Raw(identity.server_info),
        }
        if identity.instructions:
            result["instructions"] = identity.instructions
        return msgspec.json.encode(result)

    async def discover(self, client: Client) -> bytes:
        """The ``server/discover`` result. Raises CallError as ``initialize`` does."""
        scope = client.scope
        self.router.met(client.caller)
        identity = await self.router.identity(scope, "modern", client.principal)
        result: dict[str, Any] = {
            "resultType": "complete",
            "supportedVersions": list(protocol.MODERN_REVISIONS),
            "capabilities": shown_capabilities(identity, scope),
        }
        if identity.instructions:
            result["instructions"] = identity.instructions
        result |= {
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {protocol.META_SERVER_INFO: msgspec.Raw(identity.server_info)},
        }
        return msgspec.json.encode(result)

    # ---- requests that are no calls

    async def legacy(self, session: Session, method: str, params: bytes) -> bytes:
        """The result of a legacy request other than a call or ``initialize``. Raises CallError."""
        caller = session.caller
        if caller is None and method not in BEFORE_INITIALIZE:
            raise refused(errors.INVALID_REQUEST, f"{method} before initialize: send initialize first", "legacy")
        if method == "ping":
            return _EMPTY
        if method == "logging/setLevel":
            return self._set_level(session, params)
        if caller is not None and method in LISTS:
            return await self._list(Client(caller, session.principal, session.scope), method, params)
        if caller is not None and method == "resources/subscribe":
            uri = _uri(params, method)
            await self.router.subscribe(caller, session.principal, session.scope, session.id, uri)
            session.subscriptions.add(uri)
            return _EMPTY
        if method == "resources/unsubscribe":
            uri = _uri(params, method)
            session.subscriptions.discard(uri)
            self.router.unsubscribe(session.id, uri)
            return _EMPTY
        raise refused(errors.METHOD_NOT_FOUND, f"Method not found: {method[:128]}", "legacy")

    async def modern(self, client: Client, method: str, params: bytes) -> bytes:
        """The result of a modern request other than a call or a listen. Raises CallError."""
        if method == "server/discover":
            return await self.discover(client)
        if method in LISTS:
            return await self._list(client, method, params)
        raise refused(errors.METHOD_NOT_FOUND, f"Method not found: {method[:128]}", "modern")

    async def _list(self, client: Client, method: str, params: bytes) -> bytes:
        caller = client.caller
        try:
            cursor = jsonrpc.read(params or _EMPTY, _decode_cursor).cursor
        except msgspec.DecodeError:
            raise refused(errors.INVALID_PARAMS, f"{method}: cursor must be a string", caller.era) from None
        return await self.router.list_page(caller, client.principal, client.scope, LISTS[method], cursor)

    def _set_level(self, session: Session, params: bytes) -> bytes:
        try:
            level = jsonrpc.read(params or _EMPTY, _decode_level).level
        except msgspec.DecodeError:
            level = ""
        if level not in LOG_LEVELS:
            message = f"level must be one of {', '.join(LOG_LEVELS)}"
            raise refused(errors.INVALID_PARAMS, message, "legacy")
        session.log_level = level
        if session.caller is not None and session.scope.server is not None:
            self.router.set_level(session.caller, session.scope, level)
        return _EMPTY

    # ---- calls

    def legacy_call(
        self, session: Session, method: str, params: bytes, traceparent: str = "", *, outline: bytes = b""
    ) -> CallRequest:
        """A call of a legacy session; ``traceparent`` is its HTTP header. Raises CallError before ``initialize``."""
        if session.caller is None:
            raise refused(errors.INVALID_REQUEST, f"{method} before initialize: send initialize first", "legacy")
        params, trace = tracing.traced(params, traceparent, outline)
        return CallRequest(
            session.caller,
            session.principal,
            session.scope,
            method,
            params or _EMPTY,
            {},
            session.log_level,
            trace or self.trace_id(),
            session.client_name,
            outline,
        )

    def modern_call(
        self,
        client: Client,
        method: str,
        params: bytes,
        envelope: Modern,
        headers: dict[str, str],
        *,
        traceparent: str = "",
        outline: bytes = b"",
    ) -> CallRequest:
        """A call of a modern client; ``headers`` are its ``mcp-param-*``, ``traceparent`` that one of its headers."""
        self.router.met(client.caller)
        params, trace = tracing.traced(params, traceparent, outline)
        return CallRequest(
            client.caller,
            client.principal,
            client.scope,
            method,
            params,
            headers,
            envelope.log_level,
            trace or self.trace_id(),
            envelope.client_name,
            outline,
        )

    def trace_id(self) -> str:
        """Unique in this daemon's life and, by its run part, beyond it."""
        return f"{self._run}{next(self._trace):08x}"


def modern_client(
    envelope: Modern,
    session: str,
    principal: Principal,
    scope: Scope,
    wire: Literal["http", "shim"],
    *,
    cwd: str = "",
) -> Client:
    """Who asks with a modern request; ``session`` is what stands for its session, ``cwd`` where its shim runs."""
    caller = frames.Caller(
        session=session,
        principal=principal.id,
        endpoint=scope.path,
        naming=scope.naming,
        revision=envelope.revision,
        wire=wire,
        capabilities=envelope.capabilities,
        client_info=envelope.client_info,
        cwd=cwd,
    )
    return Client(caller, principal, scope)


def shown_capabilities(identity: Identity, scope: Scope) -> dict[str, Any]:
    """The capabilities an endpoint declares: the aggregate's own, or the upstream's as far as both hops keep them.

    Changes of lists are announced even where the upstream does not: Coffer compares lists by itself.
    """
    try:
        declared: dict[str, Any] = msgspec.json.decode(identity.capabilities or _EMPTY)
    except jsonrpc.UNREADABLE:
        declared = {}
    if scope.server is None:
        return declared
    shown = {name: declared[name] for name in _SHOWN if isinstance(declared.get(name), dict)}
    if extensions := protocol.carried_extensions(shown.pop("extensions", None)):
        shown["extensions"] = extensions
    for name in ("tools", "resources", "prompts"):
        if name in shown:
            shown[name] = {**shown[name], "listChanged": True}
    return shown


def _object(raw: msgspec.Raw) -> bytes:
    data = bytes(raw)
    return data if data[:1] == b"{" else _EMPTY


def _uri(params: bytes, method: str) -> str:
    try:
        return jsonrpc.read(params or _EMPTY, _decode_uri).uri
    except msgspec.DecodeError:
        raise refused(errors.INVALID_PARAMS, f"{method}: uri must be a string", "legacy") from None
