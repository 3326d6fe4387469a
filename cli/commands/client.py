"""``coffer client ...``: downstream identities, each with a token of its own and a scope."""

from typing import Annotated, Any

import typer

from coffer_cli import client, render
from coffer_cli.commands import named
from coffer_cli.errors import usage
from coffer_cli.options import Json, Quiet, Yes, client_names, group_names, server_names
from coffer_cli.text import local_time
from coffer_common.api import ClientToken, CreateClient, PatchResource, ResourceList, ResourceView

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The client's name.", autocompletion=client_names)]
Servers = Annotated[
    list[str] | None,
    typer.Option("--server", "-s", metavar="NAME", help="A server it may use.", autocompletion=server_names),
]
Groups = Annotated[
    list[str] | None,
    typer.Option("--group", "-g", metavar="NAME", help="A group it may use.", autocompletion=group_names),
]
Description = Annotated[str | None, typer.Option("--description", help="A line for yourself.")]


@app.command(epilog="Example: coffer client add cursor --server github --server files")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for it: a-z, 0-9, '-' and '_'.")],
    *,
    server: Servers = None,
    group: Groups = None,
    description: Description = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Let a client connect with a token of its own, to all servers or to those named. The token is shown this once."""
    servers, groups = _scope(server, group)
    wish = CreateClient(name=name, servers=servers, groups=groups, description=description or "")
    done = client.connect().send("POST", "/clients", ClientToken, wish)
    _show_token(done, "may connect", as_json=as_json, quiet=quiet)


def _scope(servers: list[str] | None, groups: list[str] | None) -> tuple[list[str] | None, list[str] | None]:
    """One that is given servers only gets no groups, and the reverse: a scope is what was named."""
    if not servers and not groups:
        return None, None
    return servers or [], groups or []


def _show_token(done: ClientToken, verb: str, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        render.data(done)
        return
    if quiet:
        render.exact(done.token)
        return
    daemon = client.connect()
    base = f"http://127.0.0.1:{daemon.info.port}"
    render.line(f"✓ {done.client.name} {verb}; its token, shown this once:")
    render.exact(f"  {done.token}")
    for path in _endpoints(done.client.config):
        render.line(f"  {base}{path}   with the header  Authorization: Bearer TOKEN")
        render.line(f"  {base}/key/TOKEN{path}   where a client can send no header")


def _endpoints(config: dict[str, Any]) -> list[str]:
    groups, servers = config.get("groups"), config.get("servers")
    found = [f"/groups/{name}/mcp" for name in groups or ()]
    return ["/mcp", *found] if servers is None or servers else found


def list_(as_json: Json = False, quiet: Quiet = False) -> None:
    """List the clients and what each may use; never the tokens."""
    found = client.connect().get("/resources", ResourceList, {"kind": "client"})
    names = [one.name for one in found.resources]
    columns = [
        render.Column("NAME"),
        render.Column("SERVERS", fold=True),
        render.Column("GROUPS", fold=True),
        render.Column("STATE"),
        render.Column("CHANGED"),
        render.Column("DESCRIPTION", fold=True),
    ]
    rows = [
        [
            one.name,
            _names(one.config.get("servers")),
            _names(one.config.get("groups")),
            "enabled" if one.enabled else "disabled",
            local_time(one.updated_at),
            one.description,
        ]
        for one in found.resources
    ]
    render.emit(as_json, found, lambda: render.table(columns, rows), quiet=quiet, names=names)


def _names(found: Any) -> str:
    return "all" if found is None else ", ".join(found) or "-"


app.command("list", epilog="Example: coffer client list")(list_)
app.command("ls", hidden=True)(list_)


@app.command(epilog="Example: coffer client show cursor")
def show(name: Name, as_json: Json = False, quiet: Quiet = False) -> None:
    """Show one client; never its token."""
    found = client.connect().get(named.path("client", name), ResourceView)

    def human() -> None:
        render.line(f"{found.name}{'' if found.enabled else '  (disabled)'}")
        if found.description:
            render.line(f"  {found.description}")
        render.line(f"  servers: {_names(found.config.get('servers'))}")
        render.line(f"  groups:  {_names(found.config.get('groups'))}")
        render.line(f"  added {local_time(found.created_at)}, changed {local_time(found.updated_at)}")

    render.emit(as_json, found, human, quiet=quiet, names=[found.name])


@app.command(epilog="Example: coffer client update cursor --server github")
def update(
    name: Name,
    *,
    server: Servers = None,
    group: Groups = None,
    everything: Annotated[bool, typer.Option("--all", help="It may use all servers and groups.")] = False,
    description: Description = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Change what a client may use: the servers and groups named here, and no others. Its sessions start anew."""
    if everything and (server or group):
        raise usage("--all goes without --server and --group")
    config: dict[str, Any] = {}
    if everything:
        config = {"servers": None, "groups": None}
    elif server or group:
        config["servers"], config["groups"] = _scope(server, group)
    if not config and description is None:
        raise usage("nothing to change was given", f"for example: coffer client update {name} --server github")
    wish = PatchResource(config=config or None, description=description)
    done = client.connect().send("PATCH", named.path("client", name), ResourceView, wish)
    named.say(done, "is changed", as_json=as_json, quiet=quiet)


@app.command(epilog="Example: coffer client enable cursor")
def enable(name: Name, as_json: Json = False, quiet: Quiet = False) -> None:
    """Let a disabled client connect again."""
    named.switch("client", name, "enable", "may connect again", as_json=as_json, quiet=quiet)


@app.command(epilog="Example: coffer client disable cursor")
def disable(name: Name, as_json: Json = False, quiet: Quiet = False) -> None:
    """Shut a client out without forgetting it: its sessions are cut at once."""
    named.switch("client", name, "disable", "is shut out", as_json=as_json, quiet=quiet)


@app.command(epilog="Example: coffer client rotate cursor")
def rotate(name: Name, as_json: Json = False, quiet: Quiet = False) -> None:
    """Give a client a new token, shown this once. The old one is worth nothing at once, and its sessions are cut."""
    done = client.connect().send("POST", f"/clients/{client.segment(name)}/rotate", ClientToken)
    _show_token(done, "has a new token", as_json=as_json, quiet=quiet)


def remove(name: Name, yes: Yes = False, as_json: Json = False, quiet: Quiet = False) -> None:
    """Revoke a client for good: its token is worth nothing at once, and its sessions are cut."""
    question = f"Remove the client {name}? Its token is worth nothing then."
    named.remove("client", name, question, yes=yes, as_json=as_json, quiet=quiet)


app.command("remove", epilog="Example: coffer client remove cursor --yes")(remove)
app.command("rm", hidden=True)(remove)
