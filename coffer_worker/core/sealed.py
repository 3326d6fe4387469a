"""The ``requestState`` of Coffer's own: what a modern client gives back with a retry, sealed so that it is what it was.

Owns the sealing (AES-GCM) and the form. The key is the worker's own, so that a state of another incarnation opens
nothing. The cipher's library is loaded by the first state that is sealed: most workers seal none, and would carry 7 MB
of it. Never decides whether a state that opens may be used: ``core.parked`` does.
Source: MCP 2026-07-28, Multi Round-Trip Requests, Server Requirements (integrity of requestState).
"""

import base64
import binascii
from functools import cached_property
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PREFIX: Final = "coffer1."
KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12


class State(msgspec.Struct, frozen=True, array_like=True):
    """Which round of which parked call. ``expiry``: monotonic seconds of this worker."""

    call: int
    round: int
    expiry: float


class Sealer:
    """Seals under ``key`` (32 bytes, of this worker alone), bound to ``run``, the daemon's."""

    def __init__(self, key: bytes, run: str) -> None:
        self._key = key
        self._bound = run.encode()
        self._nonce = 0

    @cached_property
    def _cipher(self) -> "AESGCM":
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(self._key)

    def seal(self, state: State) -> str:
        """The text that the client gives back."""
        self._nonce += 1  # never twice under one key
        nonce = self._nonce.to_bytes(_NONCE_BYTES)
        body = self._cipher.encrypt(nonce, msgspec.msgpack.encode(state), self._bound)
        return PREFIX + base64.urlsafe_b64encode(nonce + body).decode()

    def open(self, text: str) -> State | None:
        """What was sealed; None for what this worker did not seal."""
        from cryptography.exceptions import InvalidTag

        try:
            raw = base64.urlsafe_b64decode(text.removeprefix(PREFIX).encode())
            plain = self._cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], self._bound)
            return msgspec.msgpack.decode(plain, type=State)
        except (ValueError, binascii.Error, InvalidTag):
            return None


def is_ours(text: str) -> bool:
    """Whether a request state is of Coffer's making, or pretends to be."""
    return text.startswith(PREFIX)
