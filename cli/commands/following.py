"""Following a log: the rows there are, then each new one as it comes, until the person leaves or the daemon does.

Owns the order of lines, and hearing of new ones through the daemon's events. Never asks while nothing is new.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NoReturn, Protocol, TypeVar
from urllib.parse import urlencode

import msgspec

from coffer_cli import render
from coffer_cli.client import Client
from coffer_cli.errors import CliError
from coffer_common import exits
from coffer_common.api import AuditRow, InvocationRow, LogLines

_MOST_LINES: Final = 10_000
_LOGS: Final[Mapping[type, str]] = {InvocationRow: "invocations", AuditRow: "audit"}


class _Numbered(Protocol):
    @property
    def id(self) -> int: ...


Row = TypeVar("Row", bound=_Numbered)


class _End(msgspec.Struct):
    end: int


def follow(
    daemon: Client,
    shape: type[Row],
    first: Callable[[], Sequence[Row]],
    line: Callable[[Row], str],
    *,
    wanted: Mapping[str, str | None],
    as_json: bool,
) -> NoReturn:
    """``first``: the newest rows of the log of ``shape``, newest first, as filtered; ``wanted``: what the members of a
    row must be, where not None.

    With ``as_json`` each row is one line of JSON. Raises CliError when the daemon ends.
    """
    # Whatever comes after the stream's beginning is told there, so that nothing falls between it and the first page.
    news = _heard(daemon, {"logs": _LOGS[shape]})
    there, last = first(), 0
    for row in chain(reversed(there), _matching(news, shape, wanted)):
        if row.id > last:
            last = row.id
            render.line(render.json_line(msgspec.json.encode(row)) if as_json else line(row))
            sys.stdout.flush()
    raise AssertionError("the news end in an error")


def _matching(news: Iterator[bytes], shape: type[Row], wanted: Mapping[str, str | None]) -> Iterator[Row]:
    for data in news:
        row = msgspec.json.decode(data, type=shape)
        if all(value is None or getattr(row, name) == value for name, value in wanted.items()):
            yield row


def follow_lines(
    daemon: Client, server: str, lines: Callable[[dict[str, int]], LogLines], count: int
) -> Iterator[LogLines]:
    """The last ``count`` lines of a server's log, then what comes; ``lines(page)`` asks for a page of it."""
    news = _heard(daemon, {"server_log": server})
    found = lines({"lines": count})
    while True:
        yield found
        end = found.end
        # A log that is begun anew ends earlier than it did.
        next(data for data in news if msgspec.json.decode(data, type=_End).end != end)
        found = lines({"lines": _MOST_LINES, "after": end})


def _heard(daemon: Client, query: dict[str, str]) -> Iterator[bytes]:
    events = daemon.events(f"/events?{urlencode(query)}")
    next(events, None)  # the state, before which whatever comes is not yet told
    return _only_news(events)


def _only_news(events: Iterator[tuple[str, bytes]]) -> Iterator[bytes]:
    for name, data in events:
        if name in ("invocation", "audit", "log"):
            yield data
    raise CliError(
        "coffer-daemon has stopped: nothing more will come", "start it: coffer daemon start", exits.UNREACHABLE
    )
