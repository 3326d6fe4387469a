"""Finds the running daemon, or starts one: the same six steps for the shim, the CLI and the daemon itself.

Owns ``daemon.json`` (shape, reading, atomic writing) and the decision "is one running". ``spawn`` owns the
starting. Never sends a token anywhere: what is connected here are Unix sockets whose peer's user is checked.
"""

import os
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from coffer_common.paths import Home

FORMAT: Final = 1
TITLE: Final = "coffer-daemon"
_CONNECT_SECONDS: Final = 5.0
_BACKUPS_KEPT: Final = 5
_BOM: Final = b"\xef\xbb\xbf"


class DaemonInfo(msgspec.Struct, frozen=True, kw_only=True):
    """``daemon.json``. Members that a later release adds are tolerated, and lost when this one writes it."""

    version: int = FORMAT
    pid: int
    port: int
    token: str
    started_at: str
    binary_path: str
    run_dir: str = ""
    coffer_version: str = ""


class DiscoveryError(Exception):
    """The daemon can neither be found nor started; the message says why and what to do next."""


class NotRunning(DiscoveryError):
    """No daemon is running, and none was to be started."""


Absence = Literal["missing", "invalid", "other_version", "pid_gone", "pid_reused", "refused", "socket_gone"]


@dataclass(frozen=True, slots=True)
class Running:
    """A daemon answers: ``home`` has the socket folder that it recorded."""

    home: Home
    info: DaemonInfo


@dataclass(frozen=True, slots=True)
class NotFound:
    """No daemon answers; ``why`` names the step that failed."""

    why: Absence


def read_info(home: Home) -> DaemonInfo | Absence:
    """``daemon.json`` (steps 1 and 2): its content, or ``missing``, ``invalid``, ``other_version``."""
    try:
        raw = home.daemon_json.read_bytes()
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        raise DiscoveryError(f"cannot read {home.daemon_json}: {error.strerror}; check its permissions") from error
    raw = raw.removeprefix(_BOM)
    try:
        version = msgspec.json.decode(raw, type=dict[str, Any]).get("version")
        if isinstance(version, int) and version != FORMAT:
            return "other_version"
        info = msgspec.json.decode(raw, type=DaemonInfo)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "invalid"
    return info if info.pid > 0 and 0 < info.port < 65536 else "invalid"


def salvaged(home: Home) -> tuple[int | None, str | None]:
    """Port and token of a ``daemon.json`` of any release that still has them: both survive."""
    try:
        found = msgspec.json.decode(home.daemon_json.read_bytes().removeprefix(_BOM), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None, None
    port, token = found.get("port"), found.get("token")
    return port if type(port) is int else None, token if isinstance(token, str) else None


def write_info(home: Home, info: DaemonInfo) -> None:
    """Replaces ``daemon.json`` in one step: readers see the old bytes or the new ones, also after a power cut."""
    name = home.root / f".daemon.json.{os.getpid()}"
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(info), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, home.daemon_json)
    except BaseException:
        name.unlink(missing_ok=True)
        raise
    directory = os.open(home.root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def keep_backup(home: Home) -> Path | None:
    """Copies an unreadable ``daemon.json`` into ``backups/`` (0600) before it is replaced. None: nothing there."""
    for number in range(_BACKUPS_KEPT):
        copy = home.backups / f"daemon.json.bad-{number}"
        if not copy.exists() or number == _BACKUPS_KEPT - 1:
            break
    try:
        raw = home.daemon_json.read_bytes()
    except FileNotFoundError:
        return None
    home.backups.mkdir(mode=0o700, exist_ok=True)
    with open(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(raw)
    return copy


def detect(home: Home, *, ignore_pid: int = 0) -> Running | NotFound:
    """Whether a daemon runs, by the six steps. ``ignore_pid``: a daemon known to be leaving counts as gone.

    Raises DiscoveryError where something answers that must not be talked to.
    """
    found = read_info(home)
    if not isinstance(found, DaemonInfo):
        return NotFound(found)
    if found.pid == ignore_pid:
        return NotFound("pid_gone")
    gone = _process_absence(found.pid)
    if gone is not None:
        return NotFound(gone)
    if not _port_answers(found.port):
        return NotFound("refused")
    home = home.at_run(found.run_dir)
    try:
        connect(home.mcp_sock, timeout=_CONNECT_SECONDS).close()
    except (FileNotFoundError, ConnectionRefusedError):
        return NotFound("socket_gone")
    return Running(home, found)


def connect(path: Path, *, timeout: float = _CONNECT_SECONDS) -> socket.socket:
    """A blocking connection to one of the daemon's sockets, its peer checked to be this user.

    Raises OSError where nobody listens, DiscoveryError where a stranger does, or nobody accepts in time.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        sock.connect(os.fspath(path))
        sock.settimeout(None)
        peer = peer_uid(sock)
        if peer != os.getuid():
            raise DiscoveryError(
                f"{path} is served by user {peer}, not by you; nothing was sent. "
                f"Remove it, or set COFFER_HOME to a folder of your own"
            )
    except (TimeoutError, BlockingIOError):
        sock.close()
        raise DiscoveryError(f"the daemon does not accept connections on {path}; see: coffer daemon status") from None
    except BaseException:
        sock.close()
        raise
    return sock


def peer_uid(sock: socket.socket) -> int:
    """The user at the other end of a connected Unix socket."""
    if sys.platform == "linux":
        size = struct.calcsize("3i")
        _pid, uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        return int(uid)
    else:  # noqa: RET505 - the type checker skips what belongs to another platform
        # struct xucred of macOS: u_int version, uid_t uid, short groups, gid_t[16]; SOL_LOCAL is 0, LOCAL_PEERCRED 1.
        return int(struct.unpack_from("Ii", sock.getsockopt(0, 1, 76))[1])


def is_daemon(pid: int) -> bool:
    """Whether a live process of that id is a ``coffer-daemon`` (steps 3 and 4)."""
    return _process_absence(pid) is None


def _process_absence(pid: int) -> Literal["pid_gone", "pid_reused"] | None:
    """Steps 3 and 4. Where /proc exists it says what psutil would, without 10 ms and 3 MB for the import."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read()
    except FileNotFoundError:
        if os.path.isdir("/proc/self"):
            return "pid_gone"
        return _process_absence_by_psutil(pid)
    except (PermissionError, ProcessLookupError):
        return _process_absence_by_psutil(pid)
    if not line:
        return "pid_gone"  # a zombie, or a kernel thread
    return None if TITLE.encode() in line else "pid_reused"


def _process_absence_by_psutil(pid: int) -> Literal["pid_gone", "pid_reused"] | None:
    import psutil

    if not psutil.pid_exists(pid):
        return "pid_gone"
    try:
        process = psutil.Process(pid)
        words = [process.name(), *process.cmdline()]
    except psutil.AccessDenied:
        return "pid_reused"
    except psutil.NoSuchProcess:
        return "pid_gone"
    return None if any(TITLE in word for word in words) else "pid_reused"


def _port_answers(port: int) -> bool:
    """Step 5. Only whether someone listens: who it is shows the socket in ``run/``, so nothing is sent here."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def executable() -> str:
    """What ``binary_path`` records: the command that was started, else the interpreter."""
    script = os.path.join(os.path.dirname(sys.executable), TITLE)
    return script if os.access(script, os.X_OK) else sys.executable
