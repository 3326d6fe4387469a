"""coffer_common.pidrecord: records are written whole, private, and read back; foreign files are told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from coffer_common import pidrecord
from coffer_common.pidrecord import PidRecord

RECORD = PidRecord(server="up", cookie="0123456789abcdef", pid=7, create_time=1.5, cmdline=("sh", "-c", "x"))


def test_a_record_comes_back_and_is_private(tmp_path: Path) -> None:
    path = pidrecord.write(tmp_path, RECORD)
    assert path == pidrecord.path_of(tmp_path, RECORD)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(pidrecord.read_all(tmp_path)) == [(path, RECORD)]
    pidrecord.remove(path)
    pidrecord.remove(path)
    assert list(pidrecord.read_all(tmp_path)) == []


def test_what_is_no_record_is_shown_as_none(tmp_path: Path) -> None:
    for name, content in (("a", b""), ("b", b'{"server": "up"'), ("c", b"\xff"), ("d", b"[]")):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "e").mkdir()
    assert [record for _, record in pidrecord.read_all(tmp_path)] == [None] * 5


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert list(pidrecord.read_all(tmp_path / "missing")) == []


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    pidrecord.path_of(tmp_path, RECORD).mkdir()
    with pytest.raises(OSError, match="irectory"):
        pidrecord.write(tmp_path, RECORD)
    assert [path.is_dir() for path in tmp_path.iterdir()] == [True]
