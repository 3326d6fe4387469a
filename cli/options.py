"""Options that many commands share, and reading what people write into them.

Owns the spelling of ``--json``, ``-q``, ``--yes``, ``--limit`` and the ``K=V`` pairs. Never asks the daemon, except for
names that complete a word.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Annotated, Any, Final

import typer

from coffer_cli.errors import usage

_LIMITS: Final = {
    "start": "start_seconds",
    "idle": "idle_seconds",
    "total": "total_seconds",
    "answer": "answer_seconds",
    "rounds": "rounds",
    "in-flight": "in_flight",
    "queue": "queue",
    "line": "line_bytes",
    "connections": "max_connections",
    "idle-close": "idle_close_seconds",
    "max-rss": "max_rss_bytes",
    "max-processes": "max_processes",
    "max-calls": "in_flight",
}
_WHOLE: Final = frozenset(
    {"rounds", "in_flight", "queue", "line_bytes", "max_connections", "max_rss_bytes", "max_processes"}
)
_SUFFIXES: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "k": 1024, "K": 1024, "M": 1024**2, "G": 1024**3}
_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhkKMG]?)(?:i?B)?")
LIMIT_HELP: Final = f"A limit, NAME=VALUE (off for none). Names: {', '.join(_LIMITS)}. Seconds, bytes (64M) or counts."

Json = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print names only, or nothing beside what was asked for.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Since = Annotated[str | None, typer.Option("--since", help="Only since then: 30m, 24h, 7d, or an RFC 3339 time.")]
Rows = Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="At most so many, the newest.")]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Go on with what comes, oldest first; with --json a row a line.")
]


def server_names(incomplete: str) -> list[str]:
    """Names of servers for a shell that completes a word; none where no daemon runs."""
    return _names("mcp_server", incomplete)


def client_names(incomplete: str) -> list[str]:
    """The same for clients."""
    return _names("client", incomplete)


def group_names(incomplete: str) -> list[str]:
    """The same for groups."""
    return _names("group", incomplete)


def _names(kind: str, incomplete: str) -> list[str]:
    from coffer_cli import client
    from coffer_cli.errors import CliError
    from coffer_common.api import ResourceList

    try:
        daemon = client.running()
        if daemon is None:
            return []
        found = daemon.get("/resources", ResourceList, {"kind": kind})
    except CliError:
        return []
    return [one.name for one in found.resources if one.name.startswith(incomplete)]


OfServer = Annotated[str | None, typer.Option("--server", "-s", help="Of one server.", autocompletion=server_names)]
OfClient = Annotated[str | None, typer.Option("--client", "-c", help="Of one client.", autocompletion=client_names)]
Server = Annotated[str, typer.Argument(metavar="NAME", help="The server's name.", autocompletion=server_names)]


def spread(shape: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command's parameter ``options``, a dataclass ``shape``, becomes an option for each of its fields."""
    fields = inspect.signature(shape, eval_str=True).parameters

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)

        @wraps(command)
        def run(**given: Any) -> None:
            chosen = shape(**{name: given.pop(name) for name in fields})
            command(**given, options=chosen)

        shown: list[inspect.Parameter] = []
        for name, parameter in own.parameters.items():
            shown += fields.values() if name == "options" else [parameter]
        run.__annotations__ = {one.name: one.annotation for one in shown}
        run.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]
        return run

    return wrap


def pairs(words: Iterable[str], option: str) -> dict[str, str]:
    """``K=V`` words as a mapping; the value may hold anything, ``=`` included."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            missing = "nothing stands before the '='" if equals else "got no '='"
            raise usage(f"{option} takes NAME=VALUE, and {missing}", f"for example: {option} {_example(option)}")
        found[key] = value
    return found


def _example(option: str) -> str:
    return {
        "--header": "'Authorization=Bearer ${my-token}'",
        "--limit": "start=600",
        "--arg": "path=/tmp",
    }.get(option, "LOG_LEVEL=debug")


def limits(words: Iterable[str]) -> dict[str, Any]:
    """``--limit`` words as members of a server's ``limits``."""
    found: dict[str, Any] = {}
    for name, text in pairs(words, "--limit").items():
        member = _LIMITS.get(name, name)
        if member not in _LIMITS.values():
            raise usage(f"there is no limit named {name}", f"limits: {', '.join(_LIMITS)}")
        if text in ("off", "none"):
            found[member] = None
            continue
        match = _QUANTITY.fullmatch(text)
        if match is None:
            raise usage(
                f"--limit {name}={text} is no quantity", "for example: start=600, idle=10m, line=128M, total=off"
            )
        value = float(match.group(1)) * _SUFFIXES[match.group(2)]
        found[member] = int(value) if member in _WHOLE else value
    return found


def confirm(question: str, yes: bool) -> None:
    """Asks before what cannot be undone; where nobody can be asked, ``--yes`` is needed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise usage(f"{question} Nobody is here to answer", "say so beforehand: --yes")
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)
