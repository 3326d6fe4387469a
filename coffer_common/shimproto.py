"""The lines that shim and daemon exchange on ``run/mcp.sock`` besides JSON-RPC.

Owns their shapes; ``docs/shim-socket.md`` is the authority on their meaning and order. A line is one of these
exactly if it is an object with a ``coffer`` member, which no JSON-RPC message has at its top level.
"""

from typing import Final, Literal

import msgspec

SHIM_PROTOCOL: Final = 1
MAX_HELLO: Final = 64 * 1024
"""Longest first line either side accepts, in bytes."""
MAX_LINE: Final = 64 * 1024 * 1024
"""Longest line of a client, in bytes (the daemon's lines may be longer by an envelope)."""

Refusal = Literal["version", "endpoint", "stopping", "busy", "protocol"]


class Hello(msgspec.Struct, tag_field="coffer", tag="hello", frozen=True):
    """First line, shim to daemon. ``endpoint``: ``/mcp``, ``/servers/NAME/mcp`` or ``/groups/NAME/mcp``."""

    version: int
    client_version: str
    endpoint: str
    cwd: str = ""
    pid: int = 0


class Welcome(msgspec.Struct, tag_field="coffer", tag="welcome", frozen=True):
    """First line back: JSON-RPC may follow in both directions."""

    version: int
    daemon_version: str


class Refused(msgspec.Struct, tag_field="coffer", tag="refused", frozen=True):
    """First line back instead of Welcome; the daemon closes afterwards. ``reason`` is one of ``Refusal``."""

    reason: str
    message: str


class Goodbye(msgspec.Struct, tag_field="coffer", tag="goodbye", frozen=True):
    """Last line of the daemon: ``stopped`` on purpose, or ``restarting``. Nothing follows."""

    reason: str


Control = Hello | Welcome | Refused | Goodbye

_encode: Final = msgspec.json.Encoder().encode
_decode_control: Final = msgspec.json.Decoder(Control).decode


def encode(line: Control) -> bytes:
    """The line with its LF."""
    return _encode(line) + b"\n"


def decode(line: bytes | bytearray) -> Control:
    """One line. Raises msgspec.DecodeError for what is none of the four."""
    return _decode_control(line)
