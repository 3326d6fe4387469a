"""``coffer mcp tools|resources|prompts|call|logs``: what servers offer, and using it."""

import sys
from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from coffer_cli import client, render
from coffer_cli.commands.following import follow_lines
from coffer_cli.errors import CliError, usage
from coffer_cli.options import Follow, Json, Quiet, Server, pairs
from coffer_cli.text import safe, safe_block
from coffer_common import exits
from coffer_common.api import (
    CallOutcome,
    CallTool,
    CapabilityList,
    CapabilityView,
    LogLines,
    SwitchCapability,
)

On = Annotated[list[str] | None, typer.Option("--enable", metavar="KEY", help="Switch one on.")]
Off = Annotated[list[str] | None, typer.Option("--disable", metavar="KEY", help="Switch one off.")]
Lines = Annotated[int, typer.Option("--lines", "-n", min=1, max=10_000, help="How many of the last lines.")]
_CALL_SECONDS = 3600.0


def add_to(app: typer.Typer) -> None:
    """The commands stand beside those of ``mcp``."""
    app.command("tools", epilog="Example: coffer mcp tools files --disable write_file")(tools)
    app.command("resources", epilog="Example: coffer mcp resources files")(resources)
    app.command("prompts", epilog="Example: coffer mcp prompts files")(prompts)
    app.command("call", epilog="Example: coffer mcp call time get_current_time --arg timezone=UTC")(call)
    app.command("logs", epilog="Example: coffer mcp logs files --follow")(logs)


def tools(name: Server, enable: On = None, disable: Off = None, as_json: Json = False, quiet: Quiet = False) -> None:
    """List a server's tools with their names on both sides, or switch some."""
    _capabilities(name, ("tool",), enable, disable, as_json=as_json, quiet=quiet)


def resources(
    name: Server, enable: On = None, disable: Off = None, as_json: Json = False, quiet: Quiet = False
) -> None:
    """List a server's resources and resource templates, or switch some (by URI)."""
    _capabilities(name, ("resource", "template"), enable, disable, as_json=as_json, quiet=quiet)


def prompts(name: Server, enable: On = None, disable: Off = None, as_json: Json = False, quiet: Quiet = False) -> None:
    """List a server's prompts, or switch some."""
    _capabilities(name, ("prompt",), enable, disable, as_json=as_json, quiet=quiet)


def _capabilities(
    name: str, kinds: tuple[str, ...], on: list[str] | None, off: list[str] | None, *, as_json: bool, quiet: bool
) -> None:
    both = sorted({*(on or [])} & {*(off or [])})
    if both:
        raise usage(f"{safe(both[0])} is to be both on and off; nothing was switched", "say one of the two")
    daemon = client.connect()
    path = client.server_path(name, "capabilities")
    found = daemon.get(path, CapabilityList)
    for kind, verb, own in _switches(found.capabilities, kinds, on or [], off or []):
        daemon.send("POST", f"{path}/{kind}/{verb}", CapabilityList, SwitchCapability(keys=own))
    if on or off:
        found = daemon.get(path, CapabilityList)
    shown = CapabilityList(capabilities=[one for one in found.capabilities if one.type in kinds])
    names = [one.key for one in shown.capabilities if one.listed]
    table = partial(_capability_table, shown.capabilities, len(kinds) > 1)
    render.emit(as_json, shown, table, quiet=quiet, names=names)


def _switches(
    capabilities: list[CapabilityView], kinds: tuple[str, ...], on: list[str], off: list[str]
) -> list[tuple[str, str, list[str]]]:
    """What to send, as (type, verb, keys). What holds an unknown key stands first: its refusal names the key, and
    then nothing has been switched."""
    types = {key: one.type for one in capabilities if one.type in kinds for key in (one.exposed, one.key)}
    sorted_: dict[tuple[str, str], list[str]] = {}
    for verb, keys in (("enable", on), ("disable", off)):
        for key in keys:
            sorted_.setdefault((types.get(key, kinds[0]), verb), []).append(key)
    found = [(kind, verb, keys) for (kind, verb), keys in sorted_.items()]
    return sorted(found, key=lambda one: all(key in types for key in one[2]))


def _capability_table(capabilities: list[CapabilityView], with_type: bool) -> None:
    columns = [render.Column("ON"), render.Column("UPSTREAM"), render.Column("IN COFFER"), render.Column("NOTE")]
    if with_type:
        columns.insert(1, render.Column("TYPE"))
    rows = []
    for one in capabilities:
        row = ["yes" if one.enabled else "no", one.key, one.exposed, "" if one.listed else "not listed now"]
        if with_type:
            row.insert(1, one.type)
        rows.append(row)
    render.table(columns, rows)


def call(
    name: Server,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool, by the server's own name for it.")],
    *,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            "-a",
            metavar="K=V",
            help="An argument; numbers, true, false, null, [...] and {...} are read as JSON, all else as text.",
        ),
    ] = None,
    json_args: Annotated[
        str | None,
        typer.Option("--json-args", metavar="JSON", help="All arguments as one JSON object; - reads it from stdin."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0.1, help="Seconds in all; default: the server's limits.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Call a tool and print its answer; exit code 1 where the tool says it failed."""
    wish = CallTool(tool=tool, arguments=_arguments(arg or [], json_args), timeout=timeout)
    daemon = client.connect()
    outcome = daemon.send("POST", client.server_path(name, "call"), CallOutcome, wish, timeout=_CALL_SECONDS)
    result = _decoded(outcome.result)
    failed = not outcome.ok or result.get("isError") is True
    if as_json:
        render.data(outcome)
    elif not outcome.ok:
        _refused(name, tool, _decoded(outcome.error))
    elif failed:
        render.error(f"{name}: {safe(tool)} failed: {_text(result).strip() or 'it did not say why'}")
    elif not quiet:
        render.block(_text(result))
    if failed:
        raise typer.Exit(exits.FAILURE)


_OFFERS = "see what it offers: coffer mcp tools {name}"
_HINTS = {"unknown_capability": _OFFERS, "None": _OFFERS, "capability_disabled": "", "server_disabled": ""}
_EXITS = {
    "unknown_capability": exits.NOT_FOUND,
    "unknown_server": exits.NOT_FOUND,
    "capability_disabled": exits.CONFLICT,
    "server_disabled": exits.CONFLICT,
}


def _refused(name: str, tool: str, error: dict[str, Any]) -> None:
    message = str(error.get("message", "no message"))
    data = error.get("data")
    reason = data.get("reason") if isinstance(data, dict) else None
    hint = _HINTS.get(str(reason), "see how it is: coffer ps {name}").format(name=name)
    own = "" if reason else f"{name}: {safe(tool)}: "
    raise CliError(f"{own}{message}", hint, _exit_code(reason))


def _exit_code(reason: object) -> int:
    return _EXITS.get(str(reason), exits.FAILURE)


def _arguments(words: list[str], whole: str | None) -> msgspec.Raw:
    text = sys.stdin.read() if whole == "-" else whole
    members: dict[str, Any] = {}
    if text is not None:
        try:
            members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        except msgspec.DecodeError as error:
            raise usage(
                f"--json-args is no JSON object: {error}", """for example: --json-args '{"path": "/tmp"}'"""
            ) from error
        if not words:
            return msgspec.Raw(text.strip().encode())
    for key, value in pairs(words, "--arg").items():
        members[key] = _value(value)
    return msgspec.Raw(msgspec.json.encode(members))


def _value(text: str) -> Any:
    try:
        return msgspec.Raw(text.encode()) if msgspec.json.decode(text, type=msgspec.Raw) else text
    except (msgspec.DecodeError, UnicodeError):
        return text


def _decoded(raw: msgspec.Raw) -> dict[str, Any]:
    import json  # takes what JavaScript servers send and msgspec refuses: lone surrogates

    value = json.loads(bytes(raw))
    return value if isinstance(value, dict) else {}


def _text(result: dict[str, Any]) -> str:
    parts = [_block(block) for block in result.get("content") or [] if isinstance(block, dict)]
    if not parts and "structuredContent" in result:
        parts.append(render.as_json(msgspec.json.encode(result["structuredContent"])))
    return "\n".join(parts)


def _block(block: dict[str, Any]) -> str:
    kind = str(block.get("type"))
    if kind == "text":
        return safe_block(str(block.get("text", "")))
    if kind == "resource_link":
        return f"[resource {block.get('uri')}]"
    if kind == "resource" and isinstance(block.get("resource"), dict):
        inner = block["resource"]
        return str(inner["text"]) if "text" in inner else f"[resource {inner.get('uri')}, {inner.get('mimeType')}]"
    return f"[{kind} {block.get('mimeType', '')}, {len(str(block.get('data', '')))} characters of base64]"


def logs(
    name: Server,
    lines: Lines = 50,
    following: Follow = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Print a server's log: its stderr, its log messages, and what it wrongly printed on stdout."""
    daemon = client.connect()

    def some(page: dict[str, int]) -> LogLines:
        return daemon.get(client.server_path(name, "logs"), LogLines, page)

    for found in follow_lines(daemon, name, some, lines) if following else (some({"lines": lines}),):
        if as_json and following:
            render.line(render.json_line(msgspec.json.encode(found)))
        else:
            render.emit(as_json, found, partial(_lines, found.lines), quiet=quiet, names=found.lines)
        sys.stdout.flush()


def _lines(lines: list[str]) -> None:
    for text in lines:
        render.line(text)
