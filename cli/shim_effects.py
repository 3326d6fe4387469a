"""What the shim's core asks its shell to do. Plain data; the loop carries it out, in order."""

from dataclasses import dataclass
from typing import Literal

AttachMode = Literal["start", "restart", "watch", "look"]
Why = Literal["", "not_running", "no_group"]
"""Why there is no connection, where that matters: none runs and none may be started; it has no such group."""


@dataclass(frozen=True, slots=True)
class ToClient:
    """Write one line (without its LF) to stdout."""

    line: bytes


@dataclass(frozen=True, slots=True)
class ToDaemon:
    """Write one line (without its LF) to the daemon."""

    line: bytes


@dataclass(frozen=True, slots=True)
class Attach:
    """Look for a daemon: ``start`` one where none runs; ``restart``: wait for the next one, then start one;
    ``watch``: attach when one appears; ``look``: attach if one runs now. Replaces an attempt that is under way."""

    mode: AttachMode


@dataclass(frozen=True, slots=True)
class Detach:
    """Close the connection to the daemon."""


@dataclass(frozen=True, slots=True)
class Log:
    """One line for people, on stderr."""

    text: str


@dataclass(frozen=True, slots=True)
class Exit:
    """End the process, after what is to be written to stdout has been written."""

    code: int


Effect = ToClient | ToDaemon | Attach | Detach | Log | Exit
