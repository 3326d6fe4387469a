"""JSON as people write it in configuration files: comments, trailing commas, a byte order mark; read and spliced.

Owns finding the exact place of a member in a text, and adding, changing or removing one so that every other character
stays as it is. Pure; never re-serialises what it did not write.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

BOM: Final = "\ufeff"
_MAX_DEPTH: Final = 100
_SPACE: Final = " \t\r\n"
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_WORDS: Final[dict[str, Any]] = {"true": True, "false": False, "null": None}


class JsoncError(ValueError):
    """The text cannot be read. ``line`` and ``column`` count from 1."""

    def __init__(self, text: str, at: int, what: str) -> None:
        self.line = text.count("\n", 0, at) + 1
        self.column = at - (text.rfind("\n", 0, at) + 1) + 1
        self.what = what
        super().__init__(f"line {self.line}, column {self.column}: {what}")


@dataclass(slots=True)
class Member:
    """One ``key: value``; ``comma`` is the place of the comma behind it, -1 without one."""

    key: str
    start: int
    node: "Node"
    comma: int = -1


@dataclass(slots=True)
class Node:
    """A value and its place, ``text[start:end]``. ``members`` is empty for what is no object."""

    start: int
    end: int
    value: Any
    members: list[Member] = field(default_factory=list)

    def member(self, key: str) -> Member | None:
        """The member that counts: of several with one name the last, as every reader has it."""
        return next((one for one in reversed(self.members) if one.key == key), None)


def parse(text: str) -> Node:
    """The tree of ``text``. An empty text is an empty object at its end. Raises JsoncError."""
    reader = _Reader(text)
    at = reader.skip(1 if text.startswith(BOM) else 0)
    if at == len(text):
        return Node(at, at, {})
    node = reader.value(at, 0)
    rest = reader.skip(node.end)
    if rest != len(text):
        raise JsoncError(text, rest, "there is more behind the end of the value")
    return node


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text

    def skip(self, at: int) -> int:
        """Where the next token begins: behind blanks and comments."""
        while at < len(self.text):
            if self.text[at] in _SPACE:
                at += 1
            elif self.text.startswith("//", at):
                end = self.text.find("\n", at)
                at = len(self.text) if end < 0 else end
            elif self.text.startswith("/*", at):
                end = self.text.find("*/", at + 2)
                if end < 0:
                    raise JsoncError(self.text, at, "this comment has no end")
                at = end + 2
            else:
                break
        return at

    def value(self, at: int, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise JsoncError(self.text, at, "this is nested too deeply")
        first = self.text[at : at + 1]
        if first == "{":
            return self._object(at, depth)
        if first == "[":
            return self._array(at, depth)
        if first == '"':
            return self._string(at)
        number = _NUMBER.match(self.text, at)
        if number is not None:
            return Node(at, number.end(), json.loads(number.group()))
        for word, value in _WORDS.items():
            if self.text.startswith(word, at):
                return Node(at, at + len(word), value)
        raise JsoncError(self.text, at, "a value is missing here" if first else "the text ends too early")

    def _string(self, at: int) -> Node:
        found = _STRING.match(self.text, at)
        if found is None:
            raise JsoncError(self.text, at, "this string has no end, or holds a control character")
        try:
            return Node(at, found.end(), json.loads(found.group()))
        except ValueError as error:
            raise JsoncError(self.text, at, "this string holds an escape that is none") from error

    def _array(self, at: int, depth: int) -> Node:
        values: list[Any] = []
        place = self.skip(at + 1)
        while not self.text.startswith("]", place):
            node = self.value(place, depth + 1)
            values.append(node.value)
            place, _ = self._comma(node.end, "]")
        return Node(at, place + 1, values)

    def _object(self, at: int, depth: int) -> Node:
        members: list[Member] = []
        place = self.skip(at + 1)
        while not self.text.startswith("}", place):
            if not self.text.startswith('"', place):
                raise JsoncError(self.text, place, 'a name in "quotes" or } is missing here')
            key = self._string(place)
            colon = self.skip(key.end)
            if not self.text.startswith(":", colon):
                raise JsoncError(self.text, colon, "a colon is missing here")
            member = Member(key.value, place, self.value(self.skip(colon + 1), depth + 1))
            place, member.comma = self._comma(member.node.end, "}")
            members.append(member)
        return Node(at, place + 1, {one.key: one.node.value for one in members}, members)

    def _comma(self, at: int, closing: str) -> tuple[int, int]:
        """(where the next element or the closing bracket is, the comma's place or -1)."""
        place = self.skip(at)
        if self.text.startswith(",", place):
            return self.skip(place + 1), place
        if not self.text.startswith(closing, place):
            raise JsoncError(self.text, place, f"a comma or {closing} is missing here")
        return place, -1


def put(text: str, path: tuple[str, ...], value: Any) -> str:
    """``text`` with the member at ``path`` set; objects on the way are made. Raises JsoncError.

    A JsoncError too where something on the way is no object: what is there is nobody's to replace.
    """
    root = parse(text)
    if root.start == root.end:
        newline = _newline(text)
        body = _written(_nested(path, value), "", "  ", newline)
        return f"{text}{body}{newline}" if text.endswith(("\n", BOM)) or not text else f"{text}{newline}{body}{newline}"
    holder, left = root, list(path)
    while True:
        if not isinstance(holder.value, dict):
            raise JsoncError(text, holder.start, "an object { } is expected here")
        key = left.pop(0)
        found = holder.member(key)
        if found is None:
            return _insert(text, holder, key, _nested(tuple(left), value))
        if not left:
            indent, unit = _indent(text, found.start), _unit(text)
            written = _written(value, indent, unit, _newline(text))
            return text[: found.node.start] + written + text[found.node.end :]
        holder = found.node


def remove(text: str, path: tuple[str, ...]) -> str:
    """``text`` without the member at ``path``; unchanged where there is none. Raises JsoncError."""
    holder = parse(text)
    for key in path[:-1]:
        found = holder.member(key)
        if found is None:
            return text
        holder = found.node
    gone = holder.member(path[-1])
    return text if gone is None else _cut(text, holder, gone)


def _insert(text: str, holder: Node, key: str, value: Any) -> str:
    newline, unit = _newline(text), _unit(text)
    name = json.dumps(key, ensure_ascii=False)
    if not holder.members:
        outer = _indent(text, holder.start)
        inner = text[holder.start + 1 : holder.end - 1].rstrip()
        written = _written(value, outer + unit, unit, newline)
        body = f"{inner}{newline}{outer}{unit}{name}: {written}{newline}{outer}"
        return text[: holder.start + 1] + body + text[holder.end - 1 :]
    first, last = holder.members[0], holder.members[-1]
    if "\n" not in text[holder.start : first.start]:
        return f"{text[: last.node.end]}, {name}: {_compact(value)}{text[last.node.end :]}"
    indent = _indent(text, first.start)
    member = f"{newline}{indent}{name}: {_written(value, indent, unit, newline)}"
    if last.comma >= 0:
        at = _line_end(text, last.comma + 1, holder.end - 1)
        return f"{text[:at]}{member},{text[at:]}"
    at = _line_end(text, last.node.end, holder.end - 1)
    return f"{text[: last.node.end]},{text[last.node.end : at]}{member}{text[at:]}"


def _line_end(text: str, at: int, end: int) -> int:
    """Behind what else stands on this line up to ``end``: a remark there belongs to what is before it."""
    place = at
    while place < end:
        if text.startswith("/*", place):
            at = place = text.index("*/", place + 2) + 2
        elif text.startswith("//", place):
            found = text.find("\n", place)
            return found - 1 if text[found - 1] == "\r" else found
        elif text[place] in " \t":
            place += 1
        else:
            break
    return at


def _cut(text: str, holder: Node, gone: Member) -> str:
    start, end = gone.start, gone.node.end if gone.comma < 0 else gone.comma + 1
    index = next(at for at, one in enumerate(holder.members) if one is gone)
    head = text[:start].rstrip(" \t")
    own_line = head.endswith("\n")
    if own_line:
        start = len(head) - (2 if head.endswith("\r\n") else 1)
    elif gone.comma >= 0 and index + 1 < len(holder.members):
        end += len(text[end:]) - len(text[end:].lstrip(" \t"))
    elif index > 0:
        start = len(head)
    before = text[:start]
    if gone.comma < 0 and index > 0:
        comma = holder.members[index - 1].comma
        before = text[:comma] + text[comma + 1 : start]
    elif gone.comma >= 0 and index > 0 and index + 1 == len(holder.members) and not own_line:
        before = text[:start].rstrip(" \t")
    left = before + text[end:]
    if len(holder.members) == 1 and not left[holder.start + 1 : holder.end - 1 - (len(text) - len(left))].strip():
        return text[: holder.start] + "{}" + text[holder.end :]
    return left


def _nested(path: tuple[str, ...], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _written(value: Any, indent: str, unit: str, newline: str) -> str:
    """``value`` over several lines, short lists on one; the first line is not indented."""
    if not isinstance(value, dict) or not value:
        return _compact(value)
    rows = [
        f"{indent}{unit}{json.dumps(key, ensure_ascii=False)}: {_written(one, indent + unit, unit, newline)}"
        for key, one in value.items()
    ]
    return "{" + newline + f",{newline}".join(rows) + newline + indent + "}"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _indent(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at].removeprefix(BOM)
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    """The step of indentation that the text uses first; two blanks where it uses none."""
    found = re.search(r'^([ \t]+)"', text, re.MULTILINE)
    return found.group(1) if found else "  "
