"""``coffer mcp ...``: registering servers, and their life. What they offer is ``mcp_tools``'s."""

from typing import TYPE_CHECKING, Annotated

import typer

from coffer_cli import client, render
from coffer_cli.commands import mcp_config, mcp_show, named
from coffer_cli.commands.mcp_config import ServerOptions
from coffer_cli.commands.mcp_wait import REFRESH_SECONDS, report, settle
from coffer_cli.errors import usage
from coffer_cli.options import Json, Quiet, Server, Yes, spread
from coffer_common import exits
from coffer_common.api import CreateResource, PatchResource, ResourceList, ResourceView, TestServer

if TYPE_CHECKING:
    from coffer_cli.client import Client

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Command = Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND ARGS", help="What starts the server.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait for the server to start.")]


@app.command(epilog="Example: coffer mcp add files -- npx -y @modelcontextprotocol/server-filesystem ~/notes")
@spread(ServerOptions)
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for it: a-z, 0-9, '-' and '_'.")],
    command: Command = None,
    *,
    options: ServerOptions,
    disabled: Annotated[bool, typer.Option("--disabled", help="Register it switched off.")] = False,
    no_wait: NoWait = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Register a server, start it and show what it offers. One that cannot be reached is registered all the same."""
    words = command or []
    wish = CreateResource(
        kind="mcp_server",
        name=name,
        config=options.new(name, words),
        description=options.description or "",
        enabled=not disabled,
        allow_plaintext=options.allow_plaintext,
    )
    daemon = client.connect()
    found = daemon.send("POST", "/resources", ResourceView, wish)
    mcp_config.warn_of_relative(words, options.cwd)
    _settled(daemon, found, "registered", wait=not (no_wait or disabled), as_json=as_json, quiet=quiet)


@app.command(epilog="Example: coffer mcp update files --env LOG_LEVEL=debug --limit start=600")
@spread(ServerOptions)
def update(
    name: Server,
    command: Command = None,
    *,
    options: ServerOptions,
    unset_env: Annotated[
        list[str] | None, typer.Option("--unset-env", metavar="K", help="Take a variable away.")
    ] = None,
    unset_header: Annotated[
        list[str] | None, typer.Option("--unset-header", metavar="K", help="Take a header away.")
    ] = None,
    no_wait: NoWait = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Change a server. It starts again once its open calls have ended."""
    config = options.patch(command or [], unset_env or [], unset_header or [])
    if not config and options.description is None:
        raise usage("nothing to change was given", f"for example: coffer mcp update {name} --env LOG_LEVEL=debug")
    wish = PatchResource(
        config=config or None, description=options.description, allow_plaintext=options.allow_plaintext
    )
    daemon = client.connect()
    found = daemon.send("PATCH", client.server_path(name), ResourceView, wish)
    wait = bool(config) and found.enabled and not no_wait
    _settled(daemon, found, "updated", wait=wait, as_json=as_json, quiet=quiet)


def _settled(daemon: "Client", found: ResourceView, verb: str, *, wait: bool, as_json: bool, quiet: bool) -> None:
    """Waits for a server that starts, where that is wanted, and says how it is."""
    waited = 0.0
    if wait:
        found, waited = settle(daemon, found, quiet=quiet or as_json)
    report(found, waited, as_json=as_json, quiet=quiet, verb=verb, daemon=daemon)


def list_(
    as_tree: Annotated[bool, typer.Option("--tree", help="Show what each offers, with switches.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List your servers, how each is, and what it offers."""
    daemon = client.connect()
    found = daemon.get("/resources", ResourceList, {"kind": "mcp_server"})

    def human() -> None:
        if as_tree:
            mcp_show.tree(daemon, found.resources)
            return
        mcp_show.table(found.resources)
        for broken in found.unreadable:
            render.note(f"note: {broken.name} cannot be read ({broken.reason}); coffer mcp remove {broken.name}")

    render.emit(as_json, found, human, quiet=quiet, names=[one.name for one in found.resources])


app.command("list", epilog="Example: coffer mcp list --tree")(list_)
app.command("ls", hidden=True)(list_)


@app.command(epilog="Example: coffer mcp show files")
def show(name: Server, as_json: Json = False, quiet: Quiet = False) -> None:
    """Show one server: its configuration, how it is, why it fails."""
    found = client.connect().get(client.server_path(name), ResourceView)
    render.emit(as_json, found, lambda: mcp_show.one(found), quiet=quiet, names=[found.name])


def remove(name: Server, yes: Yes = False, as_json: Json = False, quiet: Quiet = False) -> None:
    """Remove a server and what was chosen about its tools. Its log stays as long as its calls do (retention)."""
    question = f"Remove {name} and the choices about its tools for good?"
    named.remove("mcp_server", name, question, yes=yes, as_json=as_json, quiet=quiet)


app.command("remove", epilog="Example: coffer mcp remove files --yes")(remove)
app.command("rm", hidden=True)(remove)


@app.command(epilog="Example: coffer mcp enable files")
def enable(name: Server, no_wait: NoWait = False, as_json: Json = False, quiet: Quiet = False) -> None:
    """Switch a server on and start it."""
    daemon = client.connect()
    found = daemon.send("POST", client.server_path(name, "enable"), ResourceView)
    _settled(daemon, found, "enabled", wait=not no_wait, as_json=as_json, quiet=quiet)


@app.command(epilog="Example: coffer mcp disable files")
def disable(name: Server, as_json: Json = False, quiet: Quiet = False) -> None:
    """Switch a server off: it ends, and what it offers leaves every client's lists at once."""
    found = client.connect().send("POST", client.server_path(name, "disable"), ResourceView)
    render.emit(as_json, found, lambda: render.line(f"✓ {found.name} is disabled"), quiet=quiet)


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
    _settled(daemon, found, "restarted", wait=not no_wait, as_json=as_json, quiet=quiet)
