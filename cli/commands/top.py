"""``coffer top``: how the servers are, kept current until you leave; what hangs, computes or grows stands first."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import msgspec
import typer

from coffer_cli import client, render
from coffer_cli.commands.mcp_wait import brief
from coffer_cli.options import Json, Quiet
from coffer_cli.text import duration, shortened, size
from coffer_common.api import Process, PsList, PsRow, ServerRemoved

_COLUMNS = (
    render.Column("SERVER"),
    render.Column("PID"),
    render.Column("STATE"),
    render.number("CONN"),
    render.number("IN FLIGHT"),
    render.Column("OLDEST CALL"),
    render.number("CPU"),
    render.number("RSS"),
    render.number("RST"),
    render.Column("LAST ERROR"),
)


@dataclass(slots=True)
class Board:
    """The rows as last told, and the CPU seconds of each process when they were."""

    rows: dict[str, PsRow] = field(default_factory=dict)
    percent: dict[str, float] = field(default_factory=dict)
    _cpu: dict[int, tuple[float, float]] = field(default_factory=dict)

    def take(self, name: str, data: bytes, now: float) -> None:
        """One event of ``/events``; unknown ones are passed over. ``now``: seconds of any steady clock."""
        if name == "state":
            self.rows = {row.name: row for row in msgspec.json.decode(data, type=PsList).workers}
        elif name == "server":
            row = msgspec.json.decode(data, type=PsRow)
            self.rows[row.name] = row
            self.percent[row.name] = sum(self._percent(process, now) for process in row.upstreams)
        elif name == "removed":
            self.rows.pop(msgspec.json.decode(data, type=ServerRemoved).name, None)

    def _percent(self, process: Process, now: float) -> float:
        before, since = self._cpu.get(process.pid, (process.cpu_seconds, now))
        self._cpu[process.pid] = (process.cpu_seconds, now)
        return max(0.0, process.cpu_seconds - before) / (now - since) * 100 if now > since else 0.0

    def lines(self) -> list[Sequence[str]]:
        """The table: the longest call first, then the busiest, then by name."""
        order = sorted(
            self.rows.values(), key=lambda r: (-(r.oldest_seconds or 0.0), -self.percent.get(r.name, 0), r.name)
        )
        return [self._line(row) for row in order]

    def _line(self, row: PsRow) -> Sequence[str]:
        oldest = (
            "-" if row.oldest_seconds is None else f"{shortened(row.oldest_key, 30)}  {duration(row.oldest_seconds)}"
        )
        rss = (row.rss or 0) + sum(process.rss for process in row.upstreams)
        return (
            row.name,
            f"{row.worker_pid or '-'}{' (stop)' if row.worker_stopped else ''}",
            row.state,
            str(row.connections),
            str(row.in_flight),
            oldest,
            f"{self.percent.get(row.name, 0):.0f} %",
            size(rss or None),
            str(row.restarts),
            shortened(brief(row.name, row.last_error), 80) or "-",
        )

    def heading(self) -> str:
        """One line over the table."""
        ready = sum(row.state == "ready" for row in self.rows.values())
        calls = sum(row.in_flight for row in self.rows.values())
        return f"coffer top: {len(self.rows)} servers, {ready} ready, {calls} calls in flight; Ctrl-C leaves"


def add_to(root: typer.Typer) -> None:
    """``coffer top`` stands at the top."""
    root.command("top", epilog="Example: coffer top")(top)


def top(
    once: Annotated[bool, typer.Option("--once", help="Print it once and leave.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Watch workers, calls, CPU and memory; where nobody looks (or with --once) printed once."""
    events = client.connect().events("/events")
    board = Board()
    if once or as_json or quiet or not render.is_terminal():
        name, data = next(events)
        board.take(name, data, time.monotonic())
        table = partial(render.table, _COLUMNS, board.lines())
        render.emit(as_json, msgspec.json.decode(data, type=PsList), table, quiet=quiet, names=board.rows)
        return
    render.live(_pictures(board, events))


def _pictures(
    board: Board, events: Iterator[tuple[str, bytes]]
) -> Iterator[tuple[str, Sequence[render.Column], Sequence[Sequence[str]]]]:
    for name, data in events:
        board.take(name, data, time.monotonic())
        yield board.heading(), _COLUMNS, board.lines()
