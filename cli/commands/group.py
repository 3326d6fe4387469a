"""``coffer group ...``: named sets of servers and capabilities, each with an endpoint of its own."""

from typing import Annotated, Any, Final

import typer

from coffer_cli import client, render
from coffer_cli.commands import named
from coffer_cli.errors import usage
from coffer_cli.options import Json, Quiet, Yes, group_names, pairs, server_names
from coffer_cli.text import local_time
from coffer_common.api import CreateResource, PatchResource, ResourceList, ResourceView

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
_TYPES: Final = ("tool", "resource", "template", "prompt")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The group's name.", autocompletion=group_names)]
Servers = Annotated[
    list[str] | None,
    typer.Option("--server", "-s", metavar="NAME", help="A server, with all it offers.", autocompletion=server_names),
]
Capabilities = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        "-o",
        metavar="SERVER[:TYPE]/PATTERN",
        help="Part of a server: github/search_*, files:resource/file:///a/*. Types: tool, resource, template, prompt.",
    ),
]
Describe = Annotated[
    list[str] | None,
    typer.Option("--describe", metavar="SERVER/TOOL=TEXT", help="A tool of the group, under a description of its own."),
]
Description = Annotated[str | None, typer.Option("--description", help="A line for yourself.")]


@app.command(epilog="Example: coffer group add office --server github --only 'files/read_*'")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for it: a-z, 0-9, '-' and '_'.")],
    *,
    server: Servers = None,
    only: Capabilities = None,
    describe: Describe = None,
    description: Description = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a group of whole servers and of parts of servers. Clients find it at /groups/NAME/mcp."""
    config = {"servers": server or [], "capabilities": _patterns(only, describe)}
    if not (config["servers"] or config["capabilities"]):
        raise usage("a group without members offers nothing", f"for example: coffer group add {name} --server github")
    wish = CreateResource(kind="group", name=name, config=config, description=description or "")
    daemon = client.connect()
    done = daemon.send("POST", "/resources", ResourceView, wish)
    where = f"http://127.0.0.1:{daemon.info.port}/groups/{name}/mcp"
    named.say(done, f"is there, at {where}", as_json=as_json, quiet=quiet)


def _patterns(only: list[str] | None, describe: list[str] | None) -> list[dict[str, Any]]:
    described = pairs(describe or (), "--describe")
    return [*(_pattern(word) for word in only or ()), *(_pattern(word, text) for word, text in described.items())]


def _pattern(word: str, description: str | None = None) -> dict[str, Any]:
    member, slash, pattern = word.partition("/")
    server, _, type_ = member.partition(":")
    if not slash or not pattern or not server:
        raise usage(f"{word!r} names no part of a server", "for example: github/search_*, or files:resource/file:///*")
    if type_ and type_ not in _TYPES:
        raise usage(f"there is no type of capability named {type_!r}", f"types: {', '.join(_TYPES)}")
    found: dict[str, Any] = {"server": server, "pattern": pattern}
    if type_:
        found["type"] = type_
    if description is not None:
        found |= {"type": "tool", "description": description}
    return found


def list_(as_json: Json = False, quiet: Quiet = False) -> None:
    """List the groups and what is in each."""
    found = client.connect().get("/resources", ResourceList, {"kind": "group"})
    names = [one.name for one in found.resources]
    columns = [render.Column("NAME"), render.Column("MEMBERS", fold=True), render.Column("STATE")]
    columns += [render.Column("CHANGED"), render.Column("DESCRIPTION", fold=True)]
    rows = [
        [
            one.name,
            ", ".join(_members(one.config)) or "-",
            "enabled" if one.enabled else "disabled",
            local_time(one.updated_at),
            one.description,
        ]
        for one in found.resources
    ]
    render.emit(as_json, found, lambda: render.table(columns, rows), quiet=quiet, names=names)


def _members(config: dict[str, Any]) -> list[str]:
    found = [str(name) for name in config.get("servers") or ()]
    for one in config.get("capabilities") or ():
        type_ = f":{one['type']}" if one.get("type") else ""
        found.append(f"{one['server']}{type_}/{one.get('pattern', '*')}")
    return found


app.command("list", epilog="Example: coffer group list")(list_)
app.command("ls", hidden=True)(list_)


@app.command(epilog="Example: coffer group show office")
def show(name: Name, as_json: Json = False, quiet: Quiet = False) -> None:
    """Show what is in a group, and where clients find it."""
    daemon = client.connect()
    found = daemon.get(named.path("group", name), ResourceView)

    def human() -> None:
        render.line(f"{found.name}{'' if found.enabled else '  (disabled)'}")
        if found.description:
            render.line(f"  {found.description}")
        render.line(
            f"  at http://127.0.0.1:{daemon.info.port}/groups/{found.name}/mcp, or coffer-shim --group {found.name}"
        )
        for member in _members(found.config):
            render.line(f"  {member}")
        for one in found.config.get("capabilities") or ():
            if one.get("description"):
                render.line(f"  {one['server']}/{one.get('pattern', '*')} is described as: {one['description']}")

    render.emit(as_json, found, human, quiet=quiet, names=[found.name])


@app.command(epilog="Example: coffer group update office --server github --server files")
def update(
    name: Name,
    *,
    server: Servers = None,
    only: Capabilities = None,
    describe: Describe = None,
    description: Description = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Change a group's members to those named here, and no others. Connected clients are told."""
    config: dict[str, Any] | None = None
    if server or only or describe:
        config = {"servers": server or [], "capabilities": _patterns(only, describe)}
    if config is None and description is None:
        raise usage("nothing to change was given", f"for example: coffer group update {name} --server github")
    wish = PatchResource(config=config, description=description)
    done = client.connect().send("PATCH", named.path("group", name), ResourceView, wish)
    named.say(done, "is changed", as_json=as_json, quiet=quiet)


@app.command(epilog="Example: coffer group enable office")
def enable(name: Name, as_json: Json = False, quiet: Quiet = False) -> None:
    """Offer a disabled group again."""
    named.switch("group", name, "enable", "is offered again", as_json=as_json, quiet=quiet)


@app.command(epilog="Example: coffer group disable office")
def disable(name: Name, as_json: Json = False, quiet: Quiet = False) -> None:
    """Offer nothing at a group's endpoint, without forgetting the group."""
    named.switch("group", name, "disable", "offers nothing", as_json=as_json, quiet=quiet)


def remove(name: Name, yes: Yes = False, as_json: Json = False, quiet: Quiet = False) -> None:
    """Remove a group; its servers stay."""
    question = f"Remove the group {name}? Its servers stay."
    named.remove("group", name, question, yes=yes, as_json=as_json, quiet=quiet)


app.command("remove", epilog="Example: coffer group remove office --yes")(remove)
app.command("rm", hidden=True)(remove)
