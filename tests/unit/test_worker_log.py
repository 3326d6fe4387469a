"""An upstream's log: private, bounded, without secrets."""

import shutil
import stat
from pathlib import Path

import pytest

from coffer_worker import log as logs
from coffer_worker.log import UpstreamLog, secrets_in


def test_lines_are_kept_by_kind_and_masked(tmp_path: Path) -> None:
    """K02: a secret appears nowhere, not even where the upstream writes it itself."""
    log = UpstreamLog(tmp_path / "up.log", ["hunter2hunter2"])
    log.stderr(b"key hunter2hunter2 is wrong \xff")
    log.stdout(b"{ starting }")
    log.message(b'{"data":"hunter2hunter2"}')
    log.note("started")
    log.close()
    text = (tmp_path / "up.log").read_text(encoding="utf-8")
    assert "hunter2" not in text
    assert [line.split(" ", 2)[1] for line in text.splitlines()] == ["stderr:", "stdout:", "message:", "coffer:"]
    assert list(log.tail) == ["key [secret] is wrong �"]
    assert stat.S_IMODE((tmp_path / "up.log").stat().st_mode) == 0o600


def test_a_flood_is_counted_not_written(tmp_path: Path) -> None:
    log = UpstreamLog(tmp_path / "up.log")
    for number in range(5000):
        log.stdout(b"line %d" % number)
    log.note("Coffer's own word is always written")
    log.close()
    lines = (tmp_path / "up.log").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 2000
    assert "left out" in lines[-1]
    assert any("always written" in line for line in lines)


def test_long_lines_are_cut_and_the_tail_is_short(tmp_path: Path) -> None:
    log = UpstreamLog(tmp_path / "up.log")
    log.stderr(b"x" * 100_000)
    assert len(log.tail[0]) < 5000
    for number in range(100):
        log.stderr(b"%d" % number)
    assert len(log.tail) == logs.TAIL_LINES
    log.close()


def test_it_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES", 500)
    log = UpstreamLog(tmp_path / "up.log")
    for number in range(60):
        log.note(f"a line of some length {number}")
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["up.log", "up.log.1", "up.log.2", "up.log.3"]
    assert all(path.stat().st_size < 700 for path in tmp_path.iterdir())


def test_a_log_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    log = UpstreamLog(tmp_path / "missing" / "up.log")
    log.stderr(b"still in the tail")
    log.close()
    assert list(log.tail) == ["still in the tail"]


def test_what_counts_as_secret() -> None:
    found = secrets_in(
        {
            "API_KEY": "abcd1234",
            "AUTH": "Bearer tok-9876",
            "LOG_LEVEL": "debugging",
            "HOME_DIR": "/home/someone",
            "FLAG": "true",
            "URL": "https://user:pass@host/x",
            "PORT": "80808080",
        }
    )
    assert {"abcd1234", "Bearer tok-9876", "tok-9876", "https://user:pass@host/x"} <= set(found)
    assert not {"debugging", "/home/someone", "true", "80808080", "Bearer"} & set(found)
    assert found == sorted(found, key=len, reverse=True)


def test_a_removed_log_is_begun_anew(tmp_path: Path) -> None:
    """Removing the log of a running server, or the folder, loses what was written, not what comes."""
    path = tmp_path / "logs" / "up.log"
    path.parent.mkdir()
    log = UpstreamLog(path)
    log.note("before")
    path.unlink()
    log.note("after")
    shutil.rmtree(path.parent)
    log.note("and again")
    log.note("twice")
    log.close()
    assert [line.split("coffer: ")[1] for line in path.read_text().splitlines()] == ["and again", "twice"]
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
