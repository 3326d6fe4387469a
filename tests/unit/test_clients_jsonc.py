"""Splicing JSON with comments: the entry changes, every other character stays."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coffer_cli.clients import jsonc

SETTINGS = """\
\ufeff// mine
{
    /* servers */
    "mcpServers": {
        "files": { "command": "npx", "args": ["-y", "x",] }, // the files
        // not now
        "git": {"command": "git-mcp"} // last
    },
    "theme" :"dark",
}
"""
ENTRY = {"command": "/bin/coffer-shim", "args": [], "env": {"A": "b"}}


def test_reads_comments_trailing_commas_and_a_mark() -> None:
    """Configuration as people write it: comments, trailing commas, a byte order mark."""
    assert jsonc.parse(SETTINGS).value == {
        "mcpServers": {"files": {"command": "npx", "args": ["-y", "x"]}, "git": {"command": "git-mcp"}},
        "theme": "dark",
    }
    assert jsonc.parse('[1, -2.5e3, true, false, null, "\\u00e9", [], {}]').value == [
        1, -2500.0, True, False, None, "é", [], {},
    ]  # fmt: skip
    assert jsonc.parse('{"a": 1, "a": 2}').member("a").node.value == 2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ('{"a": 1', 1, 8),
        ('{\n  "a" 1}', 2, 7),
        ('{"a": }', 1, 7),
        ('{"a":', 1, 6),
        ('{a: 1}', 1, 2),
        ('{"a": "b', 1, 7),
        ('{"a": "\\x"}', 1, 7),
        ('{"a": 1 "b": 2}', 1, 9),
        ("[1 2]", 1, 4),
        ("[,]", 1, 2),
        ("{} {}", 1, 4),
        ("/* x", 1, 1),
        ("[" * 200, 1, 102),
    ],
)  # fmt: skip
def test_refuses_with_line_and_column(text: str, line: int, column: int) -> None:
    """D08: what cannot be read is refused with its line and column."""
    with pytest.raises(jsonc.JsoncError) as caught:
        jsonc.parse(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert f"line {line}, column {column}: " in str(caught.value)


def test_adds_behind_the_last_and_keeps_each_remark_where_it_was() -> None:
    """D09: only the own entry changes; comments, order and formatting stay."""
    made = jsonc.put(SETTINGS, ("mcpServers", "coffer"), ENTRY)
    assert made == SETTINGS.replace(
        '"git": {"command": "git-mcp"} // last\n',
        '"git": {"command": "git-mcp"}, // last\n'
        '        "coffer": {\n            "command": "/bin/coffer-shim",\n            "args": [],\n'
        '            "env": {\n                "A": "b"\n            }\n        }\n',
    )
    assert jsonc.remove(made, ("mcpServers", "coffer")) == SETTINGS
    changed = jsonc.put(made, ("mcpServers", "coffer"), {"command": "x"})
    assert jsonc.parse(changed).value["mcpServers"]["coffer"] == {"command": "x"}
    assert jsonc.remove(changed, ("mcpServers", "coffer")) == SETTINGS


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '{\n  "s": {\n    "k": 1\n  }\n}\n'),
        ("// only this", '// only this\n{\n  "s": {\n    "k": 1\n  }\n}\n'),
        ("{}", '{\n  "s": {\n    "k": 1\n  }\n}'),
        ('{"s": {}}', '{"s": {\n  "k": 1\n}}'),
        ('{"s": {"a": 1}}', '{"s": {"a": 1, "k": 1}}'),
        ('{"s": {"a": 1,}}', '{"s": {"a": 1, "k": 1,}}'),
        ('{"s": {"k": 7}}', '{"s": {"k": 1}}'),
        ('{\n\t"s": {\n\t\t"a": 1,\n\t},\n}', '{\n\t"s": {\n\t\t"a": 1,\n\t\t"k": 1,\n\t},\n}'),
        ('{\r\n "s": {\r\n  "a": 1 // x\r\n }\r\n}', '{\r\n "s": {\r\n  "a": 1, // x\r\n  "k": 1\r\n }\r\n}'),
        ('{\n "s": {\n  "a": 1 /* x\n y */ }\n}', '{\n "s": {\n  "a": 1, /* x\n y */\n  "k": 1 }\n}'),
        ('{\n "s": {\n  "a": 1 }\n}', '{\n "s": {\n  "a": 1,\n  "k": 1 }\n}'),
        ('{\n "s": {\n  // none yet\n }\n}', '{\n "s": {\n  // none yet\n  "k": 1\n }\n}'),
        ('{"a": 1}', '{"a": 1, "s": {"k": 1}}'),
    ],
)  # fmt: skip
def test_puts_in_the_style_of_the_file(before: str, after: str) -> None:
    """D09: odd formatting is kept, and followed."""
    assert jsonc.put(before, ("s", "k"), 1) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"k": 1}', "{}"),
        ('{"k": 1, "b": 2}', '{"b": 2}'),
        ('{"a": 1, "k": 2}', '{"a": 1}'),
        ('{"a": 1, "k": 2,}', '{"a": 1}'),
        ('{"a": 1, "k": 2, "b": 3}', '{"a": 1, "b": 3}'),
        ('{\n  "k": 1,\n  "b": 2\n}', '{\n  "b": 2\n}'),
        ('{\n  "b": 1,\n  "k": 2\n}', '{\n  "b": 1\n}'),
        ('{\n  "b": 1,\n  "k": 2,\n}', '{\n  "b": 1,\n}'),
        ('{\n  "k": 2\n}', "{}"),
        ('{\n  // mine\n  "k": 2\n}', "{\n  // mine\n}"),
        ('{\r\n  "k": 1,\r\n  "b": 2\r\n}', '{\r\n  "b": 2\r\n}'),
        ('{"b": 2}', '{"b": 2}'),
    ],
)  # fmt: skip
def test_removes_one_member(before: str, after: str) -> None:
    """D09: uninstalling takes out the own entry alone."""
    made = jsonc.remove(before, ("k",))
    assert jsonc.parse(made).value == jsonc.parse(after).value
    assert made == after or "{" in made
    assert jsonc.remove(before, ("none", "k")) == before


def test_refuses_what_is_no_object() -> None:
    """D09: what stands where servers should be is nobody's to replace."""
    for text in ("[]", '{"s": 3}'):
        with pytest.raises(jsonc.JsoncError, match="an object"):
            jsonc.put(text, ("s", "k"), 1)
    assert jsonc.remove('{"s": 3}', ("s", "k")) == '{"s": 3}'


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=4), below, max_size=3),
    max_leaves=8,
)
tables = st.dictionaries(st.text(max_size=5), values, max_size=4)


@given(
    tables,
    tables,
    st.text(max_size=5),
    values,
    st.tuples(st.sampled_from([None, 1, 2, "\t"]), st.booleans(), st.booleans()),
)
def test_an_edit_changes_one_member_and_can_be_undone(
    servers: dict[str, Any], others: dict[str, Any], key: str, value: Any, style: tuple[Any, bool, bool]
) -> None:
    """For every document: the one member is set, all others are as they were, and removing it gives the old text."""
    indent, ascii_, windows = style
    servers.pop(key, None)
    document = {**others, "s": servers}
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_)
    text = text.replace("\n", "\r\n") if windows else text
    made = jsonc.put(text, ("s", key), value)
    assert jsonc.parse(made).value == {**document, "s": {**servers, key: value}}
    back = jsonc.remove(made, ("s", key))
    assert back == text


@given(st.text(alphabet='{}[]:,"/*\n a1\\\ufeff', max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing but a JsoncError ever comes out of a broken file."""
    with suppress(jsonc.JsoncError):
        jsonc.parse(text)
