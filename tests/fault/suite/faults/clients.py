"""Clients that leave, that do not read, and that are many."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import psutil

from tests.fault.suite.case import Cases
from tests.fault.suite.stage import VICTIM, Seen, Stage
from tests.support.clients import BOTH_TYPES, modern_message
from tests.support.upstreams import fake
from tests.support.wait import wait_for

CASES = Cases()
MIB = 1024 * 1024


def _posted(stage: Stage, params: dict[str, object]) -> bytes:
    message, headers = modern_message(1, "tools/call", params)
    body = json.dumps(message).encode()
    lines = {
        "Host": f"127.0.0.1:{stage.daemon.port}",
        "Authorization": f"Bearer {stage.daemon.token}",
        "Content-Type": "application/json",
        "Accept": BOTH_TYPES,
        "Content-Length": str(len(body)),
        **headers,
    }
    head = "".join(f"{key}: {value}\r\n" for key, value in lines.items())
    return f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body


@CASES("a client vanishes in mid-call", "client", quick=True)
async def vanishes(stage: Stage) -> None:
    upstream = await stage.victim(limits={"idle_seconds": 60.0, "total_seconds": 60.0})
    async with stage.fault():
        for n in range(5):
            _, writer = await asyncio.open_connection("127.0.0.1", stage.daemon.port)
            writer.write(_posted(stage, {"name": f"{VICTIM}__echo", "arguments": {"delay": 30}}))
            await writer.drain()
            await wait_for(lambda n=n: len(upstream.messages("tools/call")) == n + 1, 10)  # type: ignore[misc]
            writer.transport.abort()
        began = time.monotonic()
        await wait_for(lambda: len(upstream.messages("notifications/cancelled")) == 5, 10, "five cancellations")
        stage.note(f"all five calls were cancelled upstream {time.monotonic() - began:.2f} s after the last left")
        await stage.call()
        stage.expect("ok")


@CASES("a client never reads its answers (50 MB)", "client")
async def never_reads(stage: Stage) -> None:
    await stage.register(fake(), isolation="shared", limits={"start_seconds": 20.0})
    supervisor, worker = psutil.Process(stage.pid), psutil.Process(await stage.worker_pid())
    async with stage.fault():
        before = supervisor.memory_info().rss + worker.memory_info().rss
        sockets = []
        for _ in range(10):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", stage.daemon.port))
            request = _posted(stage, {"name": f"{VICTIM}__big", "arguments": {"n_bytes": 5_000_000}})
            await asyncio.get_running_loop().sock_sendall(sock, request)
            sockets.append(sock)
        peak = before
        for _ in range(20):
            await asyncio.sleep(max(0.1, stage.stormy / 40))
            peak = max(peak, supervisor.memory_info().rss + worker.memory_info().rss)
        await stage.call()
        stage.expect("ok")
        for sock in sockets:
            sock.close()
        grown = (peak - before) / MIB
        stage.note(f"supervisor and worker grew by {grown:.0f} MiB at their peak, for 50 MB of answers")
        if grown > 250:
            stage.row.faults.append(f"supervisor and worker grew by {grown:.0f} MiB")


@CASES("200 clients at once", "load")
async def many(stage: Stage) -> None:
    await stage.victim(isolation="shared", limits={"in_flight": 64, "queue": 256})
    async with stage.fault():
        await stage.burst(200, {"delay": 0.2})
        stage.expect("ok")
        stage.within(6)
        stage.healed()
        await stage.back()


@CASES("50 legacy sessions where 8 connections are allowed", "load")
async def many_legacy(stage: Stage) -> None:
    await stage.victim(isolation="session")
    async with stage.fault():

        async def one() -> None:
            async with stage.legacy_client() as client:
                began = time.monotonic()
                params = {"name": f"{VICTIM}__echo", "arguments": {"delay": 1}}
                message = (await client.request("tools/call", params)).message
                seconds = time.monotonic() - began
                if "error" in message:
                    error = message["error"]
                    stage.seen.append(Seen(error["data"]["reason"], seconds, error["message"]))
                else:
                    stage.seen.append(Seen("ok", seconds))
                await client.exchange("DELETE")

        await asyncio.gather(*(one() for _ in range(50)))
        stage.expect("ok", "connection_limit")
        served = sum(seen.what == "ok" for seen in stage.seen)
        if served < 1:
            stage.row.faults.append("nobody was served")
        stage.healed()
        await stage.back()
