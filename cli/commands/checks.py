"""The checks of ``coffer doctor``, one function a subject. Each only looks."""

import os
import shutil
import socket
import sqlite3
import stat
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from coffer_cli.commands.mcp_wait import reason
from coffer_cli.errors import CliError
from coffer_common.api import CredentialStore, ResourceList, ResourceView, Unreadable
from coffer_common.discovery import DaemonInfo
from coffer_common.paths import Home
from coffer_common.ports import VARIABLE, BadPorts, port_range
from coffer_common.version import VERSION, newer

if TYPE_CHECKING:
    from coffer_cli.client import Client

_LAUNCHERS: Final = {
    "npx": "servers published for Node.js need it: install Node.js",
    "uvx": "servers published for Python are easiest with it: install uv",
    "docker": "only servers in containers need it",
}
_OWN: Final = ("coffer", "coffer-daemon", "coffer-shim")
_SAID: Final = "coffer-daemon: "
_LOOPBACK: Final = "127.0.0.1"
_UNWELL: Final = {"failed": "fail", "backoff": "warn", "needs_login": "warn"}


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. ``hint``: what to do where it is not ``ok``."""

    name: str
    status: Literal["ok", "warn", "fail"]
    message: str
    hint: str = ""


def programs() -> list[Check]:
    """PATH, Coffer's own commands on it, and the programs that start most servers."""
    here = os.path.dirname(sys.executable)
    found = [_own_commands(here)]
    for name, hint in _LAUNCHERS.items():
        where = shutil.which(name)
        if where:
            found.append(Check(name=name, status="ok", message=where))
        else:
            found.append(Check(name=name, status="warn", message="not on your PATH", hint=hint))
    return found


def _own_commands(here: str) -> Check:
    absent = [name for name in _OWN if shutil.which(name) is None]
    if not absent:
        return Check(name="PATH", status="ok", message=f"holds {', '.join(_OWN)}")
    message = f"does not hold {', '.join(absent)}"
    return Check(name="PATH", status="warn", message=message, hint=f'add them: export PATH="{here}:$PATH"')


def files(home: Home) -> list[Check]:
    """The home folder: there, one's own, and private down to what holds a token or a log."""
    if not home.root.exists():
        return [Check(name="home", status="ok", message=f"{home.root} is not there yet; the first start makes it")]
    found = [_private(home.root, "home")]
    for path in (home.logs, home.run, home.backups, home.credentials, home.daemon_json, home.db, home.daemon_log):
        if path.exists():
            check = _private(path, path.name)
            if check.status != "ok":
                found.append(check)
    if not os.access(home.root, os.W_OK | os.X_OK):
        message = f"{home.root} cannot be written"
        found.append(Check(name="home", status="fail", message=message, hint=f"chmod u+rwx {home.root}"))
    return [*found, _space(home.root)]


def _private(path: Path, name: str) -> Check:
    facts = path.stat()
    if facts.st_uid != os.getuid():
        message = f"{path} belongs to user {facts.st_uid}"
        return Check(name=name, status="fail", message=message, hint="set COFFER_HOME to a folder of your own")
    if stat.S_IMODE(facts.st_mode) & 0o077:
        wish = "700" if path.is_dir() else "600"
        message = f"{path} is open to other users ({stat.S_IMODE(facts.st_mode):o})"
        return Check(name=name, status="fail", message=message, hint=f"chmod {wish} {path}")
    return Check(name=name, status="ok", message=f"{path} is yours alone")


def _space(root: Path) -> Check:
    free = shutil.disk_usage(root).free
    if free < 100 * 1000 * 1000:
        message = f"only {free // 1_000_000} MB are free where {root} lies"
        return Check(name="disk", status="warn", message=message, hint="free some space, or calls go unlogged")
    return Check(name="disk", status="ok", message=f"{free // 1_000_000} MB free")


def leftovers(home: Home, running: bool) -> list[Check]:
    """What a crash leaves behind; the next start mends it by itself."""
    if running:
        return []
    left = [path.name for path in (home.api_sock, home.mcp_sock) if path.exists()]
    records = len(list(home.upstream_pids.iterdir())) if home.upstream_pids.exists() else 0
    if records:
        left.append(f"{records} records of upstream processes")
    if not left:
        return []
    hint = "the next start cleans up: coffer daemon start"
    return [Check(name="leftovers", status="warn", message=", ".join(left), hint=hint)]


def database(home: Home) -> list[Check]:
    """Whether the store is a healthy SQLite database. Read-only; works beside a running daemon."""
    if not home.db.exists():
        return [Check(name="database", status="ok", message="not there yet; the first start makes it")]
    try:
        with closing(sqlite3.connect(f"{home.db.as_uri()}?mode=ro", uri=True, timeout=5.0)) as connection:
            verdict = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.Error as error:
        verdict = str(error)
    if verdict == "ok":
        return [Check(name="database", status="ok", message=f"{home.db} is sound")]
    hint = f"put a backup in its place, which keeps this one too: coffer restore FILE; copies lie in {home.backups}"
    return [Check(name="database", status="fail", message=f"{home.db}: {verdict}", hint=hint)]


def daemon_found(home: Home, info: DaemonInfo | None) -> Check:
    """Whether one runs, and of which release; why the last start failed, where it did."""
    if info is None:
        why = _failed_start(home)
        message = f"is not running; its last start failed: {why}" if why else "is not running"
        return Check(
            name="daemon", status="fail" if why else "warn", message=message, hint="start it: coffer daemon start"
        )
    theirs = info.coffer_version
    message = f"{theirs or 'of an unknown release'}, pid {info.pid}, port {info.port}"
    if theirs and newer(VERSION, theirs):
        hint = "bring it up to date: coffer daemon restart"
        return Check(name="daemon", status="warn", message=f"{message}; this is coffer {VERSION}", hint=hint)
    return Check(name="daemon", status="ok", message=message)


def _failed_start(home: Home) -> str:
    try:
        said = home.daemon_stderr.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((one.removeprefix(_SAID) for one in reversed(said) if one.startswith(_SAID)), "")


def ports(running: bool) -> list[Check]:
    """Whether a port is free for a daemon that does not run."""
    if running:
        return []
    try:
        known = port_range()
    except BadPorts as error:
        return [Check(name="ports", status="fail", message=str(error), hint=f"set {VARIABLE} right, or unset it")]
    free = [port for port in known if _free(port)]
    if free:
        return [Check(name="ports", status="ok", message=f"{len(free)} of {len(known)} free, the first is {free[0]}")]
    message = f"{known[0]} to {known[-1]} are all taken"
    hint = f"end one of their holders (see: ss -ltnp), or name other ports: {VARIABLE}=8100-8109"
    return [Check(name="ports", status="fail", message=message, hint=hint)]


def _free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((_LOOPBACK, port))
        except OSError:
            return False
    return True


def credentials(daemon: "Client") -> list[Check]:
    """Where secrets are kept, and whether that answers. Only what needs a secret suffers where it does not."""
    try:
        store = daemon.get("/credential-store", CredentialStore)
    except CliError as error:
        return [Check(name="credentials", status="warn", message=error.message, hint=error.hint)]
    if not store.usable:
        return [Check(name="credentials", status="warn", message=store.message, hint=store.hint)]
    place = f"the encrypted file in {store.path}" if store.path else "the keychain"
    return [Check(name="credentials", status="ok", message=f"kept in {place}")]


def servers(daemon: "Client") -> list[Check]:
    """How each registered server is, and whether its command can be found."""
    try:
        found = daemon.get("/resources", ResourceList, {"kind": "mcp_server"})
    except CliError as error:
        return [Check(name="servers", status="fail", message=error.message, hint=error.hint)]
    return [*(_server(one) for one in found.resources), *(_unreadable(one) for one in found.unreadable)]


def _unreadable(one: Unreadable) -> Check:
    hint = "remove it, and add it again: coffer mcp remove NAME"
    return Check(name=f"{one.kind}:{one.name}", status="fail", message=f"cannot be read: {one.reason}", hint=hint)


def _server(server: ResourceView) -> Check:
    name, status = f"mcp {server.name}", server.status
    command = server.config.get("command")
    if command and server.enabled and _not_found(str(command), server.config.get("path")):
        full = f"/full/path/{os.path.basename(str(command))}"
        hint = f"install it, or name it by its full path: coffer mcp update {server.name} -- {full} ARGS..."
        return Check(name=name, status="fail", message=f"its command {command} is not found", hint=hint)
    if status is None:
        return Check(name=name, status="ok", message="registered")
    verdict = _UNWELL.get(status.state)
    if verdict is None:
        return Check(name=name, status="ok", message=status.state)
    hint = f"coffer mcp logs {server.name}; then: coffer mcp test {server.name}"
    message = f"{status.state}: {reason(server.name, status, quoting=True)}"
    return Check(name=name, status="fail" if verdict == "fail" else "warn", message=message, hint=hint)


def _not_found(command: str, path: object) -> bool:
    expanded = os.path.expandvars(os.path.expanduser(command))
    if os.sep in expanded:
        return os.path.isabs(expanded) and not os.access(expanded, os.X_OK)
    return shutil.which(expanded, path=str(path) if path else None) is None
