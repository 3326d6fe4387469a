"""``coffer mcp ...``: registering servers, and their life. What they offer is ``mcp_tools``'s."""

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coffer_cli import client, render
from coffer_cli.commands import mcp_oauth, mcp_show
from coffer_cli.commands.mcp_oauth import OAuthOptions
from coffer_cli.commands.mcp_wait import REFRESH_SECONDS, report, settle
from coffer_cli.errors import CliError, usage
from coffer_cli.options import LIMIT_HELP, Json, Quiet, Server, Yes, confirm, limits, pairs
from coffer_common import exits
from coffer_common.api import CreateResource, PatchResource, Removed, ResourceList, ResourceView, TestServer

if TYPE_CHECKING:
    from coffer_cli.client import Client

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

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
Progress_ = Annotated[
    bool | None, typer.Option("--progress/--no-progress", help="Whether its progress messages reach clients.")
]
Plaintext = Annotated[bool, typer.Option("--allow-plaintext", help="Store values that look like secrets as they are.")]
Command = Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND ARGS", help="What starts the server.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait for the server to start.")]


@app.command(epilog="Example: coffer mcp add files -- npx -y @modelcontextprotocol/server-filesystem ~/notes")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for it: a-z, 0-9, '-' and '_'.")],
    command: Command = None,
    *,
    env: Env = None,
    cwd: Cwd = None,
    per_project: PerProject = None,
    url: Url = None,
    header: Header = None,
    oauth_client_id: mcp_oauth.ClientId = None,
    oauth_client_secret: mcp_oauth.ClientSecret = None,
    oauth_scope: mcp_oauth.Scope = None,
    oauth_issuer: mcp_oauth.Issuer = None,
    isolation: Isolation = None,
    limit: Limit = None,
    max_rss: MaxRss = None,
    max_processes: MaxProcesses = None,
    max_calls: MaxCalls = None,
    description: Description = None,
    auto_enable: AutoEnable = None,
    progress: Progress_ = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="Register it switched off.")] = False,
    allow_plaintext: Plaintext = False,
    no_wait: NoWait = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Register a server, start it and show what it offers. One that cannot be reached is registered all the same."""
    if (url is None) == (not command):
        raise usage("a server is either a command or a URL", f"coffer mcp add {name} -- COMMAND ARGS..., or --url URL")
    if url is None and header:
        raise usage("--header is for servers with a --url", "a command takes --env K=V")
    if url is not None and (env or cwd or per_project is not None):
        raise usage(
            "--env, --cwd and --per-project are for servers that are started by a command",
            "a --url takes --header K=V",
        )
    config = _config(command or [], url, pairs(env or (), "--env"), pairs(header or (), "--header"), cwd)
    if per_project is not None:
        config["per_project"] = per_project
    config |= _common(isolation, _caps(limit, max_rss, max_processes, max_calls), auto_enable, progress)
    config |= OAuthOptions(oauth_client_id, oauth_client_secret, oauth_scope, oauth_issuer).config(url=url is not None)
    wish = CreateResource(
        kind="mcp_server",
        name=name,
        config=config,
        description=description or "",
        enabled=not disabled,
        allow_plaintext=allow_plaintext,
    )
    daemon = client.connect()
    found = daemon.send("POST", "/resources", ResourceView, wish)
    _warn_of_relative(command or [], cwd)
    waited = 0.0
    if not no_wait and not disabled:
        found, waited = settle(daemon, found, quiet=quiet or as_json)
    report(found, waited, as_json=as_json, quiet=quiet, verb="registered", daemon=daemon)


def _config(
    command: list[str], url: str | None, env: dict[str, str], headers: dict[str, str], cwd: str | None
) -> dict[str, Any]:
    if url is not None:
        return {"transport": "http", "url": url} | ({"headers": headers} if headers else {})
    config: dict[str, Any] = {"transport": "stdio", "command": _located(command[0])}
    if command[1:]:
        config["args"] = command[1:]
    if env:
        config["env"] = env
    if cwd is not None:
        config["cwd"] = _directory(cwd)
    return config


def _located(command: str) -> str:
    """A path relative to where the person stands means nothing to a daemon elsewhere."""
    relative = os.sep in command and not os.path.isabs(command) and not command.startswith(("~", "$"))
    return os.path.abspath(command) if relative and os.path.exists(command) else command


def _warn_of_relative(command: list[str], cwd: str | None) -> None:
    """A file named relative to where the person stands is not there for a server that runs elsewhere."""
    if cwd is not None:
        return
    home = os.path.expanduser("~")
    for word in command[1:]:
        if not word.startswith("-") and os.path.isfile(word) and not os.path.exists(os.path.join(home, word)):
            render.note(f"note: {word} is relative, but the server runs in {home}; give its full path, or --cwd .")


def _directory(cwd: str) -> str:
    return cwd if cwd.startswith(("~", "$")) else os.path.abspath(cwd)


def _caps(limit: list[str] | None, rss: str | None, processes: str | None, calls: str | None) -> list[str]:
    """``--max-...`` as further ``--limit`` words."""
    given = {"max-rss": rss, "max-processes": processes, "max-calls": calls}
    return [*(limit or ()), *(f"{name}={value}" for name, value in given.items() if value is not None)]


def _common(
    isolation: str | None, limit: list[str] | None, auto_enable: bool | None, progress: bool | None
) -> dict[str, Any]:
    wished = {
        "isolation": isolation,
        "limits": limits(limit) if limit else None,
        "auto_enable": auto_enable,
        "forward_progress": progress,
    }
    return {key: value for key, value in wished.items() if value is not None}


@app.command(epilog="Example: coffer mcp update files --env LOG_LEVEL=debug --limit start=600")
def update(
    name: Server,
    command: Command = None,
    *,
    env: Env = None,
    unset_env: Annotated[
        list[str] | None, typer.Option("--unset-env", metavar="K", help="Take a variable away.")
    ] = None,
    cwd: Cwd = None,
    per_project: PerProject = None,
    url: Url = None,
    header: Header = None,
    unset_header: Annotated[
        list[str] | None, typer.Option("--unset-header", metavar="K", help="Take a header away.")
    ] = None,
    oauth_client_id: mcp_oauth.ClientId = None,
    oauth_client_secret: mcp_oauth.ClientSecret = None,
    oauth_scope: mcp_oauth.Scope = None,
    oauth_issuer: mcp_oauth.Issuer = None,
    isolation: Isolation = None,
    limit: Limit = None,
    max_rss: MaxRss = None,
    max_processes: MaxProcesses = None,
    max_calls: MaxCalls = None,
    description: Description = None,
    auto_enable: AutoEnable = None,
    progress: Progress_ = None,
    allow_plaintext: Plaintext = False,
    no_wait: NoWait = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Change a server. It starts again once its open calls have ended."""
    config: dict[str, Any] = {}
    if command:
        config |= {"command": _located(command[0]), "args": command[1:]}
    if url is not None:
        config["url"] = url
    if cwd is not None:
        config["cwd"] = _directory(cwd)
    if per_project is not None:
        config["per_project"] = per_project
    for member, given, gone, option in (
        ("env", env, unset_env, "--env"),
        ("headers", header, unset_header, "--header"),
    ):
        if given or gone:
            config[member] = {**pairs(given or (), option), **dict.fromkeys(gone or ())}
    config |= _common(isolation, _caps(limit, max_rss, max_processes, max_calls), auto_enable, progress)
    oauth = OAuthOptions(oauth_client_id, oauth_client_secret, oauth_scope, oauth_issuer)
    config |= oauth.config(url=not command, patch=True)
    if not config and description is None:
        raise usage("nothing to change was given", f"for example: coffer mcp update {name} --env LOG_LEVEL=debug")
    wish = PatchResource(config=config or None, description=description, allow_plaintext=allow_plaintext)
    daemon = client.connect()
    found = daemon.send("PATCH", client.server_path(name), ResourceView, wish)
    waited = 0.0
    if config and found.enabled and not no_wait:
        found, waited = settle(daemon, found, quiet=quiet or as_json)
    report(found, waited, as_json=as_json, quiet=quiet, verb="updated", daemon=daemon)


def list_(
    as_tree: Annotated[bool, typer.Option("--tree", help="Show what each offers, with switches.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List your servers, how each is, and what it offers."""
    daemon = client.connect()
    found = daemon.get("/resources", ResourceList, {"kind": "mcp_server"})
    if as_json:
        render.data(found)
    elif quiet:
        for one in found.resources:
            render.line(one.name)
    elif as_tree:
        mcp_show.tree(daemon, found.resources)
    else:
        mcp_show.table(found.resources)
        for broken in found.unreadable:
            render.note(f"note: {broken.name} cannot be read ({broken.reason}); coffer mcp remove {broken.name}")


app.command("list", epilog="Example: coffer mcp list --tree")(list_)
app.command("ls", hidden=True)(list_)


@app.command(epilog="Example: coffer mcp show files")
def show(name: Server, as_json: Json = False) -> None:
    """Show one server: its configuration, how it is, why it fails."""
    found = client.connect().get(client.server_path(name), ResourceView)
    render.emit(as_json, found, lambda: mcp_show.one(found))


def remove(name: Server, yes: Yes = False, as_json: Json = False, quiet: Quiet = False) -> None:
    """Remove a server and what was chosen about its tools. Its log rows stay."""
    daemon = client.connect()
    if not yes:
        _must_exist(daemon, name)
    confirm(f"Remove {name} and the choices about its tools for good?", yes)
    done = daemon.send("DELETE", client.server_path(name), Removed)
    if as_json:
        render.data(done)
    elif not quiet:
        render.line(f"✓ {name} is removed")


def _must_exist(daemon: "Client", name: str) -> None:
    """Nobody is asked about what is not there; what is there and cannot be read may go."""
    try:
        daemon.get(client.server_path(name), ResourceView)
    except CliError as error:
        if error.code == exits.NOT_FOUND:
            raise


app.command("remove", epilog="Example: coffer mcp remove files --yes")(remove)
app.command("rm", hidden=True)(remove)


@app.command(epilog="Example: coffer mcp enable files")
def enable(name: Server, no_wait: NoWait = False, as_json: Json = False, quiet: Quiet = False) -> None:
    """Switch a server on and start it."""
    daemon = client.connect()
    found = daemon.send("POST", client.server_path(name, "enable"), ResourceView)
    waited = 0.0
    if not no_wait:
        found, waited = settle(daemon, found, quiet=quiet or as_json)
    report(found, waited, as_json=as_json, quiet=quiet, verb="enabled", daemon=daemon)


@app.command(epilog="Example: coffer mcp disable files")
def disable(name: Server, as_json: Json = False, quiet: Quiet = False) -> None:
    """Switch a server off: it ends, and what it offers leaves every client's lists at once."""
    found = client.connect().send("POST", client.server_path(name, "disable"), ResourceView)
    if as_json:
        render.data(found)
    elif not quiet:
        render.line(f"✓ {found.name} is disabled")


@app.command("test", epilog="Example: coffer mcp test files")
def check(name: Server, as_json: Json = False, quiet: Quiet = False) -> None:
    """Start a server if need be and say how it is; exit code 1 where it is not ready."""
    daemon = client.connect()
    first = daemon.send("POST", client.server_path(name, "test"), ResourceView, TestServer(timeout=0.0, fresh=True))
    found, waited = settle(daemon, first, quiet=quiet or as_json)
    report(found, waited, as_json=as_json, quiet=quiet, verb="", daemon=daemon)
    if found.status is None or found.status.state != "ready":
        raise typer.Exit(exits.FAILURE)


@app.command(epilog="Example: coffer mcp refresh files")
def refresh(name: Server, as_json: Json = False, quiet: Quiet = False) -> None:
    """Read a server's lists again."""
    daemon = client.connect()
    found = daemon.send("POST", client.server_path(name, "refresh"), ResourceView, timeout=REFRESH_SECONDS)
    report(found, 0.0, as_json=as_json, quiet=quiet, verb="refreshed", daemon=daemon)


@app.command(epilog="Example: coffer mcp restart files")
def restart(name: Server, no_wait: NoWait = False, as_json: Json = False, quiet: Quiet = False) -> None:
    """End a server and all it started, and start it again."""
    daemon = client.connect()
    found = daemon.send("POST", client.server_path(name, "restart"), ResourceView)
    waited = 0.0
    if not no_wait:
        found, waited = settle(daemon, found, quiet=quiet or as_json)
    report(found, waited, as_json=as_json, quiet=quiet, verb="restarted", daemon=daemon)
