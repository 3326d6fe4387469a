"""``logs/upstream-NAME.log``: what an upstream wrote on stderr, its log messages, and what it wrongly printed.

Owns the file (0600, rotated), the masking of secrets, the rate limit, and the last lines that error messages quote.
Never holds more than those lines in memory. Times in the file are UTC.
"""

import os
import re
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Final

from coffer_common import clock

FILE_BYTES: Final = 5 * 1024 * 1024
KEPT: Final = 3
TAIL_LINES: Final = 50
LINE_CHARS: Final = 4096
LINES_A_SECOND: Final = 200
MASK: Final = "[secret]"

_SECRET_NAME: Final = re.compile(r"(?i)key|token|secret|passw|auth|cred|cookie|private|dsn|bearer")
_PLAIN: Final = re.compile(r"[a-z]+|[A-Z]+|[0-9.]+|~?[./].*|true|false", re.DOTALL)


def secrets_in(values: Mapping[str, str]) -> list[str]:
    """The values of an environment or of headers that must never be shown: all but the plainly harmless."""
    found: list[str] = []
    for name, value in values.items():
        for part in {value, *value.split()}:
            named = _SECRET_NAME.search(name) is not None and len(part) >= 4
            if (named and part.lower() not in ("bearer", "basic")) or (len(part) >= 8 and not _PLAIN.fullmatch(part)):
                found.append(part)
    return sorted(set(found), key=len, reverse=True)


class UpstreamLog:
    """The log of one upstream; never raises for a full or read-only disk."""

    def __init__(self, path: Path, secrets: Iterable[str] = ()) -> None:
        self._path = path
        self._secrets = list(secrets)
        self._file: IO[str] | None = None
        self._size = 0
        self._second = 0.0
        self._in_second = 0
        self._left_out = 0
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)

    def learn(self, secrets: Iterable[str]) -> None:
        """Mask these from now on too, the longest first."""
        self._secrets = sorted({*self._secrets, *secrets}, key=len, reverse=True)

    def mask(self, text: str) -> str:
        """``text`` without any secret of this upstream."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text

    def stderr(self, line: bytes) -> None:
        """One line that the upstream wrote on stderr."""
        text = self._clean(line)
        self.tail.append(text)
        self._write("stderr", text)

    def stdout(self, line: bytes) -> None:
        """One line on stdout that is no message."""
        self._write("stdout", line)

    def message(self, params: bytes) -> None:
        """The params of a ``notifications/message``."""
        self._write("message", params)

    def note(self, text: str) -> None:
        """What Coffer itself has to say about this upstream."""
        self._write("coffer", self.mask(text))

    def fault(self, text: str) -> None:
        """The same for what an upstream can cause at any rate."""
        self._write("fault", self.mask(text))

    def close(self) -> None:
        """Close the file."""
        self._report_left_out()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _clean(self, line: bytes) -> str:
        text = self.mask(line[: 2 * LINE_CHARS].decode(errors="replace"))
        return text if len(text) <= LINE_CHARS else f"{text[:LINE_CHARS]}… ({len(line)} bytes)"

    def _write(self, kind: str, text: str | bytes) -> None:
        now = time.monotonic()
        if now - self._second >= 1:
            self._report_left_out()
            self._second, self._in_second = now, 0
        self._in_second += 1
        if self._in_second > LINES_A_SECOND and kind != "coffer":
            self._left_out += 1
            return
        text = self._clean(text) if isinstance(text, bytes) else text
        self._append(f"{clock.now_rfc3339_millis()} {kind}: {text}\n")

    def _report_left_out(self) -> None:
        if self._left_out:
            count, self._left_out = self._left_out, 0
            self._append(
                f"{clock.now_rfc3339_millis()} coffer: {count} more lines left out, over {LINES_A_SECOND} a second\n"
            )

    def _append(self, line: str) -> None:
        try:
            if self._file is None or self._size >= FILE_BYTES or not self._path.exists():
                self._open()
            assert self._file is not None
            self._file.write(line)
            self._file.flush()
            self._size += len(line)
        except OSError:
            return

    def _open(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._rotate()
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(fd, "w", encoding="utf-8", errors="replace")
        self._size = os.fstat(fd).st_size

    def _rotate(self) -> None:
        if self._path.exists():  # else somebody removed it
            for number in range(KEPT - 1, 0, -1):
                older = self._path.with_name(f"{self._path.name}.{number}")
                if older.exists():
                    older.replace(self._path.with_name(f"{self._path.name}.{number + 1}"))
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
