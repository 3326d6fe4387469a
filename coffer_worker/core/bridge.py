"""What crosses between a client's era and an upstream's.

Owns the decisions of era: what is declared upstream for a caller, at which revision and in which era a caller is
served, which asks (sampling, elicitation, roots) are lawful, and what an upstream hears whose ask is not. Never
touches a wire, never rewrites an ask (``core.asks`` does).
Source: MCP 2025-11-25 and 2026-07-28, Client Features; Lifecycle, Capability Negotiation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import msgspec

from coffer_common import jsonrpc, protocol
from coffer_common.frames import Caller
from coffer_common.protocol import Era

ROOTS: Final = "roots/list"
SAMPLING: Final = "sampling/createMessage"
ELICITATION: Final = "elicitation/create"
ASKS: Final = frozenset({ROOTS, SAMPLING, ELICITATION})
MAY_ASK: Final = frozenset({"tools/call", "prompts/get", "resources/read"})
"""The requests of a modern client that may be answered with ``input_required``."""
_WITHOUT_RESULT_TYPES: Final = frozenset({protocol.META_PREFIX + "ui"})
_NO_ELICITATION: Final = frozenset({"2024-11-05", "2025-03-26"})
_NO_URL_MODE: Final = _NO_ELICITATION | {"2025-06-18"}
_NOBODY: Final = '{"experimental":{}}'
_decode: Final = msgspec.json.Decoder().decode


def declared(caller: Caller | None, upstream: Era = "legacy") -> dict[str, Any]:
    """The client capabilities that an upstream is told for ``caller`` (None: nobody), in the era of that hop.

    Only what Coffer can carry, and never more than the caller declared itself.
    """
    if caller is None:
        return {"experimental": {}}
    return dict(_declared(caller.capabilities, caller.revision, caller.era, upstream))


@lru_cache(maxsize=256)
def _declared(capabilities: bytes, revision: str, era: Era, upstream: Era) -> Mapping[str, Any]:
    found: dict[str, Any] = {"experimental": {}}
    theirs = _object(capabilities)
    if isinstance(sampling := theirs.get("sampling"), dict):
        found["sampling"] = {name: sampling[name] for name in ("tools", "context") if _offered(sampling, name)}
    elicitation = theirs.get("elicitation")
    if isinstance(elicitation, dict) and revision not in _NO_ELICITATION:
        known = ("form",) if revision in _NO_URL_MODE else ("form", "url")
        kept = {name: elicitation[name] for name in known if _offered(elicitation, name)}
        if kept or not elicitation:
            found["elicitation"] = kept
    if isinstance(roots := theirs.get("roots"), dict):
        changes = era == "legacy" and upstream == "legacy" and roots.get("listChanged") is True
        found["roots"] = {"listChanged": True} if changes else {}
    if carried := protocol.carried_extensions(theirs.get("extensions")):
        found["extensions"] = carried
    return found


def _offered(capability: Mapping[str, Any], name: str) -> bool:
    return isinstance(capability.get(name), dict)


def _object(raw: bytes) -> dict[str, Any]:
    try:
        found = jsonrpc.read(raw, _decode)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def encoded(capabilities: Mapping[str, Any]) -> bytes:
    """A canonical spelling of capabilities."""
    return msgspec.json.encode(capabilities, order="deterministic")


def capability_set(caller: Caller | None) -> str:
    """A canonical spelling of what a legacy upstream is told: equal for callers that may share a connection."""
    return _NOBODY if caller is None else _capability_set(caller.capabilities, caller.revision, caller.era)


@lru_cache(maxsize=256)
def _capability_set(capabilities: bytes, revision: str, era: Era) -> str:
    return encoded(_declared(capabilities, revision, era, "legacy")).decode()


def encoded_for_modern(caller: Caller) -> bytes:
    """What a modern upstream is told with each request of the caller's."""
    return _encoded_for_modern(caller.capabilities, caller.revision, caller.era)


@lru_cache(maxsize=256)
def _encoded_for_modern(capabilities: bytes, revision: str, era: Era) -> bytes:
    return encoded(_declared(capabilities, revision, era, "modern"))


@lru_cache(maxsize=256)
def _extended(capabilities: bytes, revision: str, era: Era) -> bool:
    return bool(_declared(capabilities, revision, era, "modern").get("extensions", {}).keys() - _WITHOUT_RESULT_TYPES)


def extended(caller: Caller) -> bool:
    """Whether a modern client declared an extension that may bring types of result which Coffer does not know."""
    return caller.era == "modern" and _extended(caller.capabilities, caller.revision, caller.era)


def may_be_asked(caller: Caller) -> bool:
    """Whether any ask of an upstream could be lawful for this caller."""
    found = _declared(caller.capabilities, caller.revision, caller.era, "legacy")
    return "sampling" in found or "elicitation" in found or "roots" in found


def tells_roots(caller: Caller) -> bool:
    """Whether a legacy client says when its roots change, so that what it told of them holds until then."""
    roots = _declared(caller.capabilities, caller.revision, caller.era, "legacy").get("roots", {})
    return bool(roots.get("listChanged"))


def legacy_revision(caller: Caller | None) -> str:
    """The revision to ask of a legacy upstream: a legacy client's own, so that the upstream tailors what it sends."""
    if caller is not None and caller.revision in protocol.LEGACY_REVISIONS:
        return caller.revision
    return protocol.LATEST_LEGACY


def served_in(caller: Era, upstream: Era, *, legacy_side: bool | None) -> Era:
    """The era of the connection that serves a caller: its own where the upstream speaks both.

    ``legacy_side``: whether a modern upstream also speaks legacy; None while that was not tried, which is then done.
    """
    if upstream == "modern" and caller == "legacy" and legacy_side is not False:
        return "legacy"
    return upstream


# ---- what an upstream may ask


@dataclass(frozen=True, slots=True)
class Unlawful:
    """An ask that nobody agreed to: the error for a legacy upstream."""

    code: int
    message: str


def unlawful(method: str, params: Mapping[str, Any], capabilities: Mapping[str, Any]) -> Unlawful | None:
    """Why an ask may not be made under ``capabilities`` (what was declared); None where it may.

    Source: MCP, Sampling, Elicitation, Roots: each needs its capability, each mode its own.
    """
    if method == ELICITATION:
        found = capabilities.get("elicitation")
        mode = params.get("mode", "form")
        if not isinstance(found, Mapping):
            return Unlawful(protocol.INVALID_PARAMS, "The client did not declare elicitation")
        if mode not in (found or {"form": {}}):
            return Unlawful(protocol.INVALID_PARAMS, f"The client did not declare elicitation of mode {str(mode)[:20]}")
        return None
    name = "roots" if method == ROOTS else "sampling"
    found = capabilities.get(name)
    if not isinstance(found, Mapping):
        what = f"The client does not support {method}: it did not declare the capability"
        return Unlawful(protocol.METHOD_NOT_FOUND, what)
    if method == SAMPLING and ("tools" in params or "toolChoice" in params) and "tools" not in found:
        return Unlawful(protocol.INVALID_PARAMS, "The client did not declare sampling.tools")
    return None


@dataclass(frozen=True, slots=True)
class Answer:
    """What an upstream's own request gets from Coffer itself: ``payload`` is a result, or an error object."""

    payload: bytes
    error: bool


def answer(method: str) -> Answer:
    """The answer to a request of the upstream that is not carried to a client.

    Source: MCP, Ping; JSON-RPC method not found; Elicitation (an undeclared mode is invalid params).
    """
    if method == "ping":
        return Answer(b"{}", error=False)
    if method in ASKS:
        refused = unlawful(method, {}, {})
        assert refused is not None
        return Answer(jsonrpc.error(refused.code, refused.message), error=True)
    return Answer(jsonrpc.error(protocol.METHOD_NOT_FOUND, f"Method not found: {method}"), error=True)
