"""Keeps the upstream's secrets out of what leaves the worker as a message for people: errors, states, log messages.

Owns the spellings in which a secret is looked for. Never touches a result: what a tool answers is the tool's own.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any, Final
from urllib.parse import quote, quote_plus

import msgspec

from coffer_common import frames
from coffer_worker.outlet import Outlet

LEAST_CHARS: Final = 4
"""A shorter one is no secret, and masking it would wreck every message."""


def spellings(secrets: Iterable[str]) -> list[str]:
    """Each secret as it stands, as JSON and as URLs spell it; the longest first, so that none is left in halves."""
    found: set[str] = set()
    for secret in secrets:
        if len(secret) >= LEAST_CHARS:
            found |= {secret, *(line for line in secret.splitlines() if len(line) >= LEAST_CHARS)}
    for plain in list(found):
        found |= {json.dumps(plain)[1:-1], json.dumps(plain, ensure_ascii=False)[1:-1]}
        found |= {quote(plain, safe=""), quote(plain), quote_plus(plain)}
    return sorted(found, key=lambda one: (-len(one), one))


class Discreet:
    """An outlet that says no secret. ``mask`` takes them out of a text."""

    def __init__(self, outlet: Outlet, mask: Callable[[str], str]) -> None:
        self._outlet, self._mask = outlet, mask

    def send(self, frame: Any, payload: bytes = b"") -> None:
        """As ``Outlet.send``."""
        if isinstance(frame, frames.Fail):
            message = self._mask(frame.message)
            frame = frame if message == frame.message else msgspec.structs.replace(frame, message=message)
            payload = self._masked(payload)
        elif isinstance(frame, frames.Notify) and frame.method == "notifications/message":
            payload = self._masked(payload)
        self._outlet.send(frame, payload)

    def state(self, state: frames.State) -> frames.State:
        """A state that may be told."""
        message, stderr = self._mask(state.message), tuple(self._mask(line) for line in state.stderr)
        if (message, stderr) == (state.message, state.stderr):
            return state
        return msgspec.structs.replace(state, message=message, stderr=stderr)

    def _masked(self, payload: bytes) -> bytes:
        try:
            text = payload.decode()
        except UnicodeDecodeError:  # no JSON then; nothing of ours
            return payload
        masked = self._mask(text)
        return payload if masked == text else masked.encode()
