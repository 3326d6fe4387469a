"""What a handler of the management API is given and what it gives back; no HTTP library in sight.

Owns decoding of bodies and queries, with refusals in the one error model. Never writes a response.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from coffer_common import clock
from coffer_common.api import Actor
from coffer_common.resources import KINDS, Kind
from coffer_supervisor.management.errors import ApiError, invalid, missing

if TYPE_CHECKING:
    from coffer_common.paths import Home
    from coffer_supervisor.core.tally import Tally
    from coffer_supervisor.credentials import CredentialVault
    from coffer_supervisor.daemon import Claimed
    from coffer_supervisor.logins import Logins
    from coffer_supervisor.router import Router
    from coffer_supervisor.store import Store
    from coffer_supervisor.supervision import Supervision

Shape = TypeVar("Shape", bound=msgspec.Struct)
_SPANS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


async def _nobody(_kind: Kind, _name: str) -> None:
    return None


@dataclass(slots=True)
class Management:
    """What the handlers work on.

    ``shutdown`` begins the daemon's end and returns at once; its word is ``stopped`` or ``restarting``. ``changed``
    is told of a written change to a client, group or credential (a server's goes to ``supervision.apply``).
    ``clients`` counts the downstream sessions.
    """

    store: "Store"
    supervision: "Supervision"
    router: "Router"
    vault: "CredentialVault"
    claimed: "Claimed"
    tally: "Tally"
    shutdown: Callable[[str], None]
    logins: "Logins"
    changed: Callable[[Kind, str], Awaitable[None]] = _nobody
    clients: Callable[[], int] = field(default=lambda: 0)

    @property
    def home(self) -> "Home":
        """The files of this daemon."""
        return self.claimed.home


@dataclass(frozen=True, slots=True)
class Request:
    """One request. ``params`` are the named parts of its path; ``caller_path`` is the PATH its sender has."""

    management: Management
    params: Mapping[str, str]
    query: Mapping[str, str]
    actor: Actor
    body: bytes = b""
    caller_path: str = ""

    def decode(self, shape: type[Shape]) -> Shape:
        """The body as ``shape``; an empty one as an empty object. Refused in words where it does not fit."""
        try:
            return msgspec.json.decode(self.body or b"{}", type=shape)
        except msgspec.ValidationError as error:
            raise invalid("invalid_body", f"the request's body does not fit: {error}") from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise invalid("invalid_json", f"the request's body is not JSON: {error}") from error

    @property
    def kind(self) -> Kind:
        """The kind of resource that the path names."""
        kind = self.params["kind"]
        if kind not in KINDS:
            raise missing(f"kind of resource named {kind!r}", f"Kinds: {', '.join(KINDS)}.")
        return kind

    @property
    def name(self) -> str:
        """The name that the path names."""
        return self.params["name"]

    def number(self, key: str, default: int, *, least: int = 1, most: int = 1000) -> int:
        """A whole number of the query, within bounds."""
        text = self.query.get(key)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise invalid("invalid_query", f"{key}={text}: give a whole number from {least} to {most}")
        return value

    def word(self, key: str, known: Sequence[str]) -> str | None:
        """A word of the query that is one of ``known``; none where it is absent."""
        text = self.query.get(key)
        if text is not None and text not in known:
            raise invalid("invalid_query", f"{key}={text} is not known", f"One of: {', '.join(known)}.")
        return text

    def moment(self, key: str) -> datetime | None:
        """A time of the query: RFC 3339, or a span back from now such as ``24h``, ``7d``."""
        text = self.query.get(key)
        if text is None:
            return None
        try:
            if text[-1:] in _SPANS and text[:-1].isdigit():
                return clock.now() - timedelta(seconds=int(text[:-1]) * _SPANS[text[-1]])
            return clock.parse_rfc3339(text)
        except (ValueError, OverflowError) as error:
            raise invalid(
                "invalid_query",
                f"{key}={text} is not a time",
                "Give RFC 3339 with a time zone (2026-05-20T12:00:00Z), or a span back from now (30m, 24h, 7d).",
            ) from error


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that goes on: its media type, and its pieces as they come."""

    media_type: str
    pieces: AsyncGenerator[bytes, None]


@dataclass(frozen=True, slots=True)
class Document:
    """An answer that is no shape of the API: its media type, and its bytes."""

    media_type: str
    body: bytes


Answer = msgspec.Struct | tuple[HTTPStatus, msgspec.Struct] | Stream | Document
Handler = Callable[[Request], Awaitable[Answer]]

__all__ = ["Answer", "ApiError", "Document", "Handler", "Management", "Request", "Stream"]
