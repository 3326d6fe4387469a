"""The seam between a transport and what is said over it.

Owns the protocol that each transport implements and the one it reports to. Never knows what a message means. A
transport may cancel by a message or by closing a stream, and reports whole lines.
"""

from dataclasses import dataclass
from typing import Protocol

from coffer_worker.core.framing import TooLong


@dataclass(frozen=True, slots=True)
class Gone:
    """Why a connection ended. ``message`` is for people, secrets masked; ``code`` the exit code (minus the signal that
    killed it), None where the process was not the reason; ``deliberate``: Coffer closed it."""

    message: str
    code: int | None = None
    deliberate: bool = False
    stderr: tuple[str, ...] = ()


class Receiver(Protocol):
    """Who hears what comes in. Called on the loop; neither blocks nor raises."""

    def line(self, line: bytes) -> None:
        """One line: a message, or chatter."""

    def too_long(self, found: TooLong) -> None:
        """A line passed the limit and was skipped."""

    def closed(self, gone: Gone) -> None:
        """The end, once; nothing follows."""


class Pipe(Protocol):
    """One way to an upstream."""

    bytes_in: int
    bytes_out: int

    @property
    def pids(self) -> tuple[int, ...]:
        """The upstream's own processes behind it."""

    def send(self, message: bytes) -> None:
        """Send one whole message (no newline in it); never blocks. What cannot be sent is lost with the pipe."""

    def cancel(self, id: int | str, reason: str) -> None:
        """Tell the upstream, as this transport and era do, that request ``id`` is given up."""

    def last_output(self) -> tuple[str, ...]:
        """The last lines that the upstream wrote beside the protocol, unfinished ones included."""

    def pause(self) -> None:
        """Take nothing in for now."""

    def resume(self) -> None:
        """Go on."""

    async def close(self, grace: float, reason: str) -> None:
        """End it, and all behind it, within about ``grace`` seconds."""
