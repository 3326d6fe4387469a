"""Following a log: the rows there are, then each new one a line of its own, until the person leaves.

Owns the asking for more and the order of lines. Never asks more than once a second while nothing is new.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, NoReturn, Protocol, TypeVar

import msgspec

from coffer_cli import render

PAGE: Final = 1000
_SECONDS: Final = 1.0


class _Numbered(Protocol):
    @property
    def id(self) -> int: ...


Row = TypeVar("Row", bound=_Numbered)


def follow(
    first: Sequence[Row], after: Callable[[int], Sequence[Row]], line: Callable[[Row], str], *, as_json: bool
) -> NoReturn:
    """``first``: the newest rows, newest first. ``after(id)``: at most ``PAGE`` rows with a larger id, newest first.

    With ``as_json`` each row is one line of JSON.
    """
    rows, last = first, 0
    while True:
        for row in reversed(rows):
            render.line(render.json_line(msgspec.json.encode(row)) if as_json else line(row))
            last = row.id
        sys.stdout.flush()
        if len(rows) < PAGE or rows is first:
            time.sleep(_SECONDS)
        rows = after(last)
