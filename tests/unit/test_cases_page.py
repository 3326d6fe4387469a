"""`docs/cases.md` is true: the tests it names exist and bear the case's id, and no id that a test bears is missing."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "cases.md"
AREAS = "FSNCRILVHPDKEQ"
CASE = re.compile(rf"\b([{AREAS}][01]\d)\b")
NAMED = re.compile(r"`([a-z0-9_/]+\.py)::([a-z0-9_]+)`")


def rows() -> list[tuple[str, list[str]]]:
    """Case id and the other cells of each row."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(rf"\| [{AREAS}]\d\d ", line)]
    return [(cells[0], cells[1:]) for cells in ([c.strip() for c in line.strip("|").split("|")] for line in lines)]


@cache
def cited(path: Path) -> dict[str, frozenset[str]]:
    """Test function -> the ids it bears, decorators and comments included."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            found[node.name] = frozenset(CASE.findall("\n".join(lines[first - 1 : node.end_lineno])))
    return found


def test_each_case_stands_once_and_says_what_and_how() -> None:
    ids = [case for case, _ in rows()]
    assert len(ids) == len(set(ids)) >= 134
    for case, cells in rows():
        assert len(cells) == 3, case
        assert all(cells), case
        assert NAMED.search(cells[2]) or "open: " in cells[2], f"{case} names no test and is not open"


def test_each_test_that_is_named_exists_and_bears_the_id() -> None:
    for case, cells in rows():
        for file, name in NAMED.findall(cells[2]):
            path = TESTS / file
            assert path.is_file(), f"{case}: there is no tests/{file}"
            assert name in cited(path), f"{case}: tests/{file} has no {name}"
            assert case in cited(path)[name], f"{case}: {file}::{name} does not name it"


def test_each_id_that_a_test_bears_is_on_the_page() -> None:
    known = {case for case, _ in rows()}
    for path in sorted(TESTS.rglob("test_*.py")):
        for name, ids in cited(path).items():
            assert ids <= known, f"{path.name}::{name}: {sorted(ids - known)} not in docs/cases.md"
