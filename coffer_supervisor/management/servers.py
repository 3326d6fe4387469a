"""Handlers of what only an ``mcp_server`` has: capabilities, refresh, test, restart, a tool call, its log."""

import asyncio
import difflib
import os
from http import HTTPStatus
from pathlib import Path
from typing import Final, cast, get_args

import msgspec

from coffer_common.api import CallOutcome, CallTool, CapabilityList, LogLines, SwitchCapability, TestServer
from coffer_common.frames import CapabilityType
from coffer_common.names import is_server_name
from coffer_supervisor.management import views
from coffer_supervisor.management.errors import ApiError, invalid, missing
from coffer_supervisor.management.request import Answer, Request
from coffer_supervisor.management.resources import get
from coffer_supervisor.store import Resource

_TYPES: Final = get_args(CapabilityType)
_TAIL_BYTES: Final = 1024 * 1024
_LONGEST_WAIT: Final = 600.0
_A_DAY: Final = 86_400.0
_UNWELL: Final = frozenset({"failed", "backoff"})


async def capabilities(request: Request) -> Answer:
    """All that the server lists or ever listed, with the switches; ``?type=`` narrows."""
    await _server(request)
    wanted = request.query.get("type")
    if wanted is not None:
        _type(wanted)
    found = request.management.supervision.capabilities(request.name)
    return CapabilityList(
        capabilities=[views.capability_view(one) for one in found if wanted is None or one.type == wanted]
    )


async def enable_capability(request: Request) -> Answer:
    """Switches capabilities on."""
    return await _switch(request, True)


async def disable_capability(request: Request) -> Answer:
    """Switches capabilities off: out of every list at once, and a call is refused naming it."""
    return await _switch(request, False)


async def _switch(request: Request, on: bool) -> Answer:
    await _server(request)
    kind = _type(request.params["type"])
    keys = request.decode(SwitchCapability).keys
    supervision, preferences = request.management.supervision, request.management.store.preferences
    # A person may copy a name from a client, which knows the aggregate's.
    own = {one.exposed: one.key for one in supervision.capabilities(request.name) if one.type == kind}
    own |= {key: key for key in own.values()}
    unknown = [key for key in keys if key not in own]
    if unknown:
        hint = f"See what it lists: coffer mcp {_noun(kind)} {request.name}"
        raise missing(f"{kind} {unknown[0]!r} on the server {request.name}; nothing was switched", hint)
    for key in keys:
        await preferences.set(request.name, kind, own[key], on, actor=request.actor)
    await supervision.preference_changed(request.name)
    changed = {own[key] for key in keys}
    found = [one for one in supervision.capabilities(request.name) if one.type == kind and one.key in changed]
    return CapabilityList(capabilities=[views.capability_view(one) for one in found])


async def refresh(request: Request) -> Answer:
    """Reads the server's lists again."""
    await running(request)
    await request.management.supervision.refresh(request.name)
    return await _shown(request)


async def test(request: Request) -> Answer:
    """Waits until the server's discovery has an outcome, at most ``timeout`` seconds, and says how it is."""
    wish = request.decode(TestServer)
    await running(request)
    supervision = request.management.supervision
    view = supervision.view(request.name)
    if wish.fresh and view is not None and view.state in _UNWELL:
        await supervision.restart(request.name)
    deadline = asyncio.get_running_loop().time() + min(max(wish.timeout, 0.0), _LONGEST_WAIT)
    await supervision.wait_discovered(request.name, deadline)
    return await _shown(request)


async def restart(request: Request) -> Answer:
    """Ends the server's worker and all it started, and starts it again."""
    await running(request)
    await request.management.supervision.restart(request.name)
    return await _shown(request)


async def call(request: Request) -> Answer:
    """Calls a tool. 200 also where the tool or the protocol says no: ``ok`` tells, and the words are theirs."""
    wish = request.decode(CallTool)
    await _server(request)
    arguments = bytes(wish.arguments)
    if not arguments.startswith(b"{"):
        raise invalid("invalid_arguments", "the arguments of a tool are a JSON object")
    _refuse_unlisted(request, wish.tool)
    ok, payload = await request.management.router.call_for_management(
        request.name, wish.tool, arguments, wish.timeout or _A_DAY, client=request.actor
    )
    raw = msgspec.Raw(payload)
    return CallOutcome(ok=True, result=raw) if ok else CallOutcome(ok=False, error=raw)


def _refuse_unlisted(request: Request, tool: str) -> None:
    """A tool that is in no list of a server whose lists are known: the server need not be asked."""
    supervision, name = request.management.supervision, request.name
    view = supervision.view(name)
    own = {one.key: one.exposed for one in supervision.capabilities(name) if one.type == "tool"}
    if view is None or view.state != "ready" or view.missing or not own or tool in own:
        return
    meant = [key for key, exposed in own.items() if exposed == tool] or difflib.get_close_matches(tool, own, 3)
    guess = f"Did you mean {' or '.join(meant)}? " if meant else ""
    raise missing(f"tool {tool!r} on the server {name}", f"{guess}See what it offers: coffer mcp tools {name}")


async def logs(request: Request) -> Answer:
    """The last ``?lines=`` of the upstream's log: its stderr, its messages, and what it wrongly printed.

    ``?after=`` (an ``end`` of an earlier answer): only whole lines that came since. A removed server's can be read
    while it is there.
    """
    path = request.management.home.upstream_log(request.name)
    if not (is_server_name(request.name) and path.exists()):
        await _server(request)
    count = request.number("lines", 100, most=10_000)
    after = request.number("after", 0, least=0, most=2**62)
    lines, end = await asyncio.to_thread(tail, path, count, after)
    return LogLines(lines=lines, end=end)


def tail(path: Path, count: int, after: int = 0) -> tuple[list[str], int]:
    """The last whole lines of a file, oldest first, and where they end; none where there is no file. Blocks.

    A file shorter than ``after`` has been rotated: it is read from its beginning.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = after if 0 < after <= size else 0
            cut = max(start, size - _TAIL_BYTES)
            file.seek(cut)
            raw = file.read(_TAIL_BYTES)
    except FileNotFoundError:
        return [], 0
    whole = raw.rfind(b"\n") + 1
    lines = raw[:whole].decode("utf-8", "replace").split("\n")[:-1]
    if cut > start:
        lines = lines[1:]  # the first is most likely half a line
    return lines[-count:], cut + whole


async def _server(request: Request) -> Resource:
    return await request.management.store.resources.get("mcp_server", request.name)


async def running(request: Request) -> None:
    """Refuses for a server that is switched off."""
    if not (await _server(request)).enabled:
        hint = f"Switch it on: coffer mcp enable {request.name}"
        raise ApiError(HTTPStatus.CONFLICT, "server_disabled", f"the server {request.name} is disabled", hint)


async def _shown(request: Request) -> Answer:
    return await get(Request(request.management, {"kind": "mcp_server", "name": request.name}, {}, request.actor))


def _type(text: str) -> CapabilityType:
    if text not in _TYPES:
        raise missing(f"type of capability named {text!r}", f"Types: {', '.join(_TYPES)}.")
    return cast(CapabilityType, text)


def _noun(kind: CapabilityType) -> str:
    return {"tool": "tools", "prompt": "prompts"}.get(kind, "resources")
