"""The seam between a transport and what is said over it.

Owns the protocol that each transport implements and the one it reports to. Never knows what a message means. A
transport may cancel by a message or by closing a stream, and reports whole lines.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from coffer_common.errors import Reason
from coffer_common.jsonrpc import Envelope
from coffer_worker.core.framing import TooLong


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request got no usable answer; Coffer's own words.

    ``again``: it is certain that the request was not executed, so that it may be sent once more. ``status``: the HTTP
    status that stood for an answer, else 0. ``retry_after``: seconds that the upstream asked for. ``data``: more for
    the client's error.
    """

    reason: Reason
    message: str
    again: bool = False
    status: int = 0
    retry_after: float | None = None
    data: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """Why a connection ended. ``message`` is for people, secrets masked; ``code`` the exit code (minus the signal that
    killed it), None where the process was not the reason; ``deliberate``: Coffer closed it. ``reason``: what ended a
    connection that is no process."""

    message: str
    code: int | None = None
    deliberate: bool = False
    stderr: tuple[str, ...] = ()
    reason: Reason | None = None


class Receiver(Protocol):
    """Who hears what comes in. Called on the loop; neither blocks nor raises."""

    def line(self, line: bytes) -> None:
        """One line: a message, or chatter."""

    def too_long(self, found: TooLong) -> None:
        """A line passed the limit and was skipped."""

    def message(self, envelope: Envelope, raw: bytes, related: int | str | None = None) -> None:
        """One message that is taken apart already; ``related``: the request of ours on whose stream it came."""

    def failed(self, id: int | str, problem: Problem) -> None:
        """There will be no answer to that request."""

    def paused(self, id: int | str) -> None:
        """The upstream closed that request's event stream, and will go on with it when asked for the rest."""

    def waits_for(self, id: int | str) -> bool:
        """Whether that request is still open."""

    def renewed(self) -> None:
        """The upstream had forgotten the session; there is a new one, which knows of no subscription."""

    def closed(self, gone: Gone) -> None:
        """The end, once; nothing follows."""


class Pipe(Protocol):
    """One way to an upstream."""

    @property
    def bytes_in(self) -> int:
        """Bytes that came so far."""

    @property
    def bytes_out(self) -> int:
        """Bytes that went so far."""

    @property
    def forgets(self) -> bool:
        """Whether the upstream may forget a session, so that a request may have to be sent once more."""

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
