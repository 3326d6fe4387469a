"""`docs/frames.md` and the code say the same: each frame, field, order, default and socket pair."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import msgspec

from coffer_common import frames

PAGE = Path(__file__).resolve().parents[2] / "docs" / "frames.md"
Row = tuple[str, str, str]


def tables(title: str) -> list[list[str]]:
    """The cells of the table under a heading, its head left out."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip().strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def documented(title: str, first: int) -> dict[str, list[tuple[str, str]]]:
    """Structure -> (field, default) in order; ``first`` is the column of the field."""
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for row in tables(title):
        name = row[0].split(" ")[0] or name
        found.setdefault(name, []).append((row[first], row[first + 1].strip("`")))
        assert row[first + 2], f"{name}.{row[first]} has no meaning"
    return found


def in_code(struct: Any) -> list[tuple[str, str]]:
    """The same, from the class."""
    rows = []
    for field in msgspec.structs.fields(struct):
        if field.default is not msgspec.NODEFAULT:
            default = repr(field.default).replace("'", '"')
        elif field.default_factory is not msgspec.NODEFAULT:
            default = repr(field.default_factory())
        else:
            default = ""
        rows.append((field.name, default))
    return rows


def names(union: Any) -> dict[str, Any]:
    return {struct.__name__: struct for struct in get_args(union)}


def test_every_field_of_every_frame_is_documented_in_order() -> None:
    for title, union in (("From the supervisor", frames.FromSupervisor), ("From the worker", frames.FromWorker)):
        expected = {name: in_code(struct) for name, struct in names(union).items()}
        assert documented(title, 3) == expected
        assert list(documented(title, 3)) == list(expected)


def test_shared_structures() -> None:
    expected = {struct.__name__: in_code(struct) for struct in (frames.Caller, frames.CatalogueEntry)}
    assert documented("Shared structures", 1) == expected


def test_tags_and_pairs() -> None:
    for title, union in (("From the supervisor", frames.FromSupervisor), ("From the worker", frames.FromWorker)):
        for row in tables(title):
            if not row[0]:
                continue
            match = re.fullmatch(r"(\w+) \(`([\w-]+)`\)", row[0])
            assert match is not None, row[0]
            struct = names(union)[match.group(1)]
            assert struct.__struct_config__.tag == match.group(2)
            pair = "both" if struct is frames.Hello else "control" if struct in frames.CONTROL else "bulk"
            assert row[1] == pair, row[0]


def test_the_version() -> None:
    assert f"Version {frames.PROTOCOL_VERSION} " in PAGE.read_text(encoding="utf-8")
