"""Server entries of other programs as servers of Coffer: what is taken over, what is a secret, what is not understood.

Owns the reading of one entry into a ``Plan``. Pure: the environment is passed in, and nothing is stored.
"""

import posixpath
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from coffer_common import plaintext, serverfaults, webheaders
from coffer_common.names import legal_server_name
from coffer_common.resources import HttpServer, McpServerConfig, StdioServer

_VARIABLE: Final = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_SECRET_VARIABLE: Final = re.compile(
    r"(?i)\$\{(?:env:)?\w*(?:token|key|secret|passw|credential|auth|cookie)\w*(?::-[^}]*)?\}"
)
_SCHEME: Final = re.compile(r"(?i)(?:bearer|basic|token)\s+")
_SILENT: Final = frozenset({"type", "transport", "source", "enabled", "disabled"})
_WORKSPACE: Final = "${workspaceFolder}"
_HERE: Final = frozenset({"", ".", "./", _WORKSPACE, f"{_WORKSPACE}/"})
_REMOTE: Final = ("url", "serverUrl", "httpUrl")
_START_MOST: Final = 600.0


@dataclass(slots=True)
class Plan:
    """One entry. ``secrets``: by credential name; ``ignored``: keys that Coffer has no use for; ``problem``: why it
    cannot be imported, empty where it can; ``clash``: its name is taken, which refuses the whole import; ``tied``: why
    a project's server stays in that project's folder."""

    wish: str
    name: str
    place: str
    config: dict[str, Any] = field(default_factory=dict)
    enabled: bool = True
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    ignored: list[str] = field(default_factory=list)
    problem: str = ""
    clash: bool = False
    plain: bool = False
    tied: str = ""

    def rename(self, name: str) -> None:
        """Another name, for its secrets too."""
        for old in list(self.secrets):
            self.move_secret(old, legal_server_name(name + old.removeprefix(self.name)))
        self.name = name

    def move_secret(self, old: str, new: str) -> None:
        """Another name for one credential, wherever the configuration refers to it."""
        self.secrets[new] = self.secrets.pop(old)
        for member in ("env", "headers"):
            for key, value in self.config.get(member, {}).items():
                self.config[member][key] = value.replace(f"${{{old}}}", f"${{{new}}}")
        if "url" in self.config:
            self.config["url"] = self.config["url"].replace(f"${{{old}}}", f"${{{new}}}")


class _Unreadable(Exception):
    """The entry cannot be taken over; the message says why."""


def read(
    wish: str,
    entry: Any,
    place: str,
    env: Mapping[str, str],
    *,
    project: str = "",
    files: Collection[str] = (),
    allow_plaintext: bool = False,
) -> Plan:
    """The plan for the entry called ``wish``, found at ``place`` (words for people).

    ``project``: the folder of the project that it is for; ``files``: which of the entry's words are files there.
    """
    plan = Plan(wish, legal_server_name(wish), place, plain=allow_plaintext)
    if not isinstance(entry, dict):
        plan.problem = "it is no table of settings"
        return plan
    plan.enabled = entry.get("enabled", True) is not False and entry.get("disabled", False) is not True
    try:
        if any(key in entry for key in _REMOTE):
            taken = _remote(plan, entry, env)
        else:
            taken = _local(plan, entry, env, project)
            _where(plan, str(entry.get("cwd") or ""), env, project, files)
        _limits(plan, entry, taken)
        typed = msgspec.convert(plan.config, McpServerConfig)
        _last_look(plan, typed)
    except _Unreadable as error:
        plan.problem = str(error)
        return plan
    except msgspec.ValidationError as error:
        plan.problem = f"its settings are not what they must be: {error}"
        return plan
    plan.ignored = sorted([*plan.ignored, *(str(key) for key in entry.keys() - taken - _SILENT)])
    return plan


def _local(plan: Plan, entry: dict[str, Any], env: Mapping[str, str], project: str) -> set[str]:
    command, args = entry.get("command"), entry.get("args", [])
    taken = {"command", "args", "env", "cwd"}
    if isinstance(command, dict):
        entry = {**command, **entry}
        command, args = entry.get("path"), entry.get("args", [])
    elif isinstance(command, list) and command:
        command, args = command[0], [*command[1:], *args]
    if not isinstance(command, str) or not command:
        raise _Unreadable("it has neither a command nor a URL")
    if not isinstance(args, list) or not all(isinstance(one, str | int | float) for one in args):
        raise _Unreadable("its args are no list of words")
    secret = next((one for one in map(_SECRET_VARIABLE.search, map(str, args)) if one is not None), None)
    if secret is not None and not plan.plain:
        raise _Unreadable(
            f"its arguments hold {secret.group()}, which every process of this machine could read; "
            f"hand it over in its environment instead, or import it with --allow-plaintext"
        )
    plan.config = {"transport": "stdio", "command": _filled(command, env, project)[0]}
    if args:
        plan.config["args"] = [_filled(str(one), env, project)[0] for one in args]
    member = "environment" if "environment" in entry and "env" not in entry else "env"
    variables, raw = {}, _texts(entry, member)
    for name, value in raw.items():
        text = value.replace(_WORKSPACE, project or _WORKSPACE)
        variables[name] = _secret(plan, name, text, env, plaintext.looks_secret)
    if variables:
        plan.config["env"] = variables
    plan.tied = _named_folder([command, *map(str, args), *raw.values()], project)
    return taken | {member}


def words(entry: Any) -> list[str]:
    """The words of an entry's command line that may name files of its project."""
    if not isinstance(entry, dict):
        return []
    command = entry.get("command")
    first = command if isinstance(command, list) else [command]
    rest = entry.get("args") if isinstance(entry.get("args"), list) else []
    return [one for one in (*first, *(rest or ())) if isinstance(one, str) and one and not one.startswith("-")]


def _named_folder(values: Iterable[str], project: str) -> str:
    """Why a server cannot run in another project's folder: it names this one's."""
    if project and any(_WORKSPACE in value or f"{project}/" in f"{value}/" for value in values):
        return "its settings name this folder"
    return ""


def _where(plan: Plan, cwd: str, env: Mapping[str, str], project: str, files: Collection[str]) -> None:
    """A server that works on whatever project it is started in runs in each client's; others where their entry says."""
    here = cwd in _HERE or (bool(project) and cwd.rstrip("/") == project)
    if not project:
        if cwd and here:
            plan.config["per_project"] = True
        elif cwd:
            plan.config["cwd"] = _filled(cwd, env, "")[0]
        return
    target = _filled(cwd, env, project)[0]
    # Clients without a project, and whoever reads its lists, get it where it came from.
    plan.config["cwd"] = project if here else target if target.startswith("~") else posixpath.join(project, target)
    if not here:
        plan.tied = f"its cwd is {plan.config['cwd']}"
    elif files:
        plan.tied = f"it starts {min(files)} of this folder"
    if not plan.tied:
        plan.config["per_project"] = True


def _remote(plan: Plan, entry: dict[str, Any], env: Mapping[str, str]) -> set[str]:
    key = next(key for key in _REMOTE if key in entry)
    if str(entry.get("type", "")).lower() == "ws":
        raise _Unreadable("it is reached over WebSocket, which Coffer does not speak")
    url, _ = _filled(str(entry[key]), env, "")
    headers = {}
    for member in ("headers", "http_headers"):
        for name, value in _texts(entry, member).items():
            if webheaders.is_ours(name):
                plan.ignored.append(f"the header {name}")
                continue
            headers[name] = _secret(plan, name, value, env, _header)
    for name, variable in _texts(entry, "env_http_headers").items():
        headers[name] = _secret(plan, name, f"${{{variable}}}", env, _header)
    if "bearer_token_env_var" in entry:
        wanted = f"Bearer ${{{entry['bearer_token_env_var']}}}"
        headers["Authorization"] = _secret(plan, "Authorization", wanted, env, _header)
    plan.config = {"transport": "http", "url": url} | ({"headers": headers} if headers else {})
    if not plan.plain:
        _secret_url(plan, url, str(entry[key]))
    return {key, "headers", "http_headers", "env_http_headers", "bearer_token_env_var"}


def _limits(plan: Plan, entry: dict[str, Any], taken: set[str]) -> None:
    """Codex names its limits in seconds; what other programs call a timeout means too many things."""
    limits: dict[str, float] = {}
    for key, member, most in (
        ("startup_timeout_sec", "start_seconds", _START_MOST),
        ("tool_timeout_sec", "total_seconds", 86_400.0),
    ):
        value = entry.get(key)
        if isinstance(value, int | float) and value > 0:
            limits[member] = min(float(value), most)
            taken.add(key)
    if limits:
        plan.config["limits"] = limits


def _texts(entry: dict[str, Any], member: str) -> dict[str, str]:
    found = entry.get(member) or {}
    if not isinstance(found, dict) or any(isinstance(one, dict | list) for one in found.values()):
        raise _Unreadable(f"its {member} is no table of texts")
    spelt = {True: "true", False: "false"}
    return {
        name: spelt[value] if isinstance(value, bool) else str(value)
        for name, value in found.items()
        if value is not None
    }


def _filled(text: str, env: Mapping[str, str], project: str) -> tuple[str, bool]:
    """(``text`` with variables filled in, whether there were any). Raises _Unreadable for one that has no value."""
    text = text.replace("${userHome}", "~" if text.startswith("${userHome}") else env.get("HOME", "~"))
    text = text.replace(_WORKSPACE, project or _WORKSPACE).replace("${pathSeparator}", "/")

    def value(match: re.Match[str]) -> str:
        found = env.get(match.group(1), match.group(2))
        if found is None:
            raise _Unreadable(
                f"it uses the variable {match.group(1)}, which has no value here; set it and import again"
            )
        return found

    filled = _VARIABLE.sub(value, text)
    left = re.search(r"\$\{[^}]*\}?", _VARIABLE.sub("", text))
    if left is not None:
        raise _Unreadable(f"it uses {left.group()}, which only that client can fill in; add the server by hand")
    return filled, filled != text


def _secret(plan: Plan, name: str, value: str, env: Mapping[str, str], rule: Any) -> str:
    """``value``, or a reference where it is a secret; one that came out of a variable was kept out of files."""
    filled, from_variable = _filled(value, env, "")
    if not filled or plan.plain or not (from_variable or rule(filled, name)):
        return filled
    scheme = _SCHEME.match(filled) if rule is _header else None
    start = scheme.end() if scheme else 0
    return filled[:start] + _keep(plan, name, filled[start:])


def _header(value: str, name: str) -> bool:
    return plaintext.secret_header(name, value)


def _keep(plan: Plan, name: str, secret: str) -> str:
    base = plaintext.credential_name(plan.name, name)
    reference, number = base, 2
    while plan.secrets.get(reference, secret) != secret:
        reference, number = legal_server_name(f"{base[:28]}-{number}"), number + 1
    plan.secrets[reference] = secret
    return f"${{{reference}}}"


def _secret_url(plan: Plan, url: str, raw: str) -> None:
    """The smallest end of the URL that holds all its secrets becomes a reference; ``raw``: with its variables."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    head = f"{parts.scheme}://"
    variable = _SECRET_VARIABLE.search(raw)
    whole = len(url) if variable is None else len(_VARIABLE.split(raw)[0])
    cuts = [whole, url.find("?") + 1, len(head) + len(parts.netloc) + 1, len(head)]
    fits = (
        one
        for one in cuts
        if 0 < one <= whole and not plaintext.find(plan.name, HttpServer(url=url[:one] + ("${x}" if url[one:] else "")))
    )
    cut = next(fits, len(head))
    if url[cut:]:
        plan.config["url"] = url[:cut] + _keep(plan, "url", url[cut:])


def _last_look(plan: Plan, config: McpServerConfig) -> None:
    """What registration would refuse. Raises _Unreadable."""
    if faults := serverfaults.faults(config):
        raise _Unreadable(f"its settings cannot be used: {'; '.join(faults)}")
    if plan.plain:
        return
    findings = plaintext.find(plan.name, config)
    if findings and isinstance(config, StdioServer):
        where = " and ".join(one.where for one in findings)
        raise _Unreadable(
            f"{where} holds what looks like a secret; "
            f"hand it over in its environment instead, or import it with --allow-plaintext"
        )
