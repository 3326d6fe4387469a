"""What an upstream inherits, and where its command and working directory are.

Owns the allow-list of the environment and the errors of a command that cannot be started. Never starts a
process and never changes this one's environment. Error texts name variables and paths, never the values
of configured variables.
"""

import os
import pwd
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from coffer_common.pidrecord import COOKIE_VARIABLE

INHERITED: Final = frozenset(
    {
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LANGUAGE",
        "TMPDIR",
        "TZ",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
    }
)
INHERITED_PREFIXES: Final = ("LC_", "XDG_")
FALLBACK_PATH: Final = "/usr/local/bin:/usr/bin:/bin"

_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")

SpawnReason = Literal["command_not_found", "not_executable", "bad_cwd", "spawn_failed"]


class SpawnError(Exception):
    """An upstream's process could not be started; the text says why and what to look at."""

    def __init__(self, reason: SpawnReason, message: str) -> None:
        super().__init__(message)
        self.reason: SpawnReason = reason


def own_environment() -> dict[str, str]:
    """This process's environment, with HOME and USER from the user database where a service manager
    left them out."""
    found = dict(os.environ)
    try:
        user = pwd.getpwuid(os.getuid())
    except KeyError:
        return found
    found.setdefault("HOME", user.pw_dir)
    found.setdefault("USER", user.pw_name)
    found.setdefault("LOGNAME", user.pw_name)
    return found


def upstream_environment(
    base: Mapping[str, str], path: str | None, configured: Mapping[str, str], cookie: str
) -> dict[str, str]:
    """What the upstream gets: the allow-list of ``base``, ``path`` as PATH, then its own configuration
    merged over, then the cookie, which nothing overrides."""
    found = {name: value for name, value in base.items() if name in INHERITED or name.startswith(INHERITED_PREFIXES)}
    found["PATH"] = path or base.get("PATH") or FALLBACK_PATH
    found.update(configured)
    found[COOKIE_VARIABLE] = cookie
    return found


def expand(text: str, environment: Mapping[str, str]) -> str:
    """``~`` at the start, ``$NAME`` and ``${NAME}``, from that environment; an unknown one stays as it is."""
    home = environment.get("HOME", "")
    if home and (text == "~" or text.startswith("~/")):
        text = home + text[1:]
    return _VARIABLE.sub(lambda match: environment.get(match[1] or match[2], match[0]), text)


def working_directory(cwd: str | None, environment: Mapping[str, str]) -> Path:
    """Where the upstream runs: ``cwd`` expanded (a relative one below the home directory), or the home
    directory. Raises SpawnError when it is no directory."""
    home = Path(environment.get("HOME") or "/")
    directory = home / expand(cwd, environment) if cwd else home
    if not directory.is_dir():
        raise SpawnError("bad_cwd", f"working directory {directory} does not exist (or is no directory)")
    return directory


def resolve_command(command: str, path: str, directory: Path, environment: Mapping[str, str]) -> str:
    """The file to execute. A command with a slash is taken relative to ``directory``, any other is looked
    up in ``path``. Raises SpawnError naming the command and where it was looked for."""
    expanded = expand(command, environment)
    if "/" in expanded:
        file = directory / expanded
        if not file.exists():
            raise SpawnError("command_not_found", f"command not found: {command} (looked for {file})")
        if file.is_dir():
            raise SpawnError("not_executable", f"command is a folder: {file}")
        if not os.access(file, os.X_OK):
            raise SpawnError("not_executable", f"command is not executable: {file} (try: chmod +x {file})")
        return str(file)
    searched = os.pathsep.join(str(directory / entry) for entry in path.split(os.pathsep) if entry)
    found = shutil.which(expanded, path=searched)
    if found is not None:
        return found
    for entry in searched.split(os.pathsep):
        if (Path(entry) / expanded).is_file():
            raise SpawnError("not_executable", f"command is not executable: {Path(entry) / expanded}")
    raise SpawnError("command_not_found", f"command not found: {command} (PATH searched: {path})")
