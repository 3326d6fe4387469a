"""What a client of the SDK sees of a server, from the first word to an error: for comparing two ways to reach it."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import ClientSession
from mcp.shared.exceptions import MCPError


async def transcript(session: ClientSession, era: str) -> list[Any]:
    """Lists, calls with progress, a read, a prompt, and an error, as the session returns them."""
    seen: list[Any] = [await (session.initialize() if era == "legacy" else session.discover())]
    steps: list[tuple[float, float | None, str | None]] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, total, message))

    seen.append(await session.list_tools())
    seen.append(await session.list_resources())
    seen.append(await session.call_tool("structured", {"a": [1, 2.5, "é"]}))
    seen.append(await session.call_tool("progress", {"n": 3, "delay": 0.02}, progress_callback=report))
    seen.append(await session.read_resource("memo://notes/1"))
    seen.append(await session.get_prompt("greet", {"name": "x"}))
    with pytest.raises(MCPError) as caught:
        await session.call_tool("raise", {"code": -31999, "message": "m", "data": {"k": 1}})
    seen += [caught.value.error, steps]
    return seen
