"""Where Coffer keeps its files: one frozen ``Home``, derived from the environment once.

Owns every path under ``COFFER_HOME`` and the choice of the folder for sockets. Creates directories only in
``ensure()``; never reads or writes a file.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

SOCKET_PATH_LIMIT: Final = 107
"""Bytes that fit into ``sockaddr_un`` on Linux, without the closing zero (macOS: 103)."""

_LONGEST_SOCKET: Final = "control.ipc"
_SAFE_LIMIT: Final = 103
_PRIVATE: Final = 0o700


class UnsafeDirectory(Exception):
    """A folder that holds sockets or secrets is not the user's own, or others may enter it."""


@dataclass(frozen=True, slots=True)
class Home:
    """The files of one Coffer installation of one user. ``root`` and ``run`` are absolute."""

    root: Path
    run: Path

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> "Home":
        """The home that ``COFFER_HOME`` names, else ``~/.coffer``."""
        env = os.environ if env is None else env
        named = env.get("COFFER_HOME")
        root = Path(os.path.abspath(os.path.expanduser(named) if named else os.path.expanduser("~/.coffer")))
        return cls(root=root, run=_run_dir(root, env))

    def at_run(self, run_dir: str) -> "Home":
        """The same home with the socket folder that ``daemon.json`` records."""
        return replace(self, run=Path(run_dir)) if run_dir else self

    def ensure(self) -> None:
        """Makes the directories, each 0700 and the user's own. Raises UnsafeDirectory or OSError."""
        self.root.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        if stat.S_IMODE(self.root.stat().st_mode) & 0o077:
            self.root.chmod(_PRIVATE)
        for folder in (self.logs, self.upstream_pids, self.backups):
            folder.mkdir(mode=_PRIVATE, exist_ok=True)
        self.run.mkdir(mode=_PRIVATE, exist_ok=True)
        if self.run.parent == self.root and stat.S_IMODE(self.run.lstat().st_mode) & 0o077:
            self.run.chmod(_PRIVATE)
        check_private(self.run)

    @property
    def db(self) -> Path:
        """The store."""
        return self.root / "coffer.db"

    @property
    def daemon_json(self) -> Path:
        """Discovery (0600)."""
        return self.root / "daemon.json"

    @property
    def daemon_lock(self) -> Path:
        """Serialises detect-or-spawn."""
        return self.root / "daemon.lock"

    @property
    def daemon_alive(self) -> Path:
        """Held by flock for the daemon's life."""
        return self.root / "daemon.alive"

    @property
    def logs(self) -> Path:
        """The folder of all logs."""
        return self.root / "logs"

    @property
    def daemon_log(self) -> Path:
        """The daemon's own log."""
        return self.logs / "daemon.log"

    @property
    def daemon_stderr(self) -> Path:
        """What the daemon printed outside its log since it was last started: start errors, fatal tracebacks."""
        return self.logs / "daemon.stderr"

    def upstream_log(self, name: str) -> Path:
        """The log of upstream ``name`` (a legal server name)."""
        return self.logs / f"upstream-{name}.log"

    @property
    def upstream_pids(self) -> Path:
        """The folder of the PID records of upstream processes."""
        return self.root / "upstream-pids"

    @property
    def backups(self) -> Path:
        """Copies of the store made before migrations, and by ``coffer backup``."""
        return self.root / "backups"

    @property
    def credentials(self) -> Path:
        """The folder of the encrypted file of secrets, once that was chosen."""
        return self.root / "credentials"

    @property
    def api_sock(self) -> Path:
        """The management API's socket."""
        return self.run / "api.sock"

    @property
    def mcp_sock(self) -> Path:
        """The shim's socket."""
        return self.run / "mcp.sock"

    @property
    def control_ipc(self) -> str:
        """ZeroMQ address of the control pair."""
        return f"ipc://{self.run / 'control.ipc'}"

    @property
    def bulk_ipc(self) -> str:
        """ZeroMQ address of the bulk pair."""
        return f"ipc://{self.run / 'bulk.ipc'}"


def check_private(folder: Path) -> None:
    """Raises UnsafeDirectory unless ``folder`` is a real directory of this user that nobody else may enter."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeDirectory(f"{folder} is not a directory (a link or a file); remove it and start again")
    if found.st_uid != os.getuid():
        raise UnsafeDirectory(f"{folder} belongs to user {found.st_uid}, not to you; remove it and start again")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise UnsafeDirectory(f"{folder} is open to other users; run: chmod 700 {folder}")


def _run_dir(root: Path, env: Mapping[str, str]) -> Path:
    plain = root / "run"
    if _fits(plain):
        return plain
    import hashlib  # OpenSSL's library is a sixth of the shim's memory, and home folders are short

    digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
    runtime = env.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isabs(runtime):
        wished = Path(runtime) / f"coffer-{digest}"
        if _fits(wished) and os.path.isdir(runtime):
            return wished
    return Path("/tmp") / f"coffer-{os.getuid()}-{digest}"


def _fits(folder: Path) -> bool:
    return len(os.fsencode(folder / _LONGEST_SOCKET)) <= _SAFE_LIMIT
