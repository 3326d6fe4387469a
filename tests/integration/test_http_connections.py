"""HTTP connections that say nothing, half of something, or no HTTP at all: bounded in time and number, and told why."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from aiohttp import web

from coffer_supervisor.endpoint.http import Rejected, read_body, refusal
from coffer_supervisor.endpoint.served import Served
from tests.support.daemon import Daemon
from tests.support.wait import wait_for

GET = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256))
NO_HTTP = {
    "garbage": b"\x00\xff\xfe garbage \x80\r\n\r\n",
    "tls": CLIENT_HELLO,
    "a bad header line": b"GET / HTTP/1.1\r\nHost: x\r\nno colon here\r\n\r\n",
    "control characters in a header": b"GET / HTTP/1.1\r\nHost: x\r\nX: \x00secret-in-a-header\r\n\r\n",
    "two lengths": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "a long header": b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    "a bad chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nxx\r\n",
}


@dataclass
class Server:
    """One served socket; `requests` are the paths that came to the handler."""

    served: Served
    port: int
    requests: list[str]

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Wire]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield Wire(reader, writer)
        finally:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)


@dataclass
class Wire:
    """One connection, in bytes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of the next answer; (0, b"") where the connection ends without one."""
        try:
            head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 20)
        except asyncio.IncompleteReadError:
            return 0, b""
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        return int(head.split()[1]), await self.reader.readexactly(length)

    async def ends(self) -> bool:
        """Whether the other side ends it."""
        return await asyncio.wait_for(self.reader.read(), 20) == b""


@contextlib.asynccontextmanager
async def serving(*, most: int = 100, seconds: float = 30.0, body_seconds: float = 30.0) -> AsyncIterator[Server]:
    requests: list[str] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        requests.append(request.path)
        if request.path == "/hold":
            await asyncio.Event().wait()
        try:
            body = await read_body(request, body_seconds) if request.method == "POST" else b"done"
        except Rejected as error:
            response = refusal("/mcp", error)
            response.force_close()
            return response
        return web.Response(body=body)

    served = Served(handle, most=most, seconds=seconds)
    server = await asyncio.get_running_loop().create_server(served, "127.0.0.1", 0)
    try:
        yield Server(served, server.sockets[0].getsockname()[1], requests)
    finally:
        server.close()
        await served.shutdown(0.1)
        await server.wait_closed()


# ---- how long one may take


@pytest.mark.parametrize(("said", "status"), [(b"", 0), (b"GET / HTTP/1.1\r\nHost:", 408)])
async def test_a_request_that_does_not_come_to_its_end_is_not_waited_for(said: bytes, status: int) -> None:
    """A connection that says nothing is closed after its time; one that says half a header is told 408."""
    async with serving(seconds=0.1) as server, server.connected() as wire:
        wire.send(said)
        assert (await wire.answer())[0] == status
        assert await wire.ends()
        assert server.served.open == {}


async def test_a_header_that_trickles_does_not_win_time() -> None:
    """A byte now and then keeps nothing open: the time counts to the end of the header."""
    async with serving(seconds=0.3) as server, server.connected() as wire:

        async def trickle() -> None:
            for byte in GET % b"" * 100:
                wire.send(bytes([byte]))
                await asyncio.sleep(0.02)

        trickling = asyncio.create_task(trickle())
        assert (await wire.answer())[0] == 408
        trickling.cancel()
        await asyncio.gather(trickling, return_exceptions=True)


async def test_what_has_asked_may_be_idle_but_not_half_way() -> None:
    """Between two requests a connection may rest; half a header of the next one is bounded as the first was."""
    async with serving(seconds=0.2) as server, server.connected() as wire, server.connected() as other:
        wire.send(GET % b"one")
        assert await wire.answer() == (200, b"done")
        assert await other.ends(), "by now the time of one that said nothing is over"
        wire.send(GET % b"two")
        assert await wire.answer() == (200, b"done")
        wire.send(b"GET /three HTTP/1.1\r\n")
        assert (await wire.answer())[0] == 408
        assert server.requests == ["/one", "/two"]


async def test_a_call_under_way_has_all_its_time() -> None:
    """The limit is for asking, not for answering."""
    async with serving(seconds=0.1) as server, server.connected() as wire, server.connected() as other:
        wire.send(GET % b"hold")
        await wait_for(lambda: server.requests == ["/hold"])
        assert await other.ends()
        assert len(server.served.open) == 1


@pytest.mark.parametrize("begin", [b"Content-Length: 20\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n5\r\n"])
async def test_a_body_that_stops_coming_is_answered_408(begin: bytes) -> None:
    """A body may bring nothing for a while, not for ever."""
    async with serving(body_seconds=0.1) as server, server.connected() as wire:
        wire.send(POST + begin + b'{"a"')
        status, body = await wire.answer()
        assert status == 408
        assert "nothing more of the request's body came for 0.1 s" in json.loads(body)["error"]["message"]


async def test_a_body_in_pieces_passes_whole() -> None:
    """Each piece brings new time."""
    async with serving(body_seconds=5) as server, server.connected() as wire:
        wire.send(POST + b"Content-Length: 6\r\n\r\n")
        for piece in (b"ab", b"cd", b"ef"):
            await asyncio.sleep(0)
            wire.send(piece)
        assert await wire.answer() == (200, b"abcdef")


# ---- how many there may be


async def test_one_connection_too_many_is_told_so() -> None:
    """Where every place is taken by a request under way, the next is refused with 503 and why; afterwards there is
    room again."""
    async with serving(most=2) as server:
        async with server.connected() as one, server.connected() as two:
            for wire in (one, two):
                wire.send(GET % b"hold")
            await wait_for(lambda: len(server.requests) == 2)
            async with server.connected() as third:
                third.send(GET % b"third")
                status, body = await third.answer()
                assert (status, json.loads(body)["error"]["code"]) == (503, "busy")
                assert "2 connections are open already" in json.loads(body)["error"]["message"]
                assert await third.ends()
        await wait_for(lambda: not server.served.open and not server.served.refused)
        async with server.connected() as fourth:
            fourth.send(GET % b"fourth")
            assert await fourth.answer() == (200, b"done")


async def test_who_is_idle_gives_way() -> None:
    """Connections that wait for nothing keep nobody out: the oldest of them is closed for a newcomer."""
    async with serving(most=2) as server, server.connected() as one, server.connected() as two:
        for wire in (one, two):
            wire.send(GET % b"")
            assert await wire.answer() == (200, b"done")
        async with server.connected() as third:
            third.send(GET % b"third")
            assert await third.answer() == (200, b"done")
            assert await one.ends()
            two.send(GET % b"two")
            assert await two.answer() == (200, b"done")


async def test_silent_connections_keep_nobody_out() -> None:
    """As many connections that say nothing as there are places: a client that asks is served all the same."""
    async with serving(most=3) as server, contextlib.AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(server.connected())
        await wait_for(lambda: len(server.served.open) == 3)

        async def served() -> bool:
            async with server.connected() as wire:
                wire.send(GET % b"")
                return (await wire.answer())[0] == 200

        await wait_for(served)


# ---- what is no HTTP


@pytest.mark.parametrize("what", NO_HTTP)
async def test_what_is_no_http_is_answered_400_and_hardly_logged(door: Daemon, what: str) -> None:
    """No trace, nothing at error level, and nothing of what was sent: it may hold a token. The daemon serves on."""
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    token = f"Authorization: Bearer {door.token}\r\n".encode()
    host = f"Host: 127.0.0.1:{door.port}\r\n".encode()
    writer.write(NO_HTTP[what].replace(b"Host: x\r\n", host + token).replace(b"POST / ", b"POST /mcp "))
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    assert answer.startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 400 ")), answer[:200]
    assert b"Traceback" not in answer
    assert (await door.call("GET", "/daemon/status"))["pid"] == door.info["pid"]
    log = (door.home / "logs" / "daemon.log").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line for line in lines if line["level"] in ("warning", "error", "critical")] == []
    assert "Traceback" not in log
    assert "secret-in-a-header" not in log
