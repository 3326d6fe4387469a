"""Asks and their answers in the form of the other side: an upstream's requests, input requests, input responses.

Owns what is added, dropped and renamed when an ask crosses a hop; all else passes byte for byte. Never decides whether
an ask is lawful (``core.bridge``) or when it is shown (``core.parked``). URLs are never looked into.
Source: MCP 2025-11-25, Client Features; MCP 2026-07-28, Multi Round-Trip Requests.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from coffer_common import protocol
from coffer_worker.core import splice
from coffer_worker.core.bridge import ELICITATION
from coffer_worker.core.splice import Slice
from coffer_worker.core.translate import View

CANCELLED: Final = b'{"action":"cancel"}'
RETRY_MEMBERS: Final = ("inputResponses", "requestState")
_encode: Final = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class Wish:
    """What an upstream asks for. ``params``: raw JSON object."""

    method: str
    params: bytes

    def view(self) -> dict[str, Any]:
        """The params decoded, to judge by; empty where they are no object."""
        try:
            found = msgspec.json.decode(self.params)
        except (msgspec.DecodeError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def url(self) -> str:
        """The URL of an elicitation in URL mode; else empty."""
        found = self.view() if self.method == ELICITATION else {}
        return str(found.get("url", "")) if found.get("mode") == "url" else ""


def _without_hop(found: dict[str, Slice]) -> None:
    if splice.is_object(found.get("_meta")):
        kept = {k: v for k, v in splice.members(found["_meta"]).items() if k not in protocol.HOP_META}
        if kept:
            found["_meta"] = splice.join(kept)
        else:
            del found["_meta"]


def _named(method: str, found: dict[str, Slice], view: View) -> None:
    """Clients must show who asks, and on an aggregate they see one server only."""
    message = splice.text(found.get("message"))
    if method == ELICITATION and view.naming == "prefixed" and message is not None:
        found["message"] = _encode(f"[{view.server}] {message}")


def for_legacy_client(wish: Wish, view: View, elicitation_id: str = "") -> bytes:
    """The params of the request to a legacy client. ``elicitation_id``: for URL mode from a modern upstream, which
    has none. Raises ValueError for params that are no object."""
    found = splice.members(wish.params)
    _without_hop(found)
    _named(wish.method, found, view)
    if elicitation_id:
        found["elicitationId"] = _encode(elicitation_id)
    return splice.join(found)


def for_modern_client(wish: Wish, view: View) -> bytes:
    """A legacy upstream's ask as an input request. Raises ValueError for params that are no object."""
    found = splice.members(wish.params)
    for name in ("_meta", "task", "elicitationId"):
        found.pop(name, None)
    _named(wish.method, found, view)
    return splice.join({"method": _encode(wish.method), "params": splice.join(found)})


def input_required(requests: dict[str, bytes], state: str) -> bytes:
    """The result that asks a modern client. Source: MCP 2026-07-28, InputRequiredResult."""
    return splice.join(
        {
            "resultType": b'"input_required"',
            "inputRequests": splice.join(requests),
            "requestState": _encode(state),
        }
    )


# ---- a modern upstream's own


@dataclass(frozen=True, slots=True)
class Required:
    """A modern upstream's ``input_required``: its wishes by key, and its state, raw."""

    wishes: dict[str, Wish]
    state: bytes | None


def asks_for_input(raw: bytes) -> bool:
    """Whether a result is ``input_required``."""
    if b"input_required" not in raw:
        return False
    try:
        return splice.text(splice.members(raw).get("resultType")) == "input_required"
    except ValueError:
        return False


def required(raw: bytes) -> Required:
    """Taken apart. Raises ValueError where it is malformed."""
    found = splice.members(raw)
    wishes: dict[str, Wish] = {}
    for key, entry in splice.members(found.get("inputRequests", b"{}")).items():
        members = splice.members(entry)
        params = bytes(members.get("params", b"{}"))
        if params[:1] != b"{":
            raise ValueError("params that are no object")
        wishes[key] = Wish(splice.text(members.get("method")) or "", params)
    state = found.get("requestState")
    if not wishes and state is None:
        raise ValueError("neither inputRequests nor requestState")
    return Required(wishes, None if state is None else bytes(state))


def shown_required(raw: bytes, view: View) -> bytes:
    """A modern upstream's ``input_required`` for a modern client: only the aggregate's messages are changed."""
    if view.naming != "prefixed" or b"elicitation" not in raw:
        return raw
    found = splice.members(raw)
    requests = splice.members(found.get("inputRequests", b"{}"))
    for key, entry in requests.items():
        members = splice.members(entry)
        if splice.text(members.get("method")) != ELICITATION:
            continue
        params = splice.members(members.get("params", b"{}"))
        _named(ELICITATION, params, view)
        requests[key] = splice.join({**members, "params": splice.join(params)})
    return splice.join({**found, "inputRequests": splice.join(requests)})


def retried(answers: dict[str, bytes], state: bytes | None) -> dict[str, Slice]:
    """What a retry to a modern upstream carries beside the original params."""
    found: dict[str, Slice] = {"inputResponses": splice.join(answers)} if answers else {}
    if state is not None:
        found["requestState"] = state
    return found


def answer(raw: bytes) -> bytes:
    """A client's result without what belongs to its hop, for the upstream. Raises ValueError for no object."""
    found = splice.members(raw)
    if "_meta" not in found and "resultType" not in found:
        return raw
    _without_hop(found)
    found.pop("resultType", None)
    return splice.join(found)


# ---- a modern client's retry


def retry_state(params: bytes) -> str | None:
    """The ``requestState`` of a request; None where it has none."""
    if b"requestState" not in params:
        return None
    try:
        return splice.text(splice.members(params).get("requestState"))
    except ValueError:
        return None


def retry_answers(params: bytes) -> dict[str, bytes]:
    """The ``inputResponses`` of a retry; what is no object answers nothing."""
    try:
        found = splice.members(splice.members(params).get("inputResponses", b"{}"))
    except ValueError:
        return {}
    return {key: bytes(value) for key, value in found.items() if splice.is_object(value)}


def progress_token(params: bytes) -> bytes | None:
    """The client's own progress token, raw."""
    try:
        token = splice.members(splice.members(params).get("_meta", b"{}")).get("progressToken")
    except ValueError:
        return None
    return None if token is None else bytes(token)


def digest(method: str, key: str, params: bytes) -> str:
    """Stands for what a call does: method, name or URI, arguments; equal however the JSON is spelled."""
    try:
        arguments = json.loads(bytes(splice.members(params).get("arguments", b"null")))
        spelled = json.dumps([method, key, arguments], sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        spelled = json.dumps([method, key, params.decode(errors="replace")])
    return hashlib.sha256(spelled.encode()).hexdigest()


# ---- -32042


@dataclass(frozen=True, slots=True)
class UrlWish:
    """One elicitation that a legacy upstream lists in its error: what to show, and its id."""

    wish: Wish
    elicitation_id: str


def url_wishes(error: bytes) -> list[UrlWish]:
    """The elicitations in the data of a ``-32042``; empty where it lists none that can be shown.

    Source: MCP 2025-11-25, Elicitation, URLElicitationRequiredError.
    """
    try:
        data = splice.members(splice.members(error).get("data", b"{}"))
        entries = [splice.members(entry) for entry in splice.items(data.get("elicitations", b"[]"))]
    except ValueError:
        return []
    found: list[UrlWish] = []
    for entry in entries:
        if splice.text(entry.get("url")) is None:
            return []
        entry.setdefault("mode", b'"url"')
        entry.setdefault("message", b'""')
        identity = splice.text(entry.get("elicitationId")) or ""
        found.append(UrlWish(Wish(ELICITATION, splice.join(entry)), identity))
    return found


def completed_id(params: bytes) -> str | None:
    """The id in ``notifications/elicitation/complete``."""
    try:
        return splice.text(splice.members(params).get("elicitationId"))
    except ValueError:
        return None


def action(answer: bytes) -> str:
    """What the person did: accept, decline or cancel."""
    try:
        return splice.text(splice.members(answer).get("action")) or "cancel"
    except ValueError:
        return "cancel"


def cancelled_request(params: bytes) -> bytes:
    """The raw id in ``notifications/cancelled``; empty where there is none."""
    try:
        return bytes(splice.members(params).get("requestId", b""))
    except ValueError:
        return b""


def message_of(error: bytes) -> str:
    """The message of an error object."""
    try:
        return splice.text(splice.members(error).get("message")) or ""
    except ValueError:
        return ""


def is_retry(params: bytes) -> bool:
    """Whether a request carries what only a retry does."""
    if b"inputResponses" not in params and b"requestState" not in params:
        return False
    return any(name in splice.members(params) for name in RETRY_MEMBERS)


def first_try(params: bytes) -> bytes:
    """The params of a retry as they first were."""
    return splice.join({k: v for k, v in splice.members(params).items() if k not in RETRY_MEMBERS})
