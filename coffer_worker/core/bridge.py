"""What crosses between a client's era and an upstream's.

Owns the decisions of era: what is declared upstream for a caller, at which revision and in which era a caller is
served, and what an upstream hears that asks for something nobody declared. Asks (sampling, elicitation, roots) are not
carried yet: ``declared`` says so, and everything else here already goes by it. Never touches a wire.
"""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from coffer_common import jsonrpc, protocol
from coffer_common.frames import Caller
from coffer_common.protocol import Era

ASKS: Final = frozenset({"roots/list", "sampling/createMessage", "elicitation/create"})


def declared(caller: Caller | None) -> dict[str, Any]:
    """The client capabilities that an upstream is told for ``caller`` (None: for discovery). No asks yet."""
    return {"experimental": {}}


def capability_set(caller: Caller | None) -> str:
    """A canonical spelling of ``declared``: equal for callers that may share a connection."""
    return msgspec.json.encode(declared(caller), order="deterministic").decode()


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
    if method == "elicitation/create":
        return Answer(jsonrpc.error(protocol.INVALID_PARAMS, "The client did not declare elicitation"), error=True)
    if method in ASKS:
        what = f"The client does not support {method}: it did not declare the capability"
        return Answer(jsonrpc.error(protocol.METHOD_NOT_FOUND, what), error=True)
    return Answer(jsonrpc.error(protocol.METHOD_NOT_FOUND, f"Method not found: {method}"), error=True)
