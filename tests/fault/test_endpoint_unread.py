"""Clients that do not read: they cost bounded memory, are left in the end, and stall nobody."""

import asyncio
import json
from pathlib import Path

import psutil
import pytest

from tests.support.clients import http_client, json_of, modern_message, raw_http
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


async def test_what_a_client_does_not_read_is_kept_once(daemon: Daemon) -> None:
    """A result waits for its client where it was received: no copy is made for the answer, none for the socket."""
    size, count = 12 * MIB, 6
    daemon.add_server("s", fake(), isolation="shared")
    daemon.wait_state("s")
    assert daemon.process is not None
    process = psutil.Process(daemon.process.pid)
    message, headers = modern_message(1, "tools/call", {"name": "s__big", "arguments": {"n_bytes": size}})
    body = json.dumps(message).encode()
    named = {"Host": f"127.0.0.1:{daemon.port}", "Authorization": f"Bearer {daemon.token}", **headers}
    named |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    request = b"POST /mcp HTTP/1.1\r\n" + b"".join(f"{k}: {v}\r\n".encode() for k, v in named.items()) + b"\r\n" + body
    before = process.memory_info().rss
    writers = []
    for _ in range(count):
        # With that limit it reads some bytes, and no more.
        _, writer = await asyncio.open_connection("127.0.0.1", daemon.port, limit=1)
        writer.write(request)
        writers.append(writer)

    async def all_answered() -> bool:
        found = await asyncio.to_thread(daemon.server, "s")
        return found["in_flight"] == 0 and process.memory_info().rss - before > size * count / 2

    await wait_for(all_answered, 50, lambda: f"{process.memory_info().rss - before} bytes; {daemon.server('s')}")
    grown = process.memory_info().rss - before
    for writer in writers:
        writer.transport.abort()
    assert grown < 1.5 * size * count, f"{grown / MIB:.0f} MiB for {size * count / MIB:.0f} MiB of results"


async def test_two_hundred_sessions_come_and_go(daemon: Daemon) -> None:
    """H05: sessions that were ended leave nothing: the daemon's own count is back at the start."""
    async with raw_http(daemon) as raw:
        for _ in range(200):
            await raw.initialize()
            assert (await raw.request("ping")).result == {}
            assert (await raw.exchange("DELETE")).status == 200
            del raw.headers["Mcp-Session-Id"], raw.headers["MCP-Protocol-Version"]
    assert (await daemon.call("GET", "/daemon/status"))["clients"] == 0


async def test_what_belonged_to_a_session_ends_with_it(daemon: Daemon, tmp_path: Path) -> None:
    """H05: each session's own process of a legacy server, and its subscription, are gone after its DELETE."""
    upstream = fake("--era", "legacy", log=tmp_path / "log")
    daemon.add_server("s", upstream)
    daemon.wait_state("s")
    async with raw_http(daemon) as raw:
        for n in range(12):
            await raw.initialize()
            answer = await raw.request("tools/call", {"name": "s__counter", "arguments": {}})
            assert answer.result["content"][0]["text"] == "1", "no session sees another's state"
            assert (await raw.request("resources/subscribe", {"uri": "coffer://s/memo://notes/1"})).result == {}
            assert (await raw.exchange("DELETE")).status == 200
            del raw.headers["Mcp-Session-Id"], raw.headers["MCP-Protocol-Version"]

            def left(n: int = n) -> bool:
                events = [entry["event"] for entry in upstream.log()]
                return events.count("start") - events.count("end") == 0 and events.count("end") == n + 1

            await wait_for(left, what="the end of the session's process")
    assert daemon.server("s")["connections"] == 0
