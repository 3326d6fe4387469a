"""What servers say is harmless on a terminal; figures read well."""

import json
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coffer_cli import text

HOSTILE = "a\x1b[31mred\x07\r\nrow\u202e\u2066\u200b\u2028\x9b\ud800\U000e0041\ufeffz"


@given(st.text(alphabet=st.characters()))
def test_a_cell_never_holds_what_moves_a_cursor_or_begins_a_row(said: str) -> None:
    """K14: control characters and bidi overrides from servers are escaped, line ends included."""
    shown = text.safe(said)
    assert text.safe(shown) == shown
    assert not {category(character) for character in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


def test_what_is_hidden_shows_as_an_escape() -> None:
    """K14: nothing is dropped silently; one sees that it was there."""
    assert text.safe(HOSTILE) == (
        "a\\x1b[31mred\\x07\\r\\nrow\\u202e\\u2066\\u200b\\u2028\\x9b\\ud800\\U000e0041\\ufeffz"
    )


def test_a_block_keeps_its_lines_and_tabs_only() -> None:
    """K14: a tool's text of several lines stays readable and harmless."""
    assert text.safe_block("one\r\n\ttwo\x1b[2J\rthree\n") == "one\n\ttwo\\x1b[2J\\rthree\n"


def test_json_keeps_hostile_characters_as_json_escapes() -> None:
    """K14: `--json` gives the same value back, with nothing for a terminal to obey."""
    value = {"name": "a\u202e\U000e0041\x7f\x9b", "kept": "é漢"}
    shown = text.safe_json(json.dumps(value, ensure_ascii=False, indent=2))
    assert json.loads(shown) == value
    assert "\u202e" not in shown
    assert "\x9b" not in shown
    assert "é漢" in shown


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "-"),
        (0.42, "0.4 s"),
        (41.2, "41.2 s"),
        (116.4, "1m 56s"),
        (181, "3m 1s"),
        (659, "10m"),
        (7860, "2h 11m"),
        (5 * 86_400 + 7200, "5d 2h"),
    ],
)
def test_durations_are_for_people(seconds: float | None, words: str) -> None:
    assert text.duration(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (61_000_000, "61 MB"), (5 * 10**15, "5000 TB")],
)
def test_sizes_are_for_people(count: int | None, words: str) -> None:
    assert text.size(count) == words


def test_times_are_local_and_nonsense_stays_harmless() -> None:
    assert text.local_time(None) == "-"
    assert text.local_time("2026-05-20T12:34:56Z")[:4] == "2026"
    assert text.local_time("soon\n") == "soon\\n"


def test_short_forms() -> None:
    assert text.shortened("abcdef", 4) == "abc…"
    assert text.shortened("abcd", 4) == "abcd"
    assert text.counted(1, "tool") == "1 tool"
    assert text.counted(0, "tool") == "0 tools"
    assert text.listed(["a", "b"], 2) == "a  b"
    assert text.listed(["a", "b", "c"], 2) == "a  b  …"


@pytest.mark.parametrize(
    ("value", "most", "drawn"),
    [(0, 8, ""), (1, 0, ""), (8, 8, "████"), (4, 8, "██"), (3, 8, "█▌"), (0.001, 8, "▏"), (9, 8, "████")],
)
def test_bars_show_a_share_and_hide_nothing(value: float, most: float, drawn: str) -> None:
    """Of four characters at most; whatever is more than nothing is seen."""
    assert text.bar(value, most, 4) == drawn
