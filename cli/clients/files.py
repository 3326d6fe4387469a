"""Other programs' configuration files on the disk: read whole, replaced whole or not at all.

Owns that a failed write leaves the old bytes, that links and modes stay, and that nobody else's change is overwritten.
Never decides what is written.
"""

import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from coffer_cli.clients import jsonc, tomltext
from coffer_cli.clients.known import Format
from coffer_cli.errors import CliError, usage
from coffer_common import clock, exits

_TRIES: Final = 5
_LARGEST: Final = 64 * 1024 * 1024


def read(path: Path) -> bytes | None:
    """The file's bytes; None where there is none. Raises CliError."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}", "nothing was changed") from error
    if len(data) > _LARGEST:
        raise CliError(f"{path} is no configuration: it is larger than 64 MiB", "nothing was changed")
    return data


def text_of(path: Path, data: bytes) -> str:
    """Raises CliError where the bytes are no UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise usage(f"{path} cannot be read: line {line} is no UTF-8", "mend the file; it was not touched") from error


def document(path: Path, text: str, form: Format) -> Any:
    """What the text says. Raises CliError naming line and column."""
    return _told(path, lambda: jsonc.parse(text).value if form == "json" else tomltext.parse(text))


def with_entry(path: Path, text: str, form: Format, place: tuple[str, ...], entry: dict[str, Any]) -> str:
    """The text with ``entry`` at ``place``. Raises CliError."""
    edit = jsonc.put if form == "json" else tomltext.put
    return str(_told(path, lambda: edit(text, place, entry)))


def without_entry(path: Path, text: str, form: Format, place: tuple[str, ...]) -> str:
    """The text without what is at ``place``. Raises CliError."""
    edit = jsonc.remove if form == "json" else tomltext.remove
    return str(_told(path, lambda: edit(text, place)))


def _told(path: Path, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except (jsonc.JsoncError, tomltext.TomlError) as error:
        raise usage(f"{path} cannot be used: {error}", "mend the file; it was not touched") from error


def change(path: Path, edit: Callable[[str], str | None]) -> tuple[bytes | None, bytes | None]:
    """Replaces the text by what ``edit`` makes of it (None: the file goes); (bytes before, bytes after).

    Reads again just before it replaces: where another program wrote meanwhile, the edit is made anew on what it wrote.
    """
    target = Path(os.path.realpath(path))
    for _ in range(_TRIES):
        before = read(target)
        made = edit("" if before is None else text_of(path, before))
        after = None if made is None else made.encode()
        if after == before or (after == b"" and before is None):
            return before, before
        if after is None:
            if read(target) == before:
                target.unlink(missing_ok=True)
                return before, after
        elif _replace(target, before, after):
            return before, after
    raise CliError(f"another program keeps writing {path}", "close it and try again", exits.CONFLICT)


def _replace(target: Path, before: bytes | None, after: bytes) -> bool:
    """Whether the file still was ``before``, and is ``after`` now."""
    made = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(target.stat().st_mode) if before is not None else 0o600
        handle, made = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(after)
            file.flush()
            os.fsync(file.fileno())
        if read(target) != before:
            return False
        os.replace(made, target)
        made = ""
        _sync(target.parent)
        return True
    except OSError as error:
        raise CliError(f"cannot write {target}: {error.strerror}", "the file is as it was") from error
    finally:
        if made:
            with suppress(OSError):
                os.unlink(made)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def keep_copy(path: Path, data: bytes) -> Path:
    """A copy of what was there, beside the file, with its mode."""
    target = Path(os.path.realpath(path))
    stamp = clock.now_rfc3339().replace(":", "").replace("-", "")
    copy = target.with_name(f"{target.name}.before-coffer-{stamp}")
    number = 2
    while copy.exists():
        copy, number = target.with_name(f"{target.name}.before-coffer-{stamp}-{number}"), number + 1
    _replace(copy, None, data)
    with suppress(OSError):
        copy.chmod(stat.S_IMODE(target.stat().st_mode))
    return copy
