"""The record of an upstream process: what a worker writes and the next start of the daemon reads.

Owns the file format and its names under ``upstream-pids/``. Never looks at a process: who confirms that a
PID is still the recorded process does that with psutil.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

COOKIE_VARIABLE: Final = "COFFER_UPSTREAM_COOKIE"
"""In the environment of every upstream and so of all it starts: a random value of its own."""

_SUFFIX: Final = ".json"


class PidRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One upstream process. Times are seconds since the epoch, as psutil gives them.

    ``pid`` is 0 from just before the process is started until it is known. ``cmdline`` is how it was
    started; a launcher may since have become another program.
    """

    server: str
    cookie: str
    pid: int = 0
    create_time: float = 0.0
    cmdline: tuple[str, ...] = ()
    worker_pid: int = 0
    worker_create_time: float = 0.0


_decoder: Final = msgspec.json.Decoder(PidRecord)


def path_of(folder: Path, record: PidRecord) -> Path:
    """Where that record lives; one file a process, never shared between two."""
    return folder / f"{record.server}.{record.cookie[:12]}{_SUFFIX}"


def write(folder: Path, record: PidRecord) -> Path:
    """Write or replace a record atomically, readable by its owner alone. Raises OSError."""
    path = path_of(folder, record)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(record))
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def remove(path: Path) -> None:
    """Forget a record; one that is gone already is no error."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def read_all(folder: Path) -> Iterator[tuple[Path, PidRecord | None]]:
    """Every file of the folder with its record, or None where it holds none (half written, foreign)."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        path = folder / name
        try:
            yield path, _decoder.decode(path.read_bytes())
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            yield path, None
