"""Tables on terminals of every width, and in pipes: on real ones."""

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios

import pytest

PRINTING = """
from coffer_cli import render
render.table(
    [render.Column("NAME"), render.Column("STATE"), render.number("CALLS"), render.Column("NOTE", fold=True)],
    [["files", "ready", "431", ""], ["pg", "backoff", "0", "password authentication failed for everybody who asked"]],
)
"""


def on_terminal(columns: int) -> list[str]:
    """What a table of two rows looks like on a terminal so wide, colours and blanks at the end taken away."""
    ours, theirs = os.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environ = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
        done = subprocess.run(
            [sys.executable, "-c", PRINTING],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environ,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0
        shown = re.sub(r"\x1b\[[0-9;]*m", "", os.read(ours, 65536).decode())
        return [line.rstrip() for line in shown.splitlines()]
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_wide_terminal_gets_one_table() -> None:
    """Widths follow the terminal."""
    assert on_terminal(120) == [
        " NAME   STATE    CALLS  NOTE",
        " files  ready      431",
        " pg     backoff      0  password authentication failed for everybody who asked",
    ]


def test_a_narrower_one_gets_the_notes_below_their_rows() -> None:
    """What is longest gives way first, and is not lost."""
    assert on_terminal(40) == [
        " NAME   STATE    CALLS",
        " files  ready      431",
        " pg     backoff      0",
        "    password authentication failed for",
        "    everybody who asked",
    ]


def test_the_narrowest_gets_paragraphs() -> None:
    """Names, states and figures are whole on any terminal."""
    assert on_terminal(20) == [
        "name files",
        "  state ready",
        "  calls 431",
        "name pg",
        "  state backoff",
        "  calls 0",
        "  note password",
        "  authentication",
        "  failed for",
        "  everybody who",
        "  asked",
    ]


@pytest.mark.parametrize("columns", ["20", "200"])
def test_a_pipe_gets_whole_lines(columns: str) -> None:
    """What programs read does not depend on a terminal, and holds no colour."""
    done = subprocess.run(
        [sys.executable, "-c", PRINTING],
        env={**os.environ, "COLUMNS": columns},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == on_terminal(120)
