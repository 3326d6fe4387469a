"""What a modern request says of itself beside its payload, and whether its headers agree.

Owns the ladder of checks of a 2026-07-28 request (envelope members, header agreement, version) and the era of one
request. Pure; decodes ``_meta`` and the routed name only, never arguments.
Source: MCP 2026-07-28, Base protocol, per-request fields; Transports, Streamable HTTP, standard headers; Versioning.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Raw

from coffer_common import errors, jsonrpc, protocol
from coffer_supervisor.core.calls import Failure, failure
from coffer_supervisor.core.session import LOG_LEVELS

_NONE: Final = Raw(b"")
MODERN_METHODS: Final = frozenset({"server/discover", "subscriptions/listen"})
_REVISIONS: Final = {b'"%s"' % revision.encode(): revision for revision in protocol.MODERN_REVISIONS}


class _Meta(msgspec.Struct, gc=False):
    version: Raw = msgspec.field(default=_NONE, name=protocol.META_PROTOCOL_VERSION)
    capabilities: Raw = msgspec.field(default=_NONE, name=protocol.META_CLIENT_CAPABILITIES)
    info: Raw = msgspec.field(default=_NONE, name=protocol.META_CLIENT_INFO)
    log_level: Raw = msgspec.field(default=_NONE, name=protocol.META_LOG_LEVEL)


class _Params(msgspec.Struct, gc=False):
    meta: Raw = msgspec.field(default=_NONE, name="_meta")
    name: Raw = _NONE
    uri: Raw = _NONE


class _Named(msgspec.Struct, gc=False):
    name: str = ""


_decode_params: Final = msgspec.json.Decoder(_Params).decode
_decode_meta: Final = msgspec.json.Decoder(_Meta).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_decode_named: Final = msgspec.json.Decoder(_Named).decode


@dataclass(frozen=True, slots=True)
class Modern:
    """A modern request that passed: what the client is and can do, as raw JSON where it is passed on."""

    revision: str
    capabilities: bytes
    client_info: bytes
    client_name: str
    log_level: str


def client_name(info: bytes) -> str:
    """``name`` of a raw ``clientInfo``; empty where there is none."""
    try:
        return _decode_named(info).name[:128]
    except jsonrpc.UNREADABLE:
        return ""


def era_of(envelope: jsonrpc.Envelope, version_header: str | None) -> protocol.Era:
    """The era of one message, by its body: a protocol version in ``_meta``, or a method of that era alone.

    A header of a modern version makes it modern too (its body then lacks what it must have), save for
    ``initialize``, which is what old clients fall back to.
    """
    if envelope.method in MODERN_METHODS:
        return "modern"
    params = envelope.outline
    if b"/protocolVersion" in params and _meta_of(params).version:
        return "modern"
    named = version_header in protocol.MODERN_REVISIONS and envelope.method != "initialize"
    return "modern" if named else "legacy"


def ladder(method: str, params: bytes, headers: Mapping[str, str] | None) -> Modern | Failure:
    """The checks of a modern request, in their order: envelope members, headers (None: a wire without), version.

    ``params``: the outline of them will do.
    """
    try:
        view = _decode_params(params) if params else _Params()
        meta = _decode_meta(view.meta) if view.meta else _Meta()
    except msgspec.ValidationError:
        return _invalid("params._meta must be an object")
    except jsonrpc.UNREADABLE as error:
        return _invalid(f"params cannot be read: {error}")
    if bytes(params).count(b'"_meta"') > 1 and jsonrpc.duplicate_member(params, "_meta"):
        return _invalid("params has two _meta members")
    missing = [
        key
        for key, raw in (
            (protocol.META_PROTOCOL_VERSION, meta.version),
            (protocol.META_CLIENT_CAPABILITIES, meta.capabilities),
        )
        if not raw
    ]
    if missing:
        return _invalid(f"params._meta lacks {' and '.join(missing)}")
    revision = _REVISIONS.get(bytes(meta.version)) or _text(meta.version)
    if headers is not None:
        disagreement = _disagreement(method, view, revision, headers)
        if disagreement:
            return failure(errors.HEADER_MISMATCH, disagreement, "modern")
    if revision is None:
        return _invalid(f"{protocol.META_PROTOCOL_VERSION} must be a string")
    if revision not in protocol.MODERN_REVISIONS:
        return unsupported(revision)
    return _passed(revision, meta)


def unsupported(revision: str) -> Failure:
    """The refusal of a version that is not served without a handshake."""
    data = {"supported": list(protocol.MODERN_REVISIONS), "requested": revision[:64]}
    return failure(errors.UNSUPPORTED_VERSION, "Unsupported protocol version", "modern", data=data)


def _passed(revision: str, meta: _Meta) -> Modern | Failure:
    capabilities, info = bytes(meta.capabilities), bytes(meta.info)
    if capabilities[:1] != b"{":
        return _invalid(f"{protocol.META_CLIENT_CAPABILITIES} must be an object")
    if info == b"null":
        info = b""
    if info and info[:1] != b"{":
        return _invalid(f"{protocol.META_CLIENT_INFO} must be an object")
    level = ""
    if meta.log_level and bytes(meta.log_level) != b"null":
        level = _text(meta.log_level) or ""
        if level not in LOG_LEVELS:
            return _invalid(f"{protocol.META_LOG_LEVEL} must be one of {', '.join(LOG_LEVELS)}")
    return Modern(revision, capabilities, info or b"{}", client_name(info) if info else "", level)


def _disagreement(method: str, view: _Params, revision: str | None, headers: Mapping[str, str]) -> str:
    version = headers.get(protocol.HEADER_VERSION)
    if version is None or version != revision:
        return "MCP-Protocol-Version header does not match the request's protocol version"
    if headers.get(protocol.HEADER_METHOD) != method:
        return "Mcp-Method header does not match the request's method"
    member = protocol.NAME_MEMBER.get(method)
    raw = b"" if member is None else bytes(view.name if member == "name" else view.uri)
    name = _text(raw) if raw else None
    if name is None:
        return ""
    header = headers.get(protocol.HEADER_NAME)
    if header is None or protocol.decode_header(header) != name:
        return f"Mcp-Name header does not match the request's {member}"
    return ""


def _meta_of(params: bytes) -> _Meta:
    try:
        view = _decode_params(params)
        return _decode_meta(view.meta) if view.meta else _Meta()
    except jsonrpc.UNREADABLE:
        return _Meta()


def _text(raw: Raw | bytes) -> str | None:
    try:
        return _decode_text(raw)
    except jsonrpc.UNREADABLE:
        return None


def _invalid(message: str) -> Failure:
    return failure(errors.INVALID_PARAMS, message, "modern")
