"""The daemon's log: JSON lines in a private, rotated file, whoever writes; tokens masked."""

import io
import json
import logging
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from coffer_common import log


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    root = logging.getLogger()
    before, level, raised = root.handlers[:], root.level, logging.raiseExceptions
    root.handlers[:] = []
    yield tmp_path / "daemon.log"
    for handler in root.handlers:
        handler.close()
    root.handlers[:], logging.raiseExceptions = before, raised
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_both_kinds_of_loggers_end_in_the_same_file_as_json(file: Path) -> None:
    log.set_up(file)
    log.get("a").info("one %d", 1, server="files", trace="t-1")
    logging.getLogger("b").warning("two %s", "words", extra={"server": "docs"})
    log.get("a").debug("not at this level")
    first, second = lines(file)
    assert (first["event"], first["server"], first["trace"], first["level"]) == ("one 1", "files", "t-1", "info")
    assert (second["event"], second["server"], second["logger"]) == ("two words", "docs", "b")
    assert first["at"].endswith("Z")
    assert file.stat().st_mode & 0o777 == 0o600


def test_tracebacks_and_warnings_are_lines_of_it(file: Path) -> None:
    log.set_up(file, level="DEBUG")
    try:
        raise ValueError("what")
    except ValueError:
        log.get("a").exception("it broke")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", UserWarning, stacklevel=1)
    broke, warned = lines(file)
    assert "ValueError: what" in broke["exception"]
    assert "old" in warned["event"]


def test_tokens_never_reach_the_file(file: Path) -> None:
    log.set_up(file)
    log.get("a").info("GET /key/sEcReT/mcp", headers="Authorization: Bearer sEcReT", raw="X-Coffer-Token: sEcReT")
    assert "sEcReT" not in file.read_text()
    assert "/key/***/mcp" in file.read_text()
    assert log.mask("nothing to hide") == "nothing to hide"


def test_it_is_rotated_and_the_old_files_are_private_too(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MAX_BYTES", 500)
    log.set_up(file)
    for number in range(50):
        log.get("a").info("line", number=number)
    kept = sorted(file.parent.glob("daemon.log*"))
    assert len(kept) == 1 + log.FILES_KEPT
    assert all(one.stat().st_mode & 0o777 == 0o600 for one in kept)


def test_in_the_foreground_people_read_along(file: Path) -> None:
    stream = io.StringIO()
    log.set_up(file, foreground=True, stream=stream)
    log.set_up(file, foreground=True, stream=stream)  # again: no line comes twice
    log.get("a").info("ready", port=8000)
    assert stream.getvalue().count("ready") == 1
    assert "{" not in stream.getvalue()
    assert len(lines(file)) == 1


def test_a_removed_log_is_begun_anew(file: Path) -> None:
    """Removing the folder of a running daemon's logs loses what was written, not what comes."""
    file = file.parent / "logs" / "daemon.log"
    file.parent.mkdir()
    log.set_up(file)
    log.get("a").info("before")
    shutil.rmtree(file.parent)
    log.get("a").info("after")
    log.get("a").info("again")
    assert [line["event"] for line in lines(file)] == ["after", "again"]
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
