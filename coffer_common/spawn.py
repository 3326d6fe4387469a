"""Starts a daemon where none runs, so that any number of starters end up with exactly one.

Owns the spawning half of detect-or-spawn: the lock around it, the new process, its word of readiness. The lock's
descriptor and the write end of a pipe are inherited by the daemon; it closes the lock when it is ready, so a
starter that is killed in the middle leaves no second daemon behind it.
"""

import os
import select
import sys
import time
from collections.abc import Callable
from typing import Final

from coffer_common import discovery, flocks
from coffer_common.discovery import DiscoveryError, NotFound, NotRunning, Running
from coffer_common.paths import Home, UnsafeDirectory

READY: Final = b"ready\n"
START_SECONDS: Final = 60.0
_TAIL_BYTES: Final = 4000


def detect_or_spawn(
    home: Home,
    *,
    spawn: bool = True,
    timeout: float = START_SECONDS,
    on_wait: Callable[[str], None] = lambda _text: None,
    ignore_pid: int = 0,
) -> Running:
    """The running daemon; started from the caller's own installation where there is none.

    ``on_wait`` gets one line for people when something takes time. Raises NotRunning with ``spawn=False`` and no
    daemon, else DiscoveryError; both name the next step.
    """
    found = discovery.detect(home, ignore_pid=ignore_pid)
    if isinstance(found, Running):
        return found
    if not spawn:
        raise NotRunning(f"no coffer-daemon is running ({_REASONS[found.why]}); start it: coffer daemon start")
    deadline = time.monotonic() + timeout
    _make(home)
    on_wait("starting coffer-daemon")
    try:
        held = flocks.lock(home.daemon_lock, timeout)
    except flocks.LockTimeout as error:
        raise DiscoveryError(f"another start of the daemon does not end: {error}; see {home.daemon_log}") from error
    with held:
        found = discovery.detect(home, ignore_pid=ignore_pid)  # another starter may have been first
        if isinstance(found, Running):
            return found
        try:
            _start(home, held, deadline)
        except DiscoveryError:
            # A daemon that had lost its daemon.json lets no second one start, and has put it back by now.
            found = discovery.detect(home, ignore_pid=ignore_pid)
            if isinstance(found, Running):
                return found
            raise
        found = discovery.detect(home)
    if isinstance(found, NotFound):
        raise DiscoveryError(
            f"coffer-daemon said it was ready, and is gone ({_REASONS[found.why]}); see {home.daemon_log}"
        )
    return found


_REASONS: Final[dict[str, str]] = {
    "missing": "there is no daemon.json",
    "invalid": "daemon.json is not readable",
    "other_version": "daemon.json is of another release",
    "pid_gone": "its process is gone",
    "pid_reused": "its process id now belongs to another program",
    "refused": "nothing listens on its port",
    "socket_gone": "its socket is gone",
}


def _make(home: Home) -> None:
    try:
        home.ensure()
    except UnsafeDirectory as error:
        raise DiscoveryError(str(error)) from error
    except OSError as error:
        raise DiscoveryError(
            f"cannot make the folder {error.filename or home.root}: {error.strerror}; "
            f"move away what is in its place or give it the rights, or set COFFER_HOME elsewhere"
        ) from error


def _start(home: Home, held: flocks.FileLock, deadline: float) -> None:
    reader, writer = os.pipe()  # closed on exec, except where passed on
    try:
        try:
            code = _launch(home, writer, held.fd)
        finally:
            os.close(writer)
        word = b"" if code else _word(reader, deadline)
    finally:
        os.close(reader)
    if word == READY:
        return
    if word is None:
        raise DiscoveryError(f"coffer-daemon was started and is not ready yet; see {home.daemon_log}")
    why = word.decode(errors="replace").strip() or _tail(home)
    raise DiscoveryError(f"coffer-daemon did not start: {why or 'it died without a word'} (log: {home.daemon_log})")


def command(*arguments: str) -> list[str]:
    """The daemon of this very installation; its title stands in the command line from the first moment."""
    return [sys.executable, "-P", "-m", "coffer_supervisor", discovery.TITLE, *arguments]


def _launch(home: Home, ready_fd: int, lock_fd: int) -> int:
    import subprocess

    stderr = os.open(home.daemon_stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        # The child forks once more and exits: the daemon is nobody's child, so no starter must reap it.
        return subprocess.run(
            command("--detach", f"--ready-fd={ready_fd}", f"--lock-fd={lock_fd}"),
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            cwd=home.root,
            env={**os.environ, "COFFER_HOME": os.fspath(home.root)},
            pass_fds=(ready_fd, lock_fd),
            start_new_session=True,
            check=False,
        ).returncode
    except OSError as error:
        raise DiscoveryError(f"cannot start {sys.executable}: {error.strerror}") from error
    finally:
        os.close(stderr)


def _word(reader: int, deadline: float) -> bytes | None:
    """All that the daemon says until it closes the pipe; None where it says nothing in time."""
    said = bytearray()
    while not said.endswith(READY):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            return None
        chunk = os.read(reader, 4096)
        if not chunk:
            break
        said += chunk
    return bytes(said)


def _tail(home: Home) -> str:
    try:
        text = home.daemon_stderr.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
    except OSError:
        return ""
    return text.splitlines()[-1] if text else ""
