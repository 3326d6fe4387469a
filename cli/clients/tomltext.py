"""TOML files of clients: one table added, changed or removed, every other line as it was.

Owns that the result is read again before it is handed out: an edit that would change anything else is refused. Pure.
"""

import json
import re
import tomllib
from typing import Any, Final

_WHERE: Final = re.compile(r"\(at line (\d+), column (\d+)\)")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


class TomlError(ValueError):
    """The text cannot be read, or cannot be changed without touching what is not ours."""


def parse(text: str) -> dict[str, Any]:
    """The document. Raises TomlError with line and column."""
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        found = _WHERE.search(str(error))
        place = f"line {found.group(1)}, column {found.group(2)}: " if found else ""
        raise TomlError(f"{place}{_WHERE.sub('', str(error)).strip()}") from error


def put(text: str, path: tuple[str, ...], table: dict[str, Any]) -> str:
    """``text`` with the table at ``path``: in its old place, or at the end. Raises TomlError.

    ``table`` holds texts, numbers, truth values, lists of texts, and tables of texts.
    """
    before = parse(text)
    newline = "\r\n" if "\r\n" in text else "\n"
    block = newline.join(_block(path, table)) + newline
    span = _span(text, path)
    if span is not None:
        after = text[: span[0]] + block + text[span[1] :]
    else:
        gap = "" if not text.strip("\ufeff") else newline if text.endswith("\n") else newline * 2
        after = text + gap + block
    return _checked(after, _with(before, path, table))


def remove(text: str, path: tuple[str, ...]) -> str:
    """``text`` without the table at ``path``; unchanged where there is none. Raises TomlError."""
    before = parse(text)
    if _at(before, path) is None:
        return text
    span = _span(text, path)
    if span is None:
        raise TomlError(f"{'.'.join(path)} is not written as a table of its own; take it out by hand")
    head, tail = text[: span[0]], text[span[1] :]
    if not tail.strip():
        head = re.sub(r"(\r?\n)\r?\n$", r"\1", head)
    return _checked(head + tail, _with(before, path, None))


def _span(text: str, path: tuple[str, ...]) -> tuple[int, int] | None:
    """From the table's own head to the next head that is not below it; remarks above that one are its own."""
    start = end = -1
    at = 0
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):  # not splitlines: TOML knows no other line ends
        head = _head(line)
        ours = head[: len(path)] == path
        if start < 0 and ours:
            start = at
        elif start >= 0 and end < 0 and head and not ours:
            end = at
        at += len(line)
    if start < 0:
        return None
    if end < 0:
        return start, len(text)
    while True:
        line_start = max(text.rfind("\n", 0, end - 1) + 1, start)
        if line_start <= start or text[line_start:end].strip()[:1] not in ("", "#"):
            return start, end
        end = line_start


def _head(line: str) -> tuple[str, ...]:
    """The path that a ``[table]`` line opens; empty for any other line."""
    line = line.strip().removeprefix("\ufeff")
    if not line.startswith("["):
        return ()
    try:
        found: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return ()
    path: list[str] = []
    while found:
        if isinstance(found, list):
            found = found[0]
            continue
        key, found = next(iter(found.items()))
        path.append(key)
    return tuple(path)


def _block(path: tuple[str, ...], table: dict[str, Any]) -> list[str]:
    name = ".".join(_key(part) for part in path)
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = [f"[{name}]", *(f"{_key(key)} = {_value(value)}" for key, value in plain.items())]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += ["", *_block((*path, key), value)]
    return lines


def _key(text: str) -> str:
    return text if _BARE.fullmatch(text) else _value(text)


def _value(value: Any) -> str:
    """JSON's spelling is TOML's for all that is written here (DEL alone must be escaped too)."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _at(document: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        if not isinstance(document, dict) or key not in document:
            return None
        document = document[key]
    return document


def _with(document: dict[str, Any], path: tuple[str, ...], table: dict[str, Any] | None) -> dict[str, Any]:
    """The document that must come out; a parent that lost its last table may be gone or empty."""
    key, rest = path[0], path[1:]
    changed = dict(document)
    if rest:
        inner = changed.get(key, {})
        if not isinstance(inner, dict):
            raise TomlError(f"{key} is no table; it stays as it is")
        changed[key] = _with(inner, rest, table)
    elif table is None:
        del changed[key]
    else:
        changed[key] = table
    return changed


def _checked(text: str, wanted: dict[str, Any]) -> str:
    if _pruned(parse(text)) != _pruned(wanted):
        raise TomlError("the table cannot be changed without touching others; change it by hand")
    return text


def _pruned(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if value != {}}
