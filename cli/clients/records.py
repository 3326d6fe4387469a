"""What was installed where: ``installs.json`` below Coffer's home, so that uninstalling gives back what was there.

Owns that file. Holds no secret: entries that were taken out are in the copy of the client's own file.
"""

import os
from pathlib import Path

import msgspec

from coffer_cli.clients import files
from coffer_common.paths import Home


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One entry. ``sha256``: of the file as Coffer left it, empty where it changed in two steps; ``backup``: the copy
    of before, None where there was no file; ``originals``: copies that hold the entries named in ``replaced``, which
    stood at ``places``."""

    file: str
    place: list[str]
    sha256: str = ""
    backup: str | None = None
    replaced: list[str] = []
    places: list[list[str]] = []
    originals: list[str] = []


class _Records(msgspec.Struct, frozen=True, kw_only=True):
    version: int = 1
    installs: list[Record] = []


def find(home: Home, path: Path, place: tuple[str, ...]) -> Record | None:
    """The record of that entry in that file."""
    return next((one for one in _all(home) if _is(one, path, place)), None)


def store(home: Home, record: Record) -> None:
    """Writes it, in the place of an older one of the same entry."""
    _write(home, [*_others(home, Path(record.file), tuple(record.place)), record])


def forget(home: Home, path: Path, place: tuple[str, ...]) -> None:
    """Takes it out, where it is there."""
    kept = _others(home, path, place)
    if len(kept) != len(_all(home)):
        _write(home, kept)


def _is(record: Record, path: Path, place: tuple[str, ...]) -> bool:
    return record.file == os.path.realpath(path) and tuple(record.place) == place


def _others(home: Home, path: Path, place: tuple[str, ...]) -> list[Record]:
    return [one for one in _all(home) if not _is(one, path, place)]


def _file(home: Home) -> Path:
    return home.root / "installs.json"


def _all(home: Home) -> list[Record]:
    data = files.read(_file(home))
    if data is None:
        return []
    try:
        return msgspec.json.decode(data, type=_Records).installs
    except msgspec.DecodeError:
        return []  # without it uninstalling takes out Coffer's own entry, which is always safe


def _write(home: Home, installs: list[Record]) -> None:
    home.ensure()
    text = msgspec.json.format(msgspec.json.encode(_Records(installs=installs)), indent=2).decode() + "\n"
    files.change(_file(home), lambda _old: text)
