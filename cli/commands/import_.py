"""``coffer import``: the servers of other programs' configurations become Coffer's own.

Owns showing what will be done, asking, and doing it through the management API. Never changes the file it reads.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from coffer_cli import client, render
from coffer_cli.clients import files, foreign, known
from coffer_cli.errors import CliError, usage
from coffer_cli.options import Json, Quiet, Yes, confirm, pairs
from coffer_cli.text import counted
from coffer_common import exits
from coffer_common.api import (
    CreateResource,
    CredentialView,
    Removed,
    ResourceList,
    ResourceView,
    SetCredential,
)
from coffer_common.names import SERVER_NAME_RULE, is_server_name, legal_server_name
from coffer_common.resources import McpServerConfig, StdioServer

if TYPE_CHECKING:
    from coffer_cli.client import Client
    from coffer_cli.clients.foreign import Plan

CONFIG_HELP = "The configuration file, where it is not in its usual place."
SOURCES = ", ".join(known.CLIENTS)


class ImportedServer(msgspec.Struct, frozen=True, kw_only=True):
    """One entry: ``state`` is planned, imported, present (it was there already), skipped or failed. ``note``: where a
    project's server will run, and why."""

    key: str
    place: str
    name: str
    state: str
    transport: str
    enabled: bool
    per_project: bool
    credentials: list[str]
    ignored: list[str]
    reason: str
    note: str


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """``coffer import --json``."""

    file: str
    dry_run: bool
    servers: list[ImportedServer]


def add_to(root: typer.Typer) -> None:
    """``coffer import`` stands at the top."""
    root.command("import", epilog="Example: coffer import cursor --dry-run")(import_)


def import_(
    source: Annotated[str, typer.Argument(metavar="CLIENT|FILE", help=f"{SOURCES}, or a configuration file.")],
    *,
    config: Annotated[str | None, typer.Option("--config", metavar="FILE", help=CONFIG_HELP)] = None,
    rename: Annotated[
        list[str] | None, typer.Option("--rename", metavar="OLD=NEW", help="Import the entry OLD under the name NEW.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", metavar="ENTRY", help="Leave an entry out, spelt as in the file.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")] = False,
    allow_plaintext: Annotated[
        bool, typer.Option("--allow-plaintext", help="Leave secrets in the configuration, as they are.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Take over the servers of another program's configuration. Secrets go to the credential store; the file stays."""
    path, document = _read(*located(source, config))
    project = known.project_of(path, Path.home())
    plans = _plans(document, pairs(rename or (), "--rename"), skip or [], allow_plaintext, project)
    daemon = client.running() if dry_run else client.connect()
    present = _settle_names(daemon, plans, ask=not (yes or dry_run or as_json), dry_run=dry_run)
    if not as_json and not quiet:
        _show(path, plans, present)
    todo = [plan for plan in plans if not plan.problem and id(plan) not in present]
    states = {id(plan): ("planned" if dry_run else "imported", "") for plan in todo}
    if todo and not dry_run:
        confirm(f"Import {counted(len(todo), 'server')}?", yes)
        assert daemon is not None
        states = {id(plan): _carry_out(daemon, plan) for plan in todo}
    rows = [_row(plan, present.get(id(plan)), states) for plan in plans]
    done = Imported(file=str(path), dry_run=dry_run, servers=rows)
    _report(done, source if source in known.CLIENTS else "CLIENT", as_json=as_json, quiet=quiet)
    if any(plan.clash for plan in plans):
        raise typer.Exit(exits.CONFLICT)
    if any(state == "failed" for state, _ in states.values()) or (not dry_run and any(one.problem for one in plans)):
        raise typer.Exit(exits.FAILURE)


def _read(path: Path, form: known.Format) -> tuple[Path, Any]:
    data = files.read(path)
    if data is None:
        hint = "name the file: coffer import FILE, or --config FILE"
        raise CliError(f"there is no file {path}", hint, exits.NOT_FOUND)
    return path, files.document(path, files.text_of(path, data), form)


def located(source: str, config: str | None) -> tuple[Path, known.Format]:
    """The file that was meant, and its format."""
    found = known.CLIENTS.get(source)
    if config is not None:
        path = Path(config).expanduser().absolute()
        return path, found.format if found and path.suffix not in (".toml", ".json") else form_of(path)
    if found is not None:
        return found.file(Path.home(), sys.platform, os.environ), found.format
    path = Path(source).expanduser().absolute()
    if not path.exists() and os.sep not in source and not path.suffix:
        raise usage(f"{source} is neither a client that Coffer knows nor a file", f"clients: {SOURCES}")
    return path, form_of(path)


def form_of(path: Path) -> known.Format:
    """By the name's end."""
    return "toml" if path.suffix == ".toml" else "json"


def _plans(
    document: Any, renames: dict[str, str], skipped: list[str], allow_plaintext: bool, of_file: str
) -> "list[Plan]":
    plans: list[Plan] = []
    names: set[str] = set()
    for table, entries in known.server_tables(document).items():
        project = table[1] if table[0] == "projects" else of_file
        place = f"the project {project}" if project else ".".join(table)
        for key, entry in entries.items():
            names.add(key)
            if known.is_ours(entry) or key in skipped:
                continue
            plan = foreign.read(
                key,
                entry,
                place,
                os.environ,
                project=project,
                files=[word for word in foreign.words(entry) if project and _is_file_of(project, word)],
                allow_plaintext=allow_plaintext,
            )
            if key in renames:
                _check_name(renames[key])
                plan.rename(renames[key])
            plans.append(plan)
    for option, given in (("--rename", renames.keys()), ("--skip", set(skipped))):
        if unknown := given - names:
            raise usage(f"{option} {min(unknown)}: there is no such entry", "names are spelt as in the file")
    return plans


def _is_file_of(project: str, word: str) -> bool:
    return not os.path.isabs(word) and os.path.isfile(os.path.join(project, word))


def _check_name(name: str) -> None:
    if not is_server_name(name):
        raise usage(f"{name} cannot be a server's name", SERVER_NAME_RULE)


def _settle_names(daemon: "Client | None", plans: "list[Plan]", *, ask: bool, dry_run: bool) -> dict[int, str]:
    """Gives each plan a name of its own. Returned: what needs nothing done, and why.

    A clash that is left open is raised, and shown in a dry run.
    """
    taken: dict[str, ResourceView] = {}
    credentials: set[str] = set()
    if daemon is not None:
        listed = daemon.get("/resources", ResourceList, {"kind": "mcp_server"})
        taken = {one.name: one for one in listed.resources}
        stored = daemon.get("/resources", ResourceList, {"kind": "credential"})
        credentials = {one.name for one in stored.resources}
    present: dict[int, str] = {}
    used: dict[str, Plan] = {}
    for plan in (one for one in plans if not one.problem):
        if plan.name in used:
            if _one_for_both(plan, used[plan.name]):
                present[id(plan)] = f"it is the same as of {used[plan.name].place}, and runs in each project"
                continue
        elif plan.name in taken and _same(plan, taken[plan.name]):
            present[id(plan)] = "Coffer has it already"
        while plan.name in used or (plan.name in taken and id(plan) not in present):
            other = used.get(plan.name)
            holder = f"{other.wish} of {other.place}" if other else f"the server {plan.name} that Coffer has"
            try:
                _resolve(plan, holder, {*used, *taken}, ask=ask)
            except CliError as error:
                if not dry_run:
                    raise
                plan.problem, plan.clash = f"{error.message}; {error.hint}", True
                break
        else:
            used[plan.name] = plan
        if not plan.problem and id(plan) not in present:
            _free_credentials(plan, credentials)
    return present


def _one_for_both(plan: "Plan", other: "Plan") -> bool:
    """Whether two projects' entries are one server that is started for each: the folder is but where it came from."""
    alike = {**plan.config, "cwd": ""} == {**other.config, "cwd": ""} and plan.secrets == other.secrets
    return alike and plan.enabled == other.enabled and bool(plan.config.get("per_project"))


def _resolve(plan: "Plan", holder: str, names: set[str], *, ask: bool) -> None:
    number = 2
    while (proposal := f"{plan.name[:29].rstrip('-_')}-{number}") in names:
        number += 1
    what = f"{plan.wish} of {plan.place} would be called {plan.name}, as {holder} is"
    if not (ask and sys.stdin.isatty()):
        hint = f"give it another name: --rename '{plan.wish}={proposal}', or leave it out: --skip '{plan.wish}'"
        raise CliError(what, hint, exits.CONFLICT)
    name = typer.prompt(f"{what}. Another name for it", default=proposal, err=True)
    _check_name(name)
    plan.rename(name)


def _same(plan: "Plan", found: ResourceView) -> bool:
    """Whether it is what Coffer has: by what it starts or reaches. How it is curated there was chosen since."""
    wanted: Any = msgspec.convert(plan.config, McpServerConfig)
    try:
        there: Any = msgspec.convert(found.config, McpServerConfig)
    except msgspec.ValidationError:
        return False
    if type(wanted) is not type(there):
        return False
    members = ["command", "args", "env", "cwd"] if isinstance(there, StdioServer) else ["url", "headers"]
    if isinstance(there, StdioServer) and (there.per_project or wanted.per_project):
        members.remove("cwd")
    return all(getattr(wanted, member) == getattr(there, member) for member in members)


def _free_credentials(plan: "Plan", taken: set[str]) -> None:
    """A secret that is stored already under a name is nobody's to replace unasked."""
    for reference in list(plan.secrets):
        fresh, number = reference, 2
        while fresh in taken:
            fresh, number = legal_server_name(f"{reference[:28]}-{number}"), number + 1
        taken.add(fresh)
        if fresh != reference:
            plan.move_secret(reference, fresh)


def _show(path: Path, plans: "list[Plan]", present: dict[int, str]) -> None:
    if not plans:
        render.line(f"{path} names no servers")
        return
    render.line(f"servers in {path}:")
    for plan in plans:
        named = plan.name if plan.name == plan.wish else f"{plan.wish} → {plan.name}"
        if plan.problem:
            render.line(f"  ✗ {plan.wish}: cannot be imported: {plan.problem}")
            continue
        if id(plan) in present:
            render.line(f"  = {named}: {present[id(plan)]}")
            continue
        render.line(f"  + {named}{'' if plan.enabled else ' (disabled)'}: {_what(plan)}")
        if note := _note(plan):
            render.line(f"      {note}")
        for reference in plan.secrets:
            render.line(f"      a secret of it is stored as the credential {reference}")
        if plan.ignored:
            render.line(f"      not taken over, it stays in the file: {', '.join(plan.ignored)}")


def _note(plan: "Plan") -> str:
    """Where a project's server will run, and why."""
    cwd = plan.config.get("cwd")
    if plan.config.get("per_project"):
        undo = f"coffer mcp update {plan.name} --no-per-project"
        return f"runs in the directory of each client's project, in {cwd or 'your home'} where it has none ({undo})"
    return f"runs in {cwd} for every client: {plan.tied}" if plan.tied else ""


def _what(plan: "Plan") -> str:
    """What the server is; where secrets were left in it, no more than cannot hold one."""
    if plan.plain:
        return "at a URL" if "url" in plan.config else f"{plan.config['command']} …"
    return str(plan.config.get("url") or " ".join([plan.config["command"], *plan.config.get("args", ())]))


def _carry_out(daemon: "Client", plan: "Plan") -> tuple[str, str]:
    """(state, reason). Its credentials go again where the server cannot be registered."""
    stored: list[str] = []
    try:
        for reference, secret in plan.secrets.items():
            path = f"/credentials/{client.segment(reference)}"
            daemon.send("PUT", path, CredentialView, SetCredential(value=secret))
            stored.append(path)
        wish = CreateResource(
            kind="mcp_server",
            name=plan.name,
            config=plan.config,
            enabled=plan.enabled,
            allow_plaintext=plan.plain,
        )
        daemon.send("POST", "/resources", ResourceView, wish)
    except CliError as error:
        for path in stored:
            daemon.send("DELETE", path, Removed)
        return "failed", ". ".join(one for one in (error.message, error.hint) if one)
    return "imported", ""


def _report(done: Imported, owner: str, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        render.data(done)
        return
    for one in done.servers:
        if one.state == "failed":
            render.error(f"{one.name} could not be imported: {one.reason}")
    if quiet or done.dry_run:
        return
    count = sum(one.state == "imported" for one in done.servers)
    if count:
        render.line(f"✓ {counted(count, 'server')} imported; coffer mcp list shows how they are")
        render.line(f"  {done.file} is as it was; let its client use Coffer: coffer install {owner}")
    elif done.servers:
        render.line("nothing was imported")


def _row(plan: "Plan", present: str | None, states: dict[int, tuple[str, str]]) -> ImportedServer:
    if plan.problem:
        state, reason = "skipped", plan.problem
    elif present is not None:
        state, reason = "present", present
    else:
        state, reason = states[id(plan)]
    return ImportedServer(
        key=plan.wish,
        place=plan.place,
        name=plan.name,
        state=state,
        transport=str(plan.config.get("transport", "")),
        enabled=plan.enabled,
        per_project=bool(plan.config.get("per_project")),
        credentials=list(plan.secrets),
        ignored=plan.ignored,
        reason=reason,
        note="" if plan.problem else _note(plan),
    )
