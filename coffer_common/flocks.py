"""Advisory locks on files (``flock``), with a bound on the wait.

Owns acquisition and release. Never deletes a lock file: two processes would then hold "the" lock of two files.
"""

import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final

_LOOK_SECONDS: Final = 1.0


class LockTimeout(Exception):
    """Another process held the lock for the whole wait."""


class FileLock:
    """An exclusive lock that is held until ``release()``, or until the last process that inherited it is gone."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self.path = path

    @property
    def fd(self) -> int:
        """The open descriptor, -1 once released; a child that inherits it shares the lock."""
        return self._fd

    def release(self) -> None:
        """Closes this process's descriptor. Harmless when called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> "FileLock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def try_lock(path: Path) -> FileLock | None:
    """The lock if nobody holds it now, else None. Makes the file (0600) where it is missing."""
    fd = _open(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return FileLock(fd, path)


def _nothing() -> None:
    return None


def lock(path: Path, timeout: float, meanwhile: Callable[[], None] = _nothing) -> FileLock:
    """The lock, after at most ``timeout`` seconds; else LockTimeout.

    ``meanwhile`` is called once a second while somebody else holds it; what it raises ends the wait.

    The kernel wakes the waiter, so the wait itself sits in a thread: a blocking flock has no time limit of its
    own. A wait that was given up lets the lock go again the moment it gets it.
    """
    held = try_lock(path)
    if held is not None:
        return held
    waiter = _Waiter(path)
    waiter.start()
    deadline = time.monotonic() + timeout
    try:
        while waiter.is_alive() and (left := deadline - time.monotonic()) > 0:
            waiter.join(min(left, _LOOK_SECONDS))
            if waiter.is_alive():
                meanwhile()
    except BaseException:
        late = waiter.give_up()
        if late is not None:
            late.release()
        raise
    held = waiter.give_up()
    if held is None:
        raise LockTimeout(f"{path} has been locked by another process for {timeout:.0f} s")
    return held


class _Waiter(threading.Thread):
    def __init__(self, path: Path) -> None:
        super().__init__(name="flock", daemon=True)
        self._path = path
        self._guard = threading.Lock()
        self._abandoned = False
        self._held: FileLock | None = None
        self._error: OSError | None = None

    def run(self) -> None:
        fd = _open(self._path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as error:
            os.close(fd)
            self._error = error
            return
        with self._guard:
            if self._abandoned:
                os.close(fd)
            else:
                self._held = FileLock(fd, self._path)

    def give_up(self) -> FileLock | None:
        """The lock, if it is held by now; else it is let go as soon as it comes."""
        with self._guard:
            if self._error is not None:
                raise self._error
            if self._held is None:
                self._abandoned = True
            return self._held


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
