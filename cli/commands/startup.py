"""``coffer daemon enable`` and ``disable``: whether the daemon starts when you log in.

Owns the systemd user unit and the launchd agent. Never starts or stops a daemon.
"""

import os
import plistlib
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import typer

from coffer_cli import client, render
from coffer_cli.clients import files
from coffer_cli.errors import CliError
from coffer_cli.options import Json, Quiet
from coffer_common import spawn

UNIT: Final = "coffer.service"
LABEL: Final = "io.github.coffer.daemon"
_HEAD: Final = "# written by: coffer daemon enable"
_SYSTEMCTL_SECONDS: Final = 10.0
_CARRIED: Final = ("COFFER_PORTS", "COFFER_CLIENT_METADATA_URL", "SSL_CERT_FILE", "SSL_CERT_DIR")
_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


class Startup(msgspec.Struct, frozen=True, kw_only=True):
    """``coffer daemon enable --json`` and ``disable --json``. ``files``: what was written, or taken away."""

    enabled: bool
    changed: bool
    manager: str
    files: list[str]


@dataclass(frozen=True, slots=True)
class Place:
    """``link``: what makes systemd start the unit at login; launchd needs the file alone."""

    manager: str
    file: Path
    link: Path | None


def place(platform: str, home: Path, env: Mapping[str, str]) -> Place:
    """Where the system looks for what starts at login."""
    if platform == "darwin":
        return Place("launchd", home / "Library" / "LaunchAgents" / f"{LABEL}.plist", None)
    named = env.get("XDG_CONFIG_HOME", "")
    folder = (Path(named) if os.path.isabs(named) else home / ".config") / "systemd" / "user"
    return Place("systemd", folder / UNIT, folder / "default.target.wants" / UNIT)


def surroundings(root: Path, env: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The variables that the daemon needs of this shell at login, and those that hold a login and stay out of files."""
    found = {"COFFER_HOME": str(root), "PATH": env.get("PATH", os.defpath)}
    found |= {name: env[name] for name in _CARRIED if env.get(name)}
    proxies = {name: env[name] for name in (*_PROXIES, *map(str.lower, _PROXIES)) if env.get(name)}
    left = sorted(name for name, value in proxies.items() if "@" in value)
    return found | {name: value for name, value in proxies.items() if name not in left}, left


def unit(words: list[str], environ: Mapping[str, str]) -> str:
    """The systemd unit. The daemon ends what it started by itself, so only it gets the signal at first."""
    settings = "".join(f"Environment={_quoted(f'{key}={value}')}\n" for key, value in environ.items())
    return (
        f"{_HEAD}\n"
        "[Unit]\n"
        "Description=Coffer, a gateway for the Model Context Protocol\n"
        "StartLimitIntervalSec=60\n"
        "StartLimitBurst=5\n\n"
        "[Service]\n"
        f"ExecStart={' '.join(_quoted(word, command=True) for word in words)}\n"
        f"{settings}"
        "Restart=on-failure\n"
        "RestartSec=2\n"
        "KillMode=mixed\n"
        "TimeoutStopSec=30\n\n"
        "[Install]\n"
        "WantedBy=default.target\n"
    )


def _quoted(word: str, *, command: bool = False) -> str:
    """A word of a unit file: specifiers, and variables of a command line, stand for themselves."""
    word = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("%", "%%")
    return f'"{word.replace("$", "$$") if command else word}"'


def agent(words: list[str], environ: Mapping[str, str]) -> str:
    """The launchd agent: started at login, and again after a crash."""
    wish: dict[str, Any] = {
        "Label": LABEL,
        "ProgramArguments": words,
        "EnvironmentVariables": dict(environ),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
    }
    return plistlib.dumps(wish).decode()


def add_to(app: typer.Typer) -> None:
    """Both are commands of ``coffer daemon``."""
    app.command(epilog="Example: coffer daemon enable")(enable)
    app.command(epilog="Example: coffer daemon disable")(disable)


def enable(as_json: Json = False, quiet: Quiet = False) -> None:
    """Let the daemon start when you log in. One that runs goes on running."""
    home = client.home()
    home.ensure()
    where = place(sys.platform, Path.home(), os.environ)
    environ, left = surroundings(home.root, os.environ)
    words = spawn.command("--foreground")
    wished = unit(words, environ) if where.manager == "systemd" else agent(words, environ)
    before, after = files.change(where.file, lambda _old: wished)
    linked = _link(where)
    changed = before != after or linked
    if changed:
        _tell(where)
    found = [str(where.file), *([str(where.link)] if where.link else [])]
    done = Startup(enabled=True, changed=changed, manager=where.manager, files=found)

    def human() -> None:
        render.line(
            f"✓ the daemon starts when you log in ({where.manager})" + ("" if changed else ", as it did before")
        )
        render.line(f"  {where.file}")
        render.line("  start it now: coffer daemon start" if client.running() is None else "  it runs already")
        for name in left:
            render.note(f"note: {name} holds a login and is not written down; give it to the daemon another way")

    _report(done, human, as_json, quiet)


def disable(as_json: Json = False, quiet: Quiet = False) -> None:
    """No longer start the daemon when you log in. One that runs goes on running."""
    where = place(sys.platform, Path.home(), os.environ)
    gone = []
    for one in (where.link, where.file):
        if one is not None and (one.is_symlink() or one.exists()):
            try:
                one.unlink()
            except OSError as error:
                raise CliError(f"cannot remove {one}: {error.strerror}", "remove it by hand") from error
            gone.append(str(one))
    if gone:
        _tell(where)
    done = Startup(enabled=False, changed=bool(gone), manager=where.manager, files=gone)

    def human() -> None:
        render.line("✓ the daemon does not start when you log in" + ("" if gone else ", as before"))
        for path in gone:
            render.line(f"  removed: {path}")

    _report(done, human, as_json, quiet)


def _link(where: Place) -> bool:
    """What ``systemctl --user enable`` does, which needs a running manager for it. Whether it was missing."""
    if where.link is None:
        return False
    try:
        if where.link.is_symlink() and os.readlink(where.link) == str(where.file):
            return False
        where.link.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            where.link.unlink()
        where.link.symlink_to(where.file)
    except OSError as error:
        raise CliError(f"cannot write {where.link}: {error.strerror}") from error
    return True


def _tell(where: Place) -> None:
    """A manager that runs reads its units again; one that does not will at its start."""
    if where.manager == "systemd":
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                ["systemctl", "--user", "daemon-reload"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_SYSTEMCTL_SECONDS,
                check=False,
            )


def _report(done: Startup, human: Any, as_json: bool, quiet: bool) -> None:
    render.emit(as_json, done, human, quiet=quiet)
