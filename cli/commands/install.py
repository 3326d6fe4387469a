"""``coffer install`` and ``coffer uninstall``: Coffer's entry in a client's own configuration file.

Owns what is written there and that it is tried before it stays. Never touches an entry that is not Coffer's, except
those that ``--replace`` names to the person, and gives those back.
"""

import hashlib
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from coffer_cli import client, render
from coffer_cli.clients import files, foreign, handshake, known, records
from coffer_cli.commands.import_ import CONFIG_HELP, SOURCES, form_of
from coffer_cli.errors import CliError
from coffer_cli.options import Json, Quiet, group_names, server_names
from coffer_common import exits
from coffer_common.api import ResourceList

Config = Annotated[str | None, typer.Option("--config", metavar="FILE", help=CONFIG_HELP)]
OneServer = Annotated[
    str | None, typer.Option("--server", help="Give it this server alone.", autocompletion=server_names)
]
OneGroup = Annotated[str | None, typer.Option("--group", help="Give it this group alone.", autocompletion=group_names)]
Client = Annotated[str, typer.Argument(metavar="CLIENT", help=f"{SOURCES}; for any other, see what to paste.")]
EntryName = Annotated[str, typer.Option("--name", help="What the entry is called in the client.")]


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """``coffer install --json`` and ``coffer uninstall --json``. ``state``: installed, present, planned, snippet,
    removed. ``entry`` is what stands (or stood) in the file."""

    client: str
    file: str
    state: str
    key: list[str]
    entry: dict[str, Any]
    backup: str | None = None
    replaced: list[str] = []
    server: str = ""


@dataclass(frozen=True, slots=True)
class _Target:
    name: str
    title: str
    path: Path
    form: known.Format
    key: tuple[str, ...]
    client: known.Known | None

    def place(self, entry: str) -> tuple[str, ...]:
        return (*self.key, entry)


def add_to(root: typer.Typer) -> None:
    """Both stand at the top."""
    root.command("install", epilog="Example: coffer install cursor")(install)
    root.command("uninstall", epilog="Example: coffer uninstall cursor")(uninstall)


def install(
    name: Client,
    *,
    config: Config = None,
    entry_name: EntryName = known.ENTRY,
    server: OneServer = None,
    group: OneGroup = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Take out its entries of servers that Coffer has; uninstall puts them back."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written, and write nothing.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write Coffer into a client's configuration, and try it. A second time changes nothing."""
    words = [*(["--server", server] if server else []), *(["--group", group] if group else [])]
    environ = {"COFFER_HOME": str(client.home().root)} if os.environ.get("COFFER_HOME") else {}
    entry = known.entry(known.CLIENTS.get(name), _shim(), words, environ)
    target = _target(name, config)
    if target is None:
        _snippet(name, entry_name, entry, as_json)
        return
    before = files.read(target.path)
    document = _document(target, before)
    present = _at(document, target.place(entry_name))
    if present is not None and not known.is_ours(present):
        hint = f"give Coffer's another name: coffer install {name} --name coffer-gateway"
        raise CliError(f"{target.path} has an entry {entry_name} that is not Coffer's", hint, exits.CONFLICT)
    gone = _replaced(target, document, entry_name) if replace else []
    state = "present" if present == entry and not gone else "planned"
    key, shown = list(target.place(entry_name)), [_shown(one) for one in gone]
    done = Installed(client=name, file=str(target.path), state=state, key=key, entry=entry, replaced=shown)
    if state == "planned" and not dry_run:
        done = _write(target, entry_name, done, gone)
    _report(target, done, as_json, quiet)


def _shim() -> str:
    beside = Path(sys.executable).with_name("coffer-shim")
    found = str(beside) if beside.exists() else shutil.which("coffer-shim")
    if found is None:
        raise CliError("coffer-shim is not beside coffer", "install Coffer again: pip install .")
    return found


def _target(name: str, config: str | None) -> _Target | None:
    found = known.CLIENTS.get(name)
    if found is None and config is None:
        return None
    if config is None:
        assert found is not None
        path = found.file(Path.home(), sys.platform, os.environ)
        return _Target(name, found.title, path, found.format, found.key, found)
    path = Path(config).expanduser().absolute()
    form = found.format if found is not None else form_of(path)
    if found is not None:
        return _Target(name, found.title, path, form, found.key, found)
    data = files.read(path)
    tables = known.server_tables(files.document(path, files.text_of(path, data), form)) if data else {}
    usual = ("mcp_servers",) if form == "toml" else ("mcpServers",)
    key = next((one for one in tables if one[0] != "projects"), usual)
    return _Target(name, name, path, form, key, None)


def _document(target: _Target, data: bytes | None) -> Any:
    return {} if data is None else files.document(target.path, files.text_of(target.path, data), target.form)


def _at(document: Any, place: tuple[str, ...]) -> Any:
    for key in place:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _replaced(target: _Target, document: Any, entry_name: str) -> list[tuple[str, ...]]:
    """Where entries of the client stand that start, or reach, the same as a server in Coffer."""
    listed = client.connect().get("/resources", ResourceList, {"kind": "mcp_server"}).resources
    found = []
    for table, entries in known.server_tables(document).items():
        project = table[1] if table[0] == "projects" else ""
        if table != target.key and not project:
            continue
        there = {_what(one.config) for one in listed if not project or _serves(one.config, project)}
        for key, entry in entries.items():
            if (*table, key) == target.place(entry_name) or known.is_ours(entry):
                continue
            plans = [
                foreign.read(key, entry, "", os.environ, project=project, allow_plaintext=plain)
                for plain in (True, False)
            ]
            if there & {_what(plan.config) for plan in plans if not plan.problem}:
                found.append((*table, key))
    return found


def _serves(config: dict[str, Any], project: str) -> bool:
    """Whether a client in that folder is served there, as by an entry of its own."""
    return config.get("transport") == "http" or bool(config.get("per_project")) or config.get("cwd") == project


def _what(config: dict[str, Any]) -> str:
    if config.get("transport") == "http":
        return str(config.get("url", "")).partition("${")[0]
    return json.dumps([config.get("command"), *config.get("args", ())])


def _shown(place: tuple[str, ...]) -> str:
    return f"{place[-1]} (of {place[1]})" if place[0] == "projects" else place[-1]


def _write(target: _Target, entry_name: str, wish: Installed, gone: list[tuple[str, ...]]) -> Installed:
    place = target.place(entry_name)

    def edit(text: str) -> str:
        present = _at(files.document(target.path, text, target.form), place)
        if present is not None and not known.is_ours(present):
            raise CliError(f"another program wrote an entry {entry_name} into {target.path}", "", exits.CONFLICT)
        for one in gone:
            text = files.without_entry(target.path, text, target.form, one)
        return files.with_entry(target.path, text, target.form, place, wish.entry)

    before, after = files.change(target.path, edit)
    assert after is not None
    backup = None if before is None else files.keep_copy(target.path, before)
    try:
        written = _at(_document(target, files.read(target.path)), place)
        server = handshake.attempt(written)
    except BaseException as error:
        _roll_back(target, place, before, after)
        if backup is not None:
            backup.unlink(missing_ok=True)
        if isinstance(error, handshake.HandshakeError):
            hint = f"{target.path} is as it was; see: coffer doctor"
            raise CliError(f"{target.title} could not use Coffer: {error}", hint) from error
        raise
    home = client.home()
    old = records.find(home, target.path, place)
    record = records.Record(
        file=os.path.realpath(target.path),
        place=list(place),
        sha256="" if old else hashlib.sha256(after).hexdigest(),
        backup=str(backup) if backup else None,
        replaced=list(dict.fromkeys([*(old.replaced if old else []), *wish.replaced])),
        originals=[*(old.originals if old else []), *([str(backup)] if backup and gone else [])],
        places=[*(old.places if old else []), *map(list, gone)],
    )
    records.store(home, record)
    return msgspec.structs.replace(wish, state="installed", backup=record.backup, server=server)


def _roll_back(target: _Target, place: tuple[str, ...], before: bytes | None, after: bytes) -> None:
    """What was there; where somebody wrote meanwhile, only Coffer's entry is taken out again."""

    def edit(text: str) -> str | None:
        if text.encode() == after:
            return None if before is None else files.text_of(target.path, before)
        return files.without_entry(target.path, text, target.form, place)

    files.change(target.path, edit)


def uninstall(
    name: Client,
    *,
    config: Config = None,
    entry_name: EntryName = known.ENTRY,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Take Coffer's entry out of a client's configuration; what --replace took out is put back."""
    target = _target(name, config)
    if target is None:
        raise CliError(
            f"{name} is no client that Coffer knows", f"clients: {SOURCES}; or --config FILE", exits.NOT_FOUND
        )
    home, place = client.home(), target.place(entry_name)
    record = records.find(home, target.path, place)
    data = files.read(target.path)
    present = _at(_document(target, data), place)
    if present is None and record is None:
        raise CliError(f"Coffer is not in {target.path}", "", exits.NOT_FOUND)
    if present is not None and not known.is_ours(present):
        raise CliError(f"the entry {entry_name} in {target.path} is not Coffer's", "it stays", exits.CONFLICT)
    exact = _give_back(target, place, record)
    records.forget(home, target.path, place)
    backup = record.backup if record is not None else None
    if exact and backup is not None:
        Path(backup).unlink(missing_ok=True)
        backup = None
    done = Installed(
        client=name,
        file=str(target.path),
        state="removed",
        key=list(place),
        entry=present or {},
        backup=backup,
        replaced=record.replaced if record is not None else [],
    )
    _report(target, done, as_json, quiet)


def _give_back(target: _Target, place: tuple[str, ...], record: "records.Record | None") -> bool:
    """Whether the file is byte for byte what it was before Coffer."""
    exact = False

    def edit(text: str) -> str | None:
        nonlocal exact
        exact = record is not None and hashlib.sha256(text.encode()).hexdigest() == record.sha256
        if exact and record is not None and record.backup is None:
            return None
        if exact and record is not None and record.backup is not None:
            kept = files.read(Path(record.backup))
            if kept is not None:
                return files.text_of(target.path, kept)
            exact = False
        text = files.without_entry(target.path, text, target.form, place)
        return _with_originals(target, text, record) if record is not None else text

    files.change(target.path, edit)
    return exact


def _with_originals(target: _Target, text: str, record: "records.Record") -> str:
    """The entries that were taken out, as the copies from before have them; those that came back since stay."""
    for copy in record.originals:
        data = files.read(Path(copy))
        if data is None:
            raise CliError(
                f"the copy {copy} is gone, so that {', '.join(record.replaced)} cannot be put back into {target.path}",
                "put it back, or write those entries by hand; nothing was changed",
            )
        old = _document(target, data)
        for one in map(tuple, record.places or [list(target.place(key)) for key in record.replaced]):
            entry = _at(old, one)
            if entry is not None and _at(files.document(target.path, text, target.form), one) is None:
                text = files.with_entry(target.path, text, target.form, one, entry)
    return text


def _snippet(name: str, entry_name: str, entry: dict[str, Any], as_json: bool) -> None:
    done = Installed(client=name, file="", state="snippet", key=["mcpServers", entry_name], entry=entry)
    if as_json:
        render.data(done)
        return
    render.note(f"{name} is no client that Coffer knows; most take this in their configuration (or: --config FILE):")
    render.exact(json.dumps({"mcpServers": {entry_name: entry}}, indent=2))


def _report(target: _Target, done: Installed, as_json: bool, quiet: bool) -> None:
    if as_json:
        render.data(done)
        return
    if quiet:
        return
    if done.state == "planned":
        render.line(f"would write into {done.file}, under {'.'.join(done.key)}:")
        render.block(json.dumps(done.entry, indent=2, ensure_ascii=False))
    elif done.state == "present":
        render.line(f"✓ {target.title} uses Coffer already ({done.file}); nothing was changed")
    elif done.state == "removed":
        render.line(f"✓ Coffer is out of {done.file}")
    else:
        render.line(f"✓ {target.title} uses Coffer from now on ({done.file}); {done.server} answered its handshake")
    if done.replaced:
        verb = {"planned": "would take out", "installed": "taken out", "removed": "put back"}.get(done.state, "")
        render.line(f"  {verb}: {', '.join(done.replaced)}")
    if done.backup is not None:
        render.line(f"  what was there before: {done.backup}")
    if done.state in ("installed", "removed"):
        how = target.client.apply if target.client is not None else "restart it"
        render.line(f"  {target.title} takes that up when you {how}")
