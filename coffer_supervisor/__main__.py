"""``coffer-daemon``: from a command line to a running app.

Owns arguments, title, log, event loop, and the word of readiness to whoever started the daemon. Never contains
what the daemon does: that is ``app``.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from coffer_common import exits
from coffer_common.version import VERSION

if TYPE_CHECKING:
    from coffer_common.flocks import FileLock
    from coffer_common.paths import Home
    from coffer_supervisor.daemon import Claimed

TITLE: Final = "coffer-daemon"
_LOCK_SECONDS: Final = 60.0


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; ends the process with one of ``coffer_common.exits``."""
    if sys.platform == "win32":
        sys.stderr.write("Coffer runs on Linux and macOS; on Windows use it inside WSL.\n")
        raise SystemExit(exits.FAILURE)
    options = _parse(sys.argv[1:] if argv is None else argv)
    if options.detach and os.fork():
        os._exit(exits.OK)
    word = Word(options.ready_fd)
    try:
        code = _run(options, word)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise SystemExit(exits.OK) from None
        word.failed(_explained(error))
        sys.stderr.write(f"coffer-daemon: {_explained(error)}\n")
        if not _expected(error):
            raise
        raise SystemExit(exits.CONFLICT if type(error).__name__ == "AlreadyRunning" else exits.FAILURE) from None
    raise SystemExit(code)


class Word:
    """The one thing a daemon tells its starter: that it is ready, or why it is not. Later words are dropped."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        if fd is not None:
            os.set_inheritable(fd, False)

    def ready(self) -> None:
        """The sockets are served."""
        self._say(b"ready\n")

    def failed(self, why: str) -> None:
        """The daemon ends without having been ready."""
        self._say(why.encode() + b"\n")

    def _say(self, text: bytes) -> None:
        if self._fd is None:
            return
        with contextlib.suppress(OSError):  # the starter may be gone: that is no concern of the daemon
            os.write(self._fd, text)
        os.close(self._fd)
        self._fd = None


def _run(options: argparse.Namespace, word: Word) -> int:
    _entitle()
    from coffer_common import log
    from coffer_common.paths import Home
    from coffer_supervisor import daemon

    home = Home.from_env()
    home.ensure()
    os.chdir(home.root)
    log.set_up(home.daemon_log, foreground=options.foreground, level="DEBUG" if options.verbose else "INFO")
    lock = _start_lock(home, options.lock_fd)
    try:
        claimed = daemon.claim(home)
    except BaseException:
        lock.release()
        raise
    log.get("coffer_supervisor").info(
        "coffer-daemon starts", version=claimed.info.coffer_version, port=claimed.info.port
    )

    def ready() -> None:
        word.ready()
        lock.release()

    try:
        return _serve(claimed, ready)
    except Exception:
        log.get("coffer_supervisor").exception("the daemon ends on an error of its own")
        raise
    finally:
        lock.release()
        claimed.release()


def _serve(claimed: "Claimed", ready: Callable[[], None]) -> int:
    import asyncio

    from coffer_common import subreaper
    from coffer_supervisor import app

    subreaper.become_subreaper()
    factory = None
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(app.run(claimed, ready))


def _start_lock(home: "Home", inherited: int | None) -> "FileLock":
    """``daemon.lock``: the starter's, or for a daemon started by hand its own. Held until ready."""
    from coffer_common import flocks
    from coffer_supervisor.daemon import StartError

    if inherited is not None:
        os.set_inheritable(inherited, False)
        return flocks.FileLock(inherited, home.daemon_lock)
    try:
        return flocks.lock(home.daemon_lock, _LOCK_SECONDS)
    except flocks.LockTimeout as error:
        raise StartError(f"another start of the daemon does not end: {error}; see {home.daemon_log}") from error


def _entitle() -> None:
    os.environ["SPT_NOENV"] = "1"  # else setproctitle wipes /proc/PID/environ, by which strays are found
    import setproctitle

    setproctitle.setproctitle(TITLE)
    setproctitle.setthreadtitle(TITLE)
    del os.environ["SPT_NOENV"]


def _expected(error: BaseException) -> bool:
    from coffer_common.discovery import DiscoveryError
    from coffer_common.paths import UnsafeDirectory
    from coffer_supervisor.daemon import StartError

    return isinstance(error, StartError | DiscoveryError | UnsafeDirectory)


def _explained(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return str(error) if _expected(error) else f"{type(error).__name__}: {error}"


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=TITLE,
        description="Coffer's daemon. `coffer daemon start` runs it in the background.",
    )
    parser.add_argument("title", nargs="?", choices=[TITLE], help=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version=f"{TITLE} {VERSION}")
    parser.add_argument("--foreground", action="store_true", help="log to stderr as well, for people to read")
    parser.add_argument("--verbose", action="store_true", help="log at debug level")
    parser.add_argument("--detach", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--lock-fd", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
