"""What makes this process the one daemon: its lock, its port, its sockets, its ``daemon.json`` and its token.

Owns claiming all of them in order, and letting go of them. Never serves anything: ``app`` gets the listening
sockets. The listening socket *is* the claim of a port; nothing is probed first.
"""

import contextlib
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from coffer_common import clock, discovery, flocks, log
from coffer_common.discovery import DaemonInfo
from coffer_common.paths import Home
from coffer_common.ports import VARIABLE, BadPorts, port_range
from coffer_common.version import VERSION

LOOPBACK: Final = "127.0.0.1"
BACKLOG: Final = 4096
"""Connections that wait to be accepted. One too many is tried again by the system only after a second, then three."""
PREDECESSOR_SECONDS: Final = 30.0
"""How long a daemon that is shutting down may still hold ``daemon.alive``."""
_TOKEN_BYTES: Final = 24
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{32}")
_log = log.get(__name__)


class StartError(Exception):
    """The daemon cannot start; the message says why and what to do."""


class AlreadyRunning(StartError):
    """Another daemon of this home is alive."""


def _unheard(_token: str) -> None:
    return None


@dataclass(slots=True)
class Claimed:
    """All that a daemon holds while it lives. The sockets listen already and do not block."""

    home: Home
    info: DaemonInfo
    tcp: socket.socket
    api: socket.socket
    mcp: socket.socket
    alive: flocks.FileLock
    on_token: Callable[[str], None] = _unheard
    """Told the new token after each rotation."""

    def rotate_token(self) -> DaemonInfo:
        """A new token, written before it is returned. The old one is worth nothing from then on."""
        fresh = msgspec.structs.replace(self.info, token=new_token())
        discovery.write_info(self.home, fresh)
        self.info = fresh
        self.on_token(fresh.token)
        return fresh

    def keep_alive(self) -> bool:
        """Holds the lock anew where ``daemon.alive`` was removed; whether it did. Raises AlreadyRunning, OSError."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self.home.daemon_alive), os.fstat(self.alive.fd)):
                return False
        fresh = flocks.try_lock(self.home.daemon_alive)
        if fresh is None:
            raise AlreadyRunning(
                f"another daemon holds {self.home.daemon_alive}: end one of the two (coffer daemon stop)"
            )
        self.alive.release()
        self.alive = fresh
        return True

    def stop_listening(self) -> None:
        """First step of leaving: newcomers find nobody here, and may start a successor that waits for our end."""
        for sock, path in ((self.mcp, self.home.mcp_sock), (self.api, self.home.api_sock)):
            if self.alive.fd >= 0:  # afterwards the path may be the successor's
                path.unlink(missing_ok=True)
            sock.close()
        self.tcp.close()

    def release(self) -> None:
        """Last step: lets the successor in. ``daemon.json`` stays, since port and token survive a stop."""
        self.stop_listening()
        if self.alive.fd >= 0:
            self._tidy()
        self.alive.release()

    def _tidy(self) -> None:
        """Nothing stays of the sockets, nor of a folder that was made for them alone outside the home."""
        for address in (self.home.control_ipc, self.home.bulk_ipc):
            with contextlib.suppress(OSError):
                os.unlink(address.removeprefix("ipc://"))
        if self.home.run.parent != self.home.root:
            with contextlib.suppress(OSError):
                self.home.run.rmdir()


def claim(home: Home, *, ports: Iterable[int] | None = None, wait: float = PREDECESSOR_SECONDS) -> Claimed:
    """Becomes the daemon of ``home``, which exists, on one of ``ports`` (None: those that the environment names).

    Raises StartError, with nothing left behind.

    A predecessor that is shutting down is waited for, at most ``wait`` seconds.
    """
    try:
        known = port_range() if ports is None else ports
    except BadPorts as error:
        raise StartError(str(error)) from None
    alive = _claim_life(home, wait)
    with contextlib.ExitStack() as undo:
        undo.callback(alive.release)
        home.ensure()  # a predecessor may have taken the folder of its sockets with it
        if discovery.read_info(home) in ("invalid", "other_version"):
            _log.warning("daemon.json was not readable and is written anew", copy=str(discovery.keep_backup(home)))
        port, token = discovery.salvaged(home)
        tcp = claim_port(port, known)
        undo.callback(tcp.close)
        api = listen_unix(home.api_sock)
        undo.callback(api.close)
        mcp = listen_unix(home.mcp_sock)
        undo.callback(mcp.close)
        info = DaemonInfo(
            pid=os.getpid(),
            port=tcp.getsockname()[1],
            token=token if token and _TOKEN.fullmatch(token) else new_token(),
            started_at=clock.now_rfc3339(),
            binary_path=discovery.executable(),
            run_dir=os.fspath(home.run),
            coffer_version=VERSION,
        )
        discovery.write_info(home, info)
        undo.pop_all()
    return Claimed(home=home, info=info, tcp=tcp, api=api, mcp=mcp, alive=alive)


def new_token() -> str:
    """32 URL-safe random characters."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def claim_port(last: int | None, ports: Iterable[int]) -> socket.socket:
    """A listening loopback socket on the first free port: the last one used, then in order. StartError: none free."""
    known = list(ports)
    for port in dict.fromkeys([last, *known] if last in known else known):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            # Connections of an earlier daemon in TIME_WAIT do not hold the port; a listener does.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((LOOPBACK, port))
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            continue
        sock.setblocking(False)
        return sock
    raise StartError(
        f"ports {known[0]} to {known[-1]} on {LOOPBACK} are all taken by other programs; "
        f"end one of them (who holds them: ss -ltnp), or name other ports ({VARIABLE}=8100-8109), and start again"
    )


def listen_unix(path: Path) -> socket.socket:
    """A listening socket at ``path`` (0600) in place of a stale one. Only for who holds ``daemon.alive``."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists():
            path.unlink()
            _log.warning("replaced a socket that an earlier daemon left behind", path=str(path))
        sock.bind(os.fspath(path))
        path.chmod(0o600)  # nobody can connect before it listens; a umask would be every thread's
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise StartError(f"cannot listen on {path}: {error.strerror or error}; check {path.parent}") from error
    return sock


def _claim_life(home: Home, wait: float) -> flocks.FileLock:
    held = flocks.try_lock(home.daemon_alive)
    if held is not None:
        return held
    _refuse_beside(home)
    try:
        # One whose daemon.json or sockets were removed puts them back within seconds, and is found then.
        return flocks.lock(home.daemon_alive, wait, lambda: _refuse_beside(home))
    except flocks.LockTimeout as error:
        raise AlreadyRunning(
            f"an earlier coffer-daemon of {home.root} is still ending after {wait:.0f} s, or runs on and "
            f"cannot be reached by {home.daemon_json} and its sockets in {home.run}; {_remedy(home)}"
        ) from error


def _refuse_beside(home: Home) -> None:
    found = discovery.detect(home)
    if isinstance(found, discovery.Running):
        raise AlreadyRunning(
            f"coffer-daemon is already running: pid {found.info.pid}, port {found.info.port}; "
            f"use it, or end it first: coffer daemon stop"
        )


def _remedy(home: Home) -> str:
    """How to end a daemon that holds its lock and cannot be reached."""
    found = discovery.read_info(home)
    if isinstance(found, DaemonInfo) and discovery.is_daemon(found.pid):
        return f"end it with: kill {found.pid}"
    return f"look for it with: ps -eo pid,stat,args | grep {discovery.TITLE}"
