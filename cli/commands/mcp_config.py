"""What ``coffer mcp add`` and ``update`` are given about a server, and the configuration made of it.

Owns the spelling of these options, and what does not go together. Never asks the daemon.
"""

import os
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from coffer_cli import render
from coffer_cli.commands import mcp_oauth
from coffer_cli.errors import usage
from coffer_cli.options import LIMIT_HELP, limits, pairs

Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env", "-e", metavar="K=V", help="A variable of its environment; ${ref} stands for a stored secret."
    ),
]
Header = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="K=V", help="A header of each request; ${ref} stands for a stored secret."),
]
PerProject = Annotated[
    bool | None,
    typer.Option("--per-project/--no-per-project", help="Start it in the directory of each client (of its shim)."),
]
Cwd = Annotated[str | None, typer.Option("--cwd", metavar="DIR", help="Its working directory; default: your home.")]
Url = Annotated[str | None, typer.Option("--url", help="The address of a server that is reached over HTTP.")]
Isolation = Annotated[
    str | None, typer.Option("--isolation", help="auto, session (a connection for each session) or shared.")
]
Limit = Annotated[list[str] | None, typer.Option("--limit", metavar="NAME=VALUE", help=LIMIT_HELP)]
MaxRss = Annotated[
    str | None,
    typer.Option("--max-rss", metavar="SIZE", help="End it when it takes more memory: 500M; off for no cap."),
]
MaxProcesses = Annotated[
    str | None, typer.Option("--max-processes", metavar="N", help="End it when it has more processes; off for no cap.")
]
MaxCalls = Annotated[str | None, typer.Option("--max-calls", metavar="N", help="How many calls it gets at a time.")]
Description = Annotated[str | None, typer.Option("--description", help="A line for yourself.")]
AutoEnable = Annotated[
    bool | None, typer.Option("--auto-enable/--no-auto-enable", help="Whether tools it gets later are switched on.")
]
Progress = Annotated[
    bool | None, typer.Option("--progress/--no-progress", help="Whether its progress messages reach clients.")
]
Plaintext = Annotated[bool, typer.Option("--allow-plaintext", help="Store values that look like secrets as they are.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options that both take; None: not given."""

    env: Env = None
    cwd: Cwd = None
    per_project: PerProject = None
    url: Url = None
    header: Header = None
    oauth_client_id: mcp_oauth.ClientId = None
    oauth_client_secret: mcp_oauth.ClientSecret = None
    oauth_scope: mcp_oauth.Scope = None
    oauth_issuer: mcp_oauth.Issuer = None
    isolation: Isolation = None
    limit: Limit = None
    max_rss: MaxRss = None
    max_processes: MaxProcesses = None
    max_calls: MaxCalls = None
    description: Description = None
    auto_enable: AutoEnable = None
    progress: Progress = None
    allow_plaintext: Plaintext = False

    def new(self, name: str, command: list[str]) -> dict[str, Any]:
        """The configuration of a new server. Raises CliError for what does not go together."""
        if (self.url is None) == (not command):
            hint = f"coffer mcp add {name} -- COMMAND ARGS..., or --url URL"
            raise usage("a server is either a command or a URL", hint)
        if self.url is None and self.header:
            raise usage("--header is for servers with a --url", "a command takes --env K=V")
        if self.url is not None and (self.env or self.cwd or self.per_project is not None):
            raise usage(
                "--env, --cwd and --per-project are for servers that are started by a command",
                "a --url takes --header K=V",
            )
        config = {"transport": "stdio" if self.url is None else "http"}
        return config | self._given(command) | self._oauth(url=self.url is not None)

    def patch(self, command: list[str], unset_env: list[str], unset_header: list[str]) -> dict[str, Any]:
        """What is to change, as a merge patch. Raises CliError."""
        config = self._given(command) | self._oauth(url=not command, patch=True)
        if command:
            config["args"] = command[1:]
        for member, gone in (("env", unset_env), ("headers", unset_header)):
            if gone:
                config[member] = {**config.get(member, {}), **dict.fromkeys(gone)}
        return config

    def _given(self, command: list[str]) -> dict[str, Any]:
        caps = {"max-rss": self.max_rss, "max-processes": self.max_processes, "max-calls": self.max_calls}
        words = [*(self.limit or ()), *(f"{name}={value}" for name, value in caps.items() if value is not None)]
        wished = {
            "command": _located(command[0]) if command else None,
            "args": command[1:] or None,
            "env": pairs(self.env or (), "--env") or None,
            "cwd": None if self.cwd is None else _directory(self.cwd),
            "per_project": self.per_project,
            "url": self.url,
            "headers": pairs(self.header or (), "--header") or None,
            "isolation": self.isolation,
            "limits": limits(words) if words else None,
            "auto_enable": self.auto_enable,
            "forward_progress": self.progress,
        }
        return {key: value for key, value in wished.items() if value is not None}

    def _oauth(self, *, url: bool, patch: bool = False) -> dict[str, Any]:
        options = mcp_oauth.OAuthOptions(
            self.oauth_client_id, self.oauth_client_secret, self.oauth_scope, self.oauth_issuer
        )
        return options.config(url=url, patch=patch)


def _located(command: str) -> str:
    """A path relative to where the person stands means nothing to a daemon elsewhere."""
    relative = os.sep in command and not os.path.isabs(command) and not command.startswith(("~", "$"))
    return os.path.abspath(command) if relative and os.path.exists(command) else command


def warn_of_relative(command: list[str], cwd: str | None) -> None:
    """A file named relative to where the person stands is not there for a server that runs elsewhere."""
    if cwd is not None:
        return
    home = os.path.expanduser("~")
    for word in command[1:]:
        if not word.startswith("-") and os.path.isfile(word) and not os.path.exists(os.path.join(home, word)):
            render.note(f"note: {word} is relative, but the server runs in {home}; give its full path, or --cwd .")


def _directory(cwd: str) -> str:
    return cwd if cwd.startswith(("~", "$")) else os.path.abspath(cwd)
