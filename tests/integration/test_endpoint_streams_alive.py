"""Response streams on a real HTTP server, with short intervals: kept alive, taken over, resumed, ended."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from coffer_supervisor.endpoint import streams
from coffer_supervisor.endpoint.streams import HttpSink, Outbox, event, open_stream, priming, pump
from tests.support.wait import wait_for


class Served:
    """A server whose every GET reads one outbox."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.readers = 0
        self.url = ""

    async def get(self, request: web.BaseRequest) -> web.StreamResponse:
        start = request.headers.get("Last-Event-ID")
        response = await open_stream(request)
        self.readers += 1
        try:
            name = request.headers.get("Stream", "")
            await pump(response, self.outbox, name=name, start=None if start is None else int(start))
        finally:
            self.readers -= 1
        return response


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(streams, "KEEPALIVE_SECONDS", 0.02)
    made = Served(Outbox(expected=0))
    runner = web.ServerRunner(web.Server(made.get, handler_cancellation=True))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    try:
        yield made
    finally:
        await runner.cleanup()


async def test_silence_is_filled_with_comments_and_loses_nothing(served: Served) -> None:
    """H09: comment frames keep an idle stream; what comes after them still comes."""
    async with aiohttp.ClientSession() as session, session.get(served.url) as response:
        for _ in range(3):
            assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
        served.outbox.append(b'{"a":1}')
        while (block := await response.content.readuntil(b"\n\n")).startswith(b":"):
            pass
        assert block == b'event: message\ndata: {"a":1}\n\n'
        served.outbox.end()
        assert (await response.content.read()).strip(b": keep-alive\n") == b""


async def test_a_client_that_vanishes_frees_its_stream(served: Served) -> None:
    """H06: a closed connection ends its reader, so that nothing holds the session."""
    async with aiohttp.ClientSession() as session:
        response = await session.get(served.url)
        await wait_for(lambda: served.readers == 1)
        response.close()
        await wait_for(lambda: served.readers == 0)


async def test_a_stream_goes_on_where_the_last_reader_stopped(served: Served) -> None:
    """What no reader has written yet comes with the next one; a number replays from there."""
    async with aiohttp.ClientSession() as session:
        served.outbox.append(b"1")
        async with session.get(served.url, headers={"Stream": "g"}) as response:
            assert await response.content.readuntil(b"\n\n") == b"id: g-1\nevent: message\ndata: 1\n\n"
        await wait_for(lambda: served.readers == 0)
        served.outbox.append(b"2")
        served.outbox.end()
        async with session.get(served.url, headers={"Stream": "g"}) as response:
            assert await response.read() == b"id: g-2\nevent: message\ndata: 2\n\n"
        async with session.get(served.url, headers={"Stream": "g", "Last-Event-ID": "0"}) as response:
            assert (await response.read()).count(b"data: ") == 2


def test_events_are_one_line_of_data_each() -> None:
    """A payload with line breaks between its tokens would end the event early: they become spaces."""
    assert event(b'{"a":\r\n1}') == b'event: message\ndata: {"a":  1}\n\n'
    assert priming("3-0") == b"id: 3-0\nretry: 1000\ndata: \n\n"


async def test_a_sink_answers_once() -> None:
    """L06: after the answer nothing more is written, and who waits is woken by whatever comes."""
    outbox = Outbox()
    sink = HttpSink(b"1", outbox)
    waiting = asyncio.create_task(outbox.changed(20))
    await asyncio.sleep(0)
    sink.progress(b"{}")
    assert await waiting is True
    assert await outbox.changed(0) is False
    sink.reply(b"{}")
    sink.reply(b"{}")
    sink.notify("notifications/message", b"{}")
    assert [message for _, message in outbox.after(0)] == [
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{}}',
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
    ]
    quiet = Outbox(answers_only=True)
    HttpSink(b"1", quiet).progress(b"{}")
    assert len(quiet) == 0
