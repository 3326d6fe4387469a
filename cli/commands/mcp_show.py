"""How servers look on a terminal: the table, the tree, one in full."""

from typing import TYPE_CHECKING, Any

from coffer_cli import client, render
from coffer_cli.commands.mcp_wait import reason
from coffer_cli.text import duration, local_time, shortened
from coffer_common.api import CapabilityList, CapabilityView, Count, ResourceView, ServerStatus

if TYPE_CHECKING:
    from coffer_cli.client import Client

_UNWELL = ("backoff", "failed", "needs_login")
_ORDER = ("tool", "resource", "template", "prompt")


def table(servers: list[ResourceView]) -> None:
    """A line a server."""
    if not servers:
        render.line("no servers yet; add one: coffer mcp add NAME -- COMMAND ARGS...")
        return
    columns = [
        render.Column("NAME"),
        render.Column("STATE"),
        render.Column("VIA"),
        render.Column("MCP"),
        render.number("TOOLS"),
        render.number("RES"),
        render.number("PROMPTS"),
        render.number("CALLS 24H"),
        render.Column("NOTE", fold=True),
    ]
    render.table(columns, [_row(server) for server in servers])


def _row(server: ResourceView) -> list[str]:
    status = server.status or ServerStatus(state="stopped")
    counts = status.counts
    return [
        server.name,
        status.state,
        status.transport or "-",
        status.revision or "-",
        _count(counts.get("tool")),
        _count(_sum(counts.get("resource"), counts.get("template"))),
        _count(counts.get("prompt")),
        "-" if status.calls_24h is None else str(status.calls_24h),
        _note(server, status),
    ]


def _sum(one: Count | None, other: Count | None) -> Count | None:
    if one is None or other is None:
        return one or other
    return Count(enabled=one.enabled + other.enabled, total=one.total + other.total)


def _count(count: Count | None) -> str:
    if count is None:
        return "-"
    return str(count.total) if count.enabled == count.total else f"{count.enabled}/{count.total}"


def _note(server: ResourceView, status: ServerStatus) -> str:
    if status.state in _UNWELL:
        return shortened(reason(server.name, status, quoting=True), 160)
    if status.missing and status.state == "ready":
        return shortened(f"about its lists: {status.missing}", 160)
    return server.description


def one(server: ResourceView) -> None:
    """All about one server."""
    status = server.status or ServerStatus(state="stopped")
    unwell = status.state in _UNWELL
    facts: list[tuple[str, str]] = [
        ("name", server.name),
        ("description", server.description),
        ("state", status.state + (f": {reason(server.name, status)}" if unwell else "")),
        ("speaks", f"MCP {status.revision} ({status.era})" if status.revision else ""),
        ("calls itself", _identity(status)),
        ("up", duration(status.up_seconds) if status.up_seconds is not None else ""),
        ("restarts", str(status.restarts)),
        ("last error", "" if unwell else status.last_error),
        ("about its lists", status.missing if status.state == "ready" else ""),
        *((f"{kind}s", _count(status.counts.get(kind))) for kind in _ORDER if kind in status.counts),
        ("added", local_time(server.created_at)),
        ("changed", local_time(server.updated_at)),
        *_config_facts(server.config),
    ]
    width = max(len(title) for title, _ in facts)
    for title, value in facts:
        if value:
            render.line(f"{title:<{width}}  {value}")
    if status.stderr:
        render.line(f"last lines of its stderr (coffer mcp logs {server.name})")
        for text in status.stderr:
            render.line(f"  {text}")


def _identity(status: ServerStatus) -> str:
    return " ".join(str(status.server_info[key]) for key in ("name", "version") if key in status.server_info)


def _config_facts(config: dict[str, Any]) -> list[tuple[str, str]]:
    import shlex

    facts: list[tuple[str, str]] = []
    for key, value in config.items():
        if key == "command":
            facts.append(("command", shlex.join([str(value), *config.get("args", [])])))
        elif key in ("env", "headers", "limits"):
            facts += [(f"{key} {name}", "off" if inner is None else str(inner)) for name, inner in value.items()]
        elif key == "oauth":
            facts += [(f"oauth {name.replace('_', ' ')}", inner) for name, inner in value.items()]
        elif key != "args":
            shown = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
            facts.append((key.replace("_", " "), shown))
    return facts


def tree(daemon: "Client", servers: list[ResourceView]) -> None:
    """Servers, and below them what each offers, with switches."""
    nodes = []
    for server in servers:
        found = daemon.get(client.server_path(server.name, "capabilities"), CapabilityList)
        state = server.status.state if server.status else "stopped"
        nodes.append(render.Node(f"{server.name}  {state}", [*_branches(found.capabilities)]))
    render.tree(render.Node("coffer", nodes))


def _branches(capabilities: list[CapabilityView]) -> list[render.Node]:
    branches = []
    for kind in _ORDER:
        own = [one for one in capabilities if one.type == kind and one.listed]
        if own:
            on = sum(one.enabled for one in own)
            leaves = [render.Node(f"{'[x]' if one.enabled else '[ ]'} {one.key}", faint=not one.enabled) for one in own]
            branches.append(render.Node(f"{kind}s  {_count(Count(enabled=on, total=len(own)))}", leaves))
    return branches
