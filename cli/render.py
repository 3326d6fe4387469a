"""Everything a command prints: tables, trees, blocks, JSON, errors. The only module that imports rich, and late.

Owns stdout's form. Every text of a server passes ``text.safe`` before it reaches a terminal; rich's markup is never
interpreted. Never decides what is worth showing.
"""

import io
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from coffer_cli.text import safe, safe_block, safe_json

Justify = Literal["left", "right"]
_PIPED_WIDTH: Final = 4096
_FOLDED_WIDTH: Final = 24
_PLAIN: Final[dict[str, Any]] = {"highlight": False, "markup": False, "emoji": False}
_STYLES: Final = {
    "ready": "green",
    "starting": "cyan",
    "stopping": "cyan",
    "backoff": "yellow",
    "needs_login": "yellow",
    "failed": "red",
    "disabled": "dim",
    "stopped": "dim",
    "ok": "green",
    "warn": "yellow",
    "fail": "red",
    "error": "red",
    "timeout": "red",
    "denied": "yellow",
    "cancelled": "yellow",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table. ``fold``: may be broken over lines; others are never cut where there is room."""

    title: str
    justify: Justify = "left"
    fold: bool = False


def number(title: str) -> Column:
    """A column of figures."""
    return Column(title, "right")


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Prints rows under headings. Each cell is one line, whatever is in it; states are coloured.

    Nothing is cut away on a narrow terminal: what may be folded stands below its row, and where the rest is still
    too wide, each row is a paragraph.
    """
    cells = [[safe(cell) for cell in row] for row in rows]
    narrow = sys.stdout.isatty()
    if not narrow or _least_width(columns, cells, _FOLDED_WIDTH) <= _width():
        _show(_grid(columns, cells))
    elif _least_width(columns, cells, None) <= _width():
        _show_with_remarks(columns, cells)
    else:
        _show(_paragraphs(columns, cells, _width()))


def live(pictures: Iterable[tuple[str, Sequence[Column], Sequence[Sequence[str]]]]) -> None:
    """Shows (heading, columns, rows) one after another in the same place of a terminal, until they end."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(file=sys.stdout, **_PLAIN), screen=True, auto_refresh=False) as shown:
        for heading, columns, rows in pictures:
            cells = [[safe(cell) for cell in row] for row in rows]
            shown.update(Group(Text(safe(heading)), Text(), _grid(columns, cells)), refresh=True)


def is_terminal() -> bool:
    """Whether somebody looks at what is printed."""
    return sys.stdout.isatty()


def _grid(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, header_style="bold", pad_edge=True, padding=(0, 1))
    for column in columns:
        shown.add_column(
            column.title,
            justify=column.justify,
            overflow="fold" if column.fold else "ellipsis",
            no_wrap=not column.fold,
        )
    for row in rows:
        shown.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    return shown


def _least_width(columns: Sequence[Column], rows: Sequence[Sequence[str]], folded: int | None) -> int:
    """What a table of whole cells takes. ``folded``: room for what may be folded; None where that is elsewhere."""
    from rich.cells import cell_len

    total = 0
    for number, column in enumerate(columns):
        if column.fold and folded is None:
            continue
        widest = max(cell_len(text) for text in (column.title, *(row[number] for row in rows)))
        total += 2 + (min(widest, folded) if column.fold and folded is not None else widest)
    return total


def _show_with_remarks(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """The table without what may be folded, which follows below its row."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    kept = [number for number, column in enumerate(columns) if not column.fold]
    console = Console(file=sys.stdout, width=_width(), **_PLAIN)
    with console.capture() as drawn:
        console.print(_grid([columns[number] for number in kept], [[row[number] for number in kept] for row in rows]))
    headings, *lines = drawn.get().splitlines()
    sys.stdout.write(f"{headings}\n")
    for row, line in zip(rows, lines, strict=True):
        sys.stdout.write(f"{line}\n")
        for number, column in enumerate(columns):
            if column.fold and row[number] not in ("", "-"):
                console.print(Padding(Text(row[number], style="dim"), (0, 0, 0, 4)))


def _paragraphs(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Any:
    """Each row as ``title cell`` pairs, as many as fit a line, all but the first line indented."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    lines: list[Any] = []
    for row in rows:
        line, indent = Text(), 0
        for column, cell in zip(columns, row, strict=True):
            if cell in ("", "-"):
                continue
            pair = Text.assemble((f"{column.title.lower()} ", "dim"), (cell, _STYLES.get(cell, "")))
            if line and indent + line.cell_len + 2 + pair.cell_len > width:
                lines.append(Padding(line, (0, 0, 0, indent)))
                line, indent = Text(), 2
            line = Text.assemble(line, "  " if line else "", pair)
        lines.append(Padding(line, (0, 0, 0, indent)))
    return Group(*lines)


@dataclass(frozen=True, slots=True)
class Node:
    """One line of a tree, and what hangs below it."""

    label: str
    below: Sequence["Node"] = ()
    faint: bool = False


def tree(root: Node) -> None:
    """Prints a tree."""
    from rich.text import Text
    from rich.tree import Tree

    def grow(node: Node) -> Tree:
        branch = Tree(Text(safe(node.label), style="dim" if node.faint else ""), guide_style="dim")
        branch.children = [grow(child) for child in node.below]
        return branch

    _show(grow(root))


def line(text: str = "") -> None:
    """One line of Coffer's own and of servers' words; nothing in it makes a second."""
    sys.stdout.write(safe(text) + "\n")


def block(text: str) -> None:
    """Text of several lines, harmless."""
    sys.stdout.write(safe_block(text).rstrip("\n") + "\n")


def exact(text: str) -> None:
    """The person's own text, as it is: what is piped on must arrive unchanged."""
    sys.stdout.write(f"{text}\n")


def data(shape: msgspec.Struct) -> None:
    """``--json``: the shape as it came over the wire, indented; numbers keep their spelling."""
    sys.stdout.write(as_json(msgspec.json.encode(shape)) + "\n")


def as_json(raw: bytes) -> str:
    """JSON for people's eyes and for programs: indented, unsafe characters as JSON escapes."""
    return safe_json(msgspec.json.format(raw, indent=2).decode())


def json_line(raw: bytes) -> str:
    """JSON on one line, for logs that are followed."""
    return safe_json(raw.decode())


def emit(
    as_data: bool,
    shape: msgspec.Struct,
    human: Callable[[], None],
    *,
    quiet: bool = False,
    names: Iterable[str] = (),
) -> None:
    """``shape`` as JSON; or its ``names`` alone, a line each (where ``quiet``); or the same facts for people."""
    if as_data:
        data(shape)
    elif quiet:
        for name in names:
            line(name)
    else:
        human()


def error(message: str, hint: str = "") -> None:
    """What happened and what to do next, on stderr. Further lines of a server's words are marked as such."""
    first, *more = safe_block(message).splitlines() or [""]
    lines = [f"error: {first}", *(f"  | {one}" for one in more), *(f"  {one}" for one in safe_block(hint).splitlines())]
    sys.stderr.write("\n".join(lines) + "\n")


def note(text: str) -> None:
    """A remark beside the result, on stderr."""
    sys.stderr.write(safe_block(text) + "\n")


class Progress:
    """One line on a terminal's stderr that is written over; elsewhere each new phase is a line."""

    def __init__(self, quiet: bool) -> None:
        self._live = sys.stderr.isatty() and not quiet
        self._quiet = quiet
        self._phase = ""
        self._open = False

    def show(self, phase: str, figures: str) -> None:
        """``phase``: what is being done. ``figures``: what changes all the time, for terminals only."""
        if self._live:
            sys.stderr.write(f"\r\x1b[2K{safe(f'{phase} {figures}')[: _width() - 1]}")
            sys.stderr.flush()
            self._open = True
        elif phase != self._phase and not self._quiet:
            sys.stderr.write(safe(phase) + "\n")
        self._phase = phase

    def clear(self) -> None:
        """Takes the line away before the result is printed."""
        if self._open:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._open = False


def _width() -> int:
    import shutil

    return max(20, shutil.get_terminal_size().columns)


def _show(renderable: Any) -> None:
    """To a terminal at its width; to a pipe whole, and without the blanks that fill a line."""
    from rich.console import Console

    if sys.stdout.isatty():
        Console(file=sys.stdout, width=_width(), **_PLAIN).print(renderable)
        return
    whole = io.StringIO()
    Console(file=whole, width=_PIPED_WIDTH, **_PLAIN).print(renderable)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in whole.getvalue().splitlines()))
