"""What an upstream declares about changes, and which stream a notification came on, read from raw JSON.

Owns those views. Never keeps a subscription: ``subscribing`` does.
"""

from coffer_common import protocol
from coffer_worker.core import splice


def stream_of(params: bytes) -> int | None:
    """The id of the listen stream that a notification with these params came on; None: of none, -1: no id of ours."""
    if protocol.META_SUBSCRIPTION_ID.encode() not in params:
        return None
    try:
        raw = bytes(splice.members(splice.members(params)["_meta"])[protocol.META_SUBSCRIPTION_ID])
    except (ValueError, KeyError):
        return None
    digits = raw.strip(b'"')
    return int(digits) if digits.isdigit() and len(digits) < 19 else -1


def supports(capabilities: bytes, what: str) -> bool:
    """Whether an upstream with these raw capabilities announces changes of lists (``listChanged``) or takes
    subscriptions to resources (``subscribe``)."""
    if what == "listChanged":
        return any(declared(capabilities, kind, what) for kind in ("tools", "prompts", "resources"))
    return declared(capabilities, "resources", what)


def declared(capabilities: bytes, kind: str, what: str) -> bool:
    """Whether ``capabilities`` say ``what`` of ``kind`` (``tools``, ...)."""
    try:
        found = splice.members(capabilities).get(kind)
        return splice.is_object(found) and bytes(splice.members(found or b"{}").get(what, b"")) == b"true"
    except ValueError:
        return False
