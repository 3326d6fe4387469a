"""Params on their way in, results and errors on their way out.

Owns what belongs to a hop (``_meta`` keys, tokens, the upstream's own names) and the shape that a client's era and
naming want. Everything else passes byte for byte; a byte search decides whether a payload must be looked into at all.
Never decides where a call goes. Source: MCP base protocol, General fields (``_meta``, ``resultType``); Caching.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from coffer_common import names, protocol
from coffer_common.frames import Naming
from coffer_common.jsonrpc import one_line
from coffer_common.protocol import Era
from coffer_worker.core import splice
from coffer_worker.core.splice import Slice

_encode: Final = msgspec.json.encode
_IS_ERROR: Final = re.compile(rb'"isError"\s*:\s*true')
_RESULT_TYPE: Final = re.compile(rb'"resultType"\s*:\s*("[^"]*"|[^"])')
_CACHE: Final = b'"ttlMs":0,"cacheScope":"private"'
_SERVER_INFO: Final = _encode(protocol.META_SERVER_INFO)
_SERVER_INFO_TAIL: Final = b'serverInfo"'  # its slash may be escaped
_TASK: Final = b'"task"'
_SHAPE_OF_MODERN: Final = ("resultType", "ttlMs", "cacheScope")
URL_ELICITATION_REQUIRED: Final = -32042
_NOTHING: Final[dict[str, Slice]] = {}
_CODES: Final = range(-(2**63), 2**63)  # what a frame can carry; no peer that means well has others


class BadResult(Exception):
    """A result that breaks the protocol of its hop; the text says how."""


@dataclass(frozen=True, slots=True)
class Hop:
    """How Coffer presents itself on one connection. ``client_info`` and ``capabilities``: raw JSON."""

    era: Era
    revision: str
    client_info: bytes
    capabilities: bytes

    def meta(self) -> dict[str, Slice]:
        """The ``_meta`` members that each request of this hop carries."""
        if self.era == "legacy":
            return {}
        return {
            protocol.META_PROTOCOL_VERSION: _encode(self.revision),
            protocol.META_CLIENT_INFO: self.client_info,
            protocol.META_CLIENT_CAPABILITIES: self.capabilities,
        }

    def params(self, **members: Slice) -> bytes:
        """Params of a request of Coffer's own."""
        meta = self.meta()
        return splice.join({**members, "_meta": splice.join(meta)} if meta else members)


@dataclass(frozen=True, slots=True)
class View:
    """For whom a result is meant: the era of the client, the naming, and the server whose names are in it.
    ``server_info``: as whom the answerer presents itself, raw JSON (empty: it does not); ``extended``: the client
    declared an extension that may bring other types of result."""

    era: Era
    naming: Naming
    server: str
    server_info: bytes = b""
    extended: bool = False


def request_params(
    method: str,
    key: str,
    params: bytes,
    hop: Hop,
    token: int,
    *,
    log_level: str = "",
    capabilities: bytes = b"",
    extra: Mapping[str, Slice] = _NOTHING,
) -> tuple[bytes, bytes | None]:
    """The params for the upstream, on one line, and the client's own progress token as raw JSON (None: none).

    ``capabilities``: what a modern upstream is told of the caller's; ``extra``: members of a retry. Raises ValueError
    where ``params`` or its ``_meta`` is no object.
    """
    found = splice.members(params)
    meta = splice.members(found["_meta"]) if "_meta" in found else {}
    client_token = meta.get("progressToken")
    kept = {name: value for name, value in meta.items() if name not in protocol.HOP_META}
    kept["progressToken"] = b"%d" % token
    kept |= hop.meta()
    if capabilities and hop.era == "modern":
        kept[protocol.META_CLIENT_CAPABILITIES] = capabilities
    if log_level and hop.era == "modern":
        kept[protocol.META_LOG_LEVEL] = _encode(log_level)
    if method == "completion/complete":
        found["ref"] = _reference(found.get("ref", b"{}"), key)
    else:
        found["uri" if method == "resources/read" else "name"] = _encode(key)
    found.update(extra)
    found["_meta"] = splice.join(kept)
    return one_line(splice.join(found)), None if client_token is None else bytes(client_token)


def _reference(raw: Slice, key: str) -> bytes:
    ref = splice.members(raw)
    ref["name" if splice.text(ref.get("type")) == "ref/prompt" else "uri"] = _encode(key)
    return splice.join(ref)


def progress_params(params: bytes, client_token: bytes) -> bytes:
    """A progress notification's params with the client's own token instead of ours."""
    found = splice.members(params)
    found["progressToken"] = client_token
    _without_hop_meta(found)
    return splice.join(found)


def notification_params(params: bytes) -> bytes:
    """A notification's params without what belongs to the upstream's hop."""
    if b"_meta" not in params or not splice.is_object(params):
        return params or b"{}"
    found = splice.members(params)
    _without_hop_meta(found)
    return splice.join(found)


def _without_hop_meta(found: dict[str, Slice]) -> None:
    if splice.is_object(found.get("_meta")):
        meta = {k: v for k, v in splice.members(found["_meta"]).items() if k not in protocol.HOP_META}
        if meta:
            found["_meta"] = splice.join(meta)
        else:
            del found["_meta"]


# ---- results


def result(method: str, raw: bytes, upstream: Era, view: View) -> bytes:
    """A result in the shape that ``view`` wants. Raises BadResult where it is none, or asks for input."""
    if raw[:1] != b"{":
        raise BadResult("its result is not an object")
    try:
        if upstream == "modern" or _SERVER_INFO_TAIL in raw:
            raw = answerer(raw, view)
        if upstream == "modern":
            _check_result_type(raw, extended=view.extended)
            if view.era == "legacy":
                raw = _to_legacy(raw)
        elif view.era == "modern":
            raw = _to_modern(method, raw, view.server_info)
        if view.naming == "prefixed" and names_something(raw):
            raw = _renamed(method, raw, view.server)
    except ValueError as error:
        raise BadResult(f"its result is {error}") from None
    return raw


def answerer(raw: bytes, view: View) -> bytes:
    """A result that names whoever answers, in its ``_meta``, as ``view`` wants: on the aggregate that is Coffer, for
    modern clients alone; what is passed through says what the upstream says."""
    if view.naming != "prefixed":
        return raw
    stamp = {protocol.META_SERVER_INFO: view.server_info} if view.era == "modern" and view.server_info else {}
    if _SERVER_INFO_TAIL not in raw:
        if not stamp:
            return raw
        if b'"_meta"' not in raw:
            return _first_member(raw, b'"_meta":' + splice.join(stamp))
    found = splice.members(raw)
    own = found.get("_meta", b"{}")
    if not splice.is_object(own):
        return raw
    meta = splice.members(own)
    if meta.pop(protocol.META_SERVER_INFO, None) is None and not stamp:
        return raw
    found["_meta"] = splice.join({**stamp, **meta})
    if not stamp and not meta:
        del found["_meta"]
    return splice.join(found)


def _first_member(raw: bytes, member: bytes) -> bytes:
    rest = raw[1:]
    return b"{" + member + (b"" if rest.lstrip()[:1] == b"}" else b",") + rest


def is_error(raw: bytes) -> bool:
    """Whether a tool's result says ``isError: true``."""
    if _IS_ERROR.search(raw) is None:
        return False
    return bytes(splice.members(raw).get("isError", b"false")) == b"true"


def names_something(raw: bytes) -> bool:
    """Whether raw JSON may hold a URI that must be renamed; escapes could hide one."""
    return b'"uri"' in raw or b"esourceUri" in raw or b"\\u" in raw or b"\\/" in raw


def _check_result_type(raw: bytes, *, extended: bool) -> None:
    if all(found == b'"complete"' for found in _RESULT_TYPE.findall(raw)):
        return
    kind = splice.members(raw).get("resultType")
    if kind is None or bytes(kind) == b'"complete"':
        return
    if bytes(kind) == b'"input_required"':
        raise BadResult("it asks for input, though the client declared no capability to give any")
    if not extended or bytes(kind) == _TASK:
        raise BadResult(f"its resultType {bytes(kind)[:40].decode(errors='replace')} is not known")


def _to_modern(method: str, raw: bytes, server_info: bytes) -> bytes:
    added = b'"resultType":"complete"' + (b"," + _CACHE if method == "resources/read" else b"")
    if server_info:
        added += b',"_meta":{%b:%b}' % (_SERVER_INFO, server_info)
    if any(name in raw for name in (b'"resultType"', b'"ttlMs"', b'"cacheScope"', b'"_meta"')):
        found = splice.members(raw)
        found.setdefault("resultType", b'"complete"')
        if method == "resources/read":
            found.setdefault("ttlMs", b"0")
            found.setdefault("cacheScope", b'"private"')
        meta = found.get("_meta", b"{}")
        if server_info and splice.is_object(meta):
            found["_meta"] = splice.join({protocol.META_SERVER_INFO: server_info, **splice.members(meta)})
        return splice.join(found)
    return _first_member(raw, added)


def _to_legacy(raw: bytes) -> bytes:
    found = splice.members(raw)
    for name in _SHAPE_OF_MODERN:
        found.pop(name, None)
    structured = found.get("structuredContent")
    if structured is not None and not splice.is_object(structured):
        del found["structuredContent"]
        if not splice.items(found.get("content", b"[]")):
            copy = bytes(structured).decode()
            found["content"] = splice.join_items([_encode({"type": "text", "text": copy})])
    return splice.join(found)


def _renamed(method: str, raw: bytes, server: str) -> bytes:
    found = splice.members(raw)
    changed = _rename_meta(found, server)
    if method == "tools/call":
        changed |= _each(found, "content", lambda block: _block(block, server))
    elif method == "prompts/get":
        changed |= _each(found, "messages", lambda message: _message(message, server))
    elif method == "resources/read":
        changed |= _each(found, "contents", lambda part: _content(part, server))
    return splice.join(found) if changed else raw


def _each(found: dict[str, Slice], member: str, change: Callable[[dict[str, Slice]], bool]) -> bool:
    """Apply ``change`` to each object of an array member; what is no array or object stays as it is."""
    raw = found.get(member)
    if raw is None or bytes(raw)[:1] != b"[":
        return False
    changed = False
    parts = splice.items(raw)
    for position, part in enumerate(parts):
        if splice.is_object(part) and names_something(bytes(part)):
            inner = splice.members(part)
            if change(inner):
                parts[position] = splice.join(inner)
                changed = True
    if changed:
        found[member] = splice.join_items(parts)
    return changed


def _inside(found: dict[str, Slice], member: str, change: Callable[[dict[str, Slice]], bool]) -> bool:
    raw = found.get(member)
    if not splice.is_object(raw):
        return False
    inner = splice.members(raw)  # type: ignore[arg-type]
    if change(inner):
        found[member] = splice.join(inner)
        return True
    return False


def _block(block: dict[str, Slice], server: str) -> bool:
    changed = _rename_meta(block, server)
    kind = splice.text(block.get("type"))
    if kind == "resource_link":
        changed |= _rename(block, "uri", server)
    elif kind == "resource":
        changed |= _inside(block, "resource", lambda inner: _content(inner, server))
    return changed


def _message(message: dict[str, Slice], server: str) -> bool:
    return _inside(message, "content", lambda block: _block(block, server)) or _each(
        message, "content", lambda block: _block(block, server)
    )


def _content(content: dict[str, Slice], server: str) -> bool:
    return _rename(content, "uri", server) | _rename_meta(content, server)


def _rename(found: dict[str, Slice], member: str, server: str) -> bool:
    own = splice.text(found.get(member))
    if own is None:
        return False
    found[member] = _encode(names.exposed_uri(server, own))
    return True


def _rename_meta(found: dict[str, Slice], server: str) -> bool:
    """References of MCP Apps: ``_meta.ui.resourceUri`` and its older flat spelling."""

    def change(meta: dict[str, Slice]) -> bool:
        flat = _rename(meta, "ui/resourceUri", server)
        return _inside(meta, "ui", lambda ui: _rename(ui, "resourceUri", server)) | flat

    return _inside(found, "_meta", change)


def renamed_meta(raw: bytes, server: str) -> bytes:
    """A catalogue entry (or anything else) with the references in its ``_meta`` renamed."""
    found = splice.members(raw)
    return splice.join(found) if _rename_meta(found, server) else raw


# ---- errors


@dataclass(frozen=True, slots=True)
class Failure:
    """An upstream's error as the client gets it. ``error``: raw error object; ``status``: of a modern HTTP answer."""

    code: int
    message: str
    error: bytes
    status: int


def error(method: str, raw: bytes, upstream: Era, view: View, key: str) -> Failure:
    """An upstream's error object in the client's era; code, message and data pass unchanged wherever they may."""
    try:
        found = splice.members(raw)
        code, message = msgspec.json.decode(found["code"], type=int), splice.text(found.get("message")) or ""
        if code not in _CODES:
            raise ValueError
    except (ValueError, KeyError, msgspec.DecodeError):
        code, message = protocol.INTERNAL_ERROR, "The upstream answered with a malformed error object"
        return Failure(code, message, _encode({"code": code, "message": message}), 200)
    new = code
    if view.era == "modern":
        if code == protocol.RESOURCE_NOT_FOUND and (upstream == "legacy" or method == "resources/read"):
            new = protocol.INVALID_PARAMS  # some modern servers still use the code of the revisions before
            _data_uri(found, key)
        elif code == URL_ELICITATION_REQUIRED and upstream == "legacy":
            return _url_elicitation(message)
    elif view.era == "legacy" and upstream == "modern" and method == "resources/read":
        data = found.get("data")
        if code == protocol.INVALID_PARAMS and splice.is_object(data) and "uri" in splice.members(data):  # type: ignore[arg-type]
            new = protocol.RESOURCE_NOT_FOUND
    changed = new != code
    if changed:
        found["code"] = b"%d" % new
    if view.naming == "prefixed" and names_something(raw) | changed:
        changed |= _inside(found, "data", lambda data: _rename(data, "uri", view.server))
    status = protocol.HTTP_STATUS.get(new, 200)
    return Failure(new, message, splice.join(found) if changed else raw, status)


def code_of(raw: bytes) -> int:
    """The code of a peer's error object; 0 where it has none that can be used."""
    try:
        code = int(bytes(splice.members(raw).get("code", b"0")))
    except ValueError:
        return 0
    return code if code in _CODES else 0


def _data_uri(found: dict[str, Slice], key: str) -> None:
    data = splice.members(found["data"]) if splice.is_object(found.get("data")) else {}
    data.setdefault("uri", _encode(key))
    found["data"] = splice.join(data)


def _url_elicitation(message: str) -> Failure:
    """A modern wire has no -32042; a client that declared no URL elicitation is told which capability is missing."""
    code = protocol.MISSING_CAPABILITY
    data: dict[str, Any] = {"requiredCapabilities": {"elicitation": {"url": {}}}}
    body = {"code": code, "message": message, "data": data}
    return Failure(code, message, _encode(body), protocol.HTTP_STATUS.get(code, 200))
