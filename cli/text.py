"""Text for people: what servers say made harmless for a terminal, and figures in words.

Owns the escaping that everything from a server goes through on its way to a terminal. No I/O, no rich.
"""

import os
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final
from unicodedata import category

# Controls; what reorders, joins or hides text (bidi marks, zero-width and tag characters); lone surrogates; line and
# paragraph separators.
_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


def safe(text: str) -> str:
    """``text`` on one line: nothing in it moves the cursor, colours, reorders, or begins a row of its own."""
    return _replaced(text, "", _escaped)


def safe_block(text: str) -> str:
    """The same with line ends and tabs kept, for what is printed as a block of its own."""
    return _replaced(text.replace("\r\n", "\n"), "\n\t", _escaped)


def safe_json(text: str) -> str:
    """JSON with every unsafe character inside its strings as a JSON escape; line ends between tokens stay."""
    return _replaced(text, "\n", _json_escaped)


def _replaced(text: str, kept: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    return "".join(one if one in kept or category(one) not in _UNSAFE else escape(one) for one in text)


def _escaped(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escaped(character: str) -> str:
    pair = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{pair[at]:02x}{pair[at + 1]:02x}" for at in range(0, len(pair), 2))


def shortened(text: str, limit: int) -> str:
    """At most ``limit`` characters, an ellipsis in place of the rest."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def duration(seconds: float | None) -> str:
    """``0.4 s``, ``41.2 s``, ``1m 56s``, ``12m``, ``2h 11m``, ``5d 2h``; ``-`` for none."""
    if seconds is None:
        return "-"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86_400)
    if minutes < 10:
        return f"{minutes}m {int(seconds % 60)}s"
    if minutes < 60:
        return f"{minutes}m"
    return f"{hours}h {minutes % 60}m" if hours < 48 else f"{days}d {hours % 24}h"


def size(count: int | None) -> str:
    """``61 MB``; ``-`` for none."""
    if count is None:
        return "-"
    value, unit = float(count), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if value >= 10 or unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def bar(value: float, most: float, width: int) -> str:
    """A bar of at most ``width`` characters, to the eighth of one; something for whatever is more than nothing."""
    if value <= 0 or most <= 0:
        return ""
    eighths = max(1, round(min(1.0, value / most) * width * 8))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def local_time(rfc3339: str | None) -> str:
    """A moment in local time to the second; ``-`` for none, and what is no time as it is."""
    if not rfc3339:
        return "-"
    try:
        return datetime.fromisoformat(rfc3339).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return safe(rfc3339)


def home_path(path: str) -> str:
    """A path, with ``~`` for your home."""
    home = os.path.expanduser("~")
    inside = path == home or path.startswith(f"{home}/")
    return f"~{path[len(home) :]}" if inside and home != "/" else path


def counted(number: int, noun: str) -> str:
    """``1 tool``, ``2 tools``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(words: Iterable[str], limit: int) -> str:
    """The first few of many, separated by two spaces, an ellipsis where there are more."""
    found = list(words)
    shown = "  ".join(found[:limit])
    return f"{shown}  …" if len(found) > limit else shown
