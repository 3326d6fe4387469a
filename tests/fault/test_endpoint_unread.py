"""Clients that do not read: they cost bounded memory, are left in the end, and stall nobody."""

import asyncio
import json
from pathlib import Path

import psutil
import pytest

from tests.support.clients import http_client, json_of, raw_http
from tests.support.daemon import Daemon
from tests.support.upstreams import fake
from tests.support.wait import wait_for

pytestmark = [pytest.mark.fault, pytest.mark.slow]

MIB = 1 << 20


async def test_a_shim_that_does_not_read_is_left(daemon: Daemon, tmp_path: Path) -> None:
    """Q04: a stuck client stalls nobody; what waits for it is bounded, beyond that its connection is ended."""
    daemon.add_server("s", fake())
    daemon.wait_state("s")
    reader, writer = await asyncio.open_unix_connection(str(daemon.run_dir / "mcp.sock"), limit=MIB)
    hello = {"coffer": "hello", "version": 1, "client_version": "0", "endpoint": "/mcp"}
    initialize = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    lines = [hello, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": initialize}]
    lines += [
        {
            "jsonrpc": "2.0",
            "id": n,
            "method": "tools/call",
            "params": {"name": "s__big", "arguments": {"n_bytes": 12 * MIB}},
        }
        for n in range(1, 33)
    ]
    writer.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    assert json.loads(await reader.readline())["coffer"] == "welcome"
    async with http_client(daemon) as other:
        assert json_of(await other.call_tool("s__echo", {"n": 1})) == {"n": 1}

    def closed() -> bool:
        """Without reading a byte, a closed connection shows when something is written to it."""
        writer.write(b"\n")
        return writer.transport.is_closing()

    await wait_for(closed, 50)
    assert daemon.process is not None
    assert psutil.Process(daemon.process.pid).is_running()
    writer.close()


async def test_two_hundred_sessions_come_and_go(daemon: Daemon) -> None:
    """H05: sessions that were ended leave nothing: the daemon's own count is back at the start."""
    async with raw_http(daemon) as raw:
        for _ in range(200):
            await raw.initialize()
            assert (await raw.request("ping")).result == {}
            assert (await raw.exchange("DELETE")).status == 200
            del raw.headers["Mcp-Session-Id"], raw.headers["MCP-Protocol-Version"]
    assert (await daemon.call("GET", "/daemon/status"))["clients"] == 0
