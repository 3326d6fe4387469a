"""A worker whose upstream is at a URL: every revision's transport, headers, streams, sessions, cancellation."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from coffer_common import frames
from tests.fixtures.raw_http_server import Exchange, RawHttp
from tests.support.http_upstreams import HttpUpstream, fake_http
from tests.support.wait import wait_for
from tests.support.worker import Worker, caller, server_config

MODERN = "2026-07-28"
LEGACY = "2025-11-25"


async def gone(server: RawHttp, stream: Exchange) -> None:
    """That stream has ended."""
    await wait_for(lambda: stream not in server.streams)


async def reached(upstream: HttpUpstream, event: str) -> None:
    """The server has logged that about a call."""
    await wait_for(
        lambda: [e for e in upstream.upstream.log() if (e["event"], e.get("method")) == (event, "tools/call")]
    )


async def listed(worker: Worker, era: str, key: str = "tool:echo") -> None:
    """That catalogue has come."""
    await wait_for(lambda: key in worker.catalogue(era), what=f"{key} in the {era} catalogue")


@pytest.mark.parametrize(("era", "agreed"), [("legacy", LEGACY), ("modern", MODERN), ("dual", MODERN)])
async def test_an_upstream_at_a_url_is_discovered_and_called(tmp_path: Path, era: str, agreed: str) -> None:
    async with (
        fake_http("--era", era, log=tmp_path / "log.jsonl") as upstream,
        Worker.start(tmp_path, server_config(upstream.config())) as worker,
    ):
        assert worker.all(frames.State)[-1].revision == agreed
        await listed(worker, "legacy" if era == "legacy" else "modern")
        for revision in ("2025-06-18", MODERN):
            answer = await worker.call("echo", {"a": [1, 2]}, caller(revision))
            assert json.loads(answer.text) == {"a": [1, 2]}
        calls = upstream.messages("tools/call")
        assert len({call["id"] for call in calls}) == len(calls) == 2


@pytest.mark.parametrize("revision", ["2025-03-26", "2025-06-18", LEGACY])
async def test_each_hop_names_its_own_revision(tmp_path: Path, revision: str) -> None:
    """E07, E09, H11: the revision agreed on with the upstream on every request after the handshake, both types
    accepted, and nothing of the modern era."""
    async with RawHttp() as server, Worker.start(tmp_path, server_config(server.config()), hint="legacy") as worker:
        await worker.call("echo", {}, caller(revision, "mine"))
        call = server.of("tools/call")[0]
        assert call.headers["mcp-protocol-version"] == revision
        assert call.headers["accept"] == "application/json, text/event-stream"
        assert call.headers["content-type"] == "application/json"
        assert not {name for name in call.headers if name in ("mcp-method", "mcp-name")}
        assert all("mcp-protocol-version" not in seen.headers for seen in server.of("initialize"))
        later = [seen for seen in server.seen if seen.method != "initialize"]
        assert all("mcp-protocol-version" in seen.headers for seen in later)


async def test_a_modern_upstream_gets_the_headers_of_the_message_it_is_sent(tmp_path: Path) -> None:
    """E09, K04: from the rewritten body, not from what the client sent, and for legacy clients too."""
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    tools = [{"name": "töl", "inputSchema": schema}, {"name": "odd", "inputSchema": {**schema, "items": schema}}]
    bad = {"type": "object", "properties": {"a": {"type": "array", "x-mcp-header": "A"}}}
    tools[1] = {"name": "odd", "inputSchema": bad}
    config = {"headers": {"X-Api-Key": "key-of-this-server"}}
    async with (
        RawHttp(era="modern", tools=tools) as server,
        Worker.start(tmp_path, server_config(server.config(**config))) as worker,
    ):
        await listed(worker, "modern", "tool:töl")
        assert "tool:odd" not in worker.catalogue("modern")
        assert "'odd'" in worker.all(frames.Catalogue)[-1].left_out[0]
        await worker.call("töl", {"region": "é"}, caller(LEGACY))
        call = server.of("tools/call")[0]
        assert call.headers["mcp-method"] == "tools/call"
        assert call.headers["mcp-name"] == "=?base64?dMO2bA==?="
        assert call.headers["mcp-param-region"] == "=?base64?w6k=?="
        assert call.headers["mcp-protocol-version"] == MODERN
        assert call.headers["x-api-key"] == "key-of-this-server"
        assert "mcp-session-id" not in call.headers
        assert call.params["_meta"]["io.modelcontextprotocol/protocolVersion"] == MODERN
        assert all(seen.headers["mcp-method"] == seen.method for seen in server.seen if seen.method != "initialize")
        assert not server.of("notifications/initialized")


async def test_headers_that_disagree_are_mended_by_reading_the_lists_again(tmp_path: Path) -> None:
    """-32020: the schemas are read again, and the call goes once more, under a new id."""
    async with RawHttp(era="modern") as server, Worker.start(tmp_path, server_config(server.config())) as worker:
        await listed(worker, "modern")
        annotated = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
        server.tools[0] = {"name": "echo", "inputSchema": annotated}

        async def strict(exchange: Exchange) -> None:
            if exchange.seen.headers.get("mcp-param-region") == exchange.seen.params["arguments"]["region"]:
                await exchange.server.plain(exchange)
            else:
                await exchange.error(-32020, "header mismatch", 400)

        server.on("tools/call", strict)
        assert json.loads((await worker.call("echo", {"region": "eu"}, caller(MODERN))).text) == {"region": "eu"}
        first, second = server.of("tools/call")
        assert first.body["id"] != second.body["id"]

        async def never(exchange: Exchange) -> None:
            await exchange.error(-32020, "header mismatch", 400)

        server.on("tools/call", never)
        headers = {"mcp-param-region": "eu"}
        answer = await worker.call("echo", {"region": "eu"}, caller(MODERN), headers=headers)
        assert (answer.value["code"], len(server.of("tools/call"))) == (-32020, 4)


# ---- streams


async def test_events_of_every_spelling_are_read(tmp_path: Path) -> None:
    """H10: CRLF cut in two, comments, many data lines, a character cut in two, progress before the answer."""
    async with RawHttp() as server, Worker.start(tmp_path, server_config(server.config())) as worker:
        await listed(worker, "legacy")

        async def spell(exchange: Exchange) -> None:
            token = exchange.seen.params["_meta"]["progressToken"]
            progress = {"progressToken": token, "progress": 1, "message": "é"}
            notice = {"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}
            await exchange.stream()
            data = (
                b": hi\r\n\r\ndata:"
                + json.dumps(notice, ensure_ascii=False).encode()
                + b"\r\n\r\nevent: odd\ndata: 1\n\n"
            )
            middle = data.index(b"\xc3") + 1
            for piece in (data[:5], data[5:middle], data[middle:]):
                await exchange.raw(piece)
                await asyncio.sleep(0.01)
            await exchange.raw(b'data: {"jsonrpc":"2.0",\rdata: "id":%d,"result":\r' % exchange.id)
            await exchange.raw(b'data: {"content":[{"type":"text","text":"done"}]}}\r\r')
            exchange.close()

        server.on("tools/call", spell)
        answer = await worker.call("echo", {}, meta={"progressToken": "mine"})
        assert answer.text == "done"
        assert answer.progress == [{"progressToken": "mine", "progress": 1, "message": "é"}]


async def test_a_stream_that_ends_leaves_its_socket_for_the_next_call(tmp_path: Path) -> None:
    """Also where it never ends: the answer is there at once, and the socket is given up."""
    async with RawHttp() as server, Worker.start(tmp_path, server_config(server.config())) as worker:
        await listed(worker, "legacy")

        async def chunked(exchange: Exchange) -> None:
            result = {"content": [{"type": "text", "text": "done"}]}
            event = b"data: " + json.dumps({"jsonrpc": "2.0", "id": exchange.id, "result": result}).encode() + b"\n\n"
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            await exchange.raw(head + b"%x\r\n%b\r\n" % (len(event), event))
            if exchange.seen.params["name"] == "other":
                await exchange.forever()
            else:
                await exchange.raw(b"0\r\n\r\n")

        server.on("tools/call", chunked)
        await worker.call("echo")
        before = server.accepted
        for _ in range(5):
            assert (await worker.call("echo")).text == "done"
        assert server.accepted == before
        for _ in range(3):
            assert (await worker.call("other")).text == "done"


async def test_a_broken_stream_is_resumed_where_it_broke(tmp_path: Path) -> None:
    """After the wait that the upstream named, with the last event's id; the call is not made again."""
    async with RawHttp() as server, Worker.start(tmp_path, server_config(server.config())) as worker:
        await listed(worker, "legacy")
        asked: list[Any] = []

        async def begin(exchange: Exchange) -> None:
            asked.append(exchange.id)
            await exchange.stream()
            await exchange.event("", id="ev-1", retry=30)
            exchange.close()

        async def resume(exchange: Exchange) -> None:
            last = exchange.seen.headers.get("last-event-id")
            if last is None:
                await exchange.status(405)
                return
            await exchange.stream()
            if last == "ev-1":
                await exchange.event({"jsonrpc": "2.0", "method": "notifications/x"}, id="ev-2")
                exchange.reset()
            else:
                result = {"content": [{"type": "text", "text": last}]}
                await exchange.event({"jsonrpc": "2.0", "id": asked[0], "result": result})
                exchange.close()

        server.on("tools/call", begin)
        server.on("GET", resume)
        assert (await worker.call("echo")).text == "ev-2"
        assert len(server.of("tools/call")) == 1


async def test_a_stream_that_cannot_be_resumed_fails_its_call(tmp_path: Path) -> None:
    async with RawHttp() as server, Worker.start(tmp_path, server_config(server.config())) as worker:
        await listed(worker, "legacy")

        async def begin(exchange: Exchange) -> None:
            await exchange.stream()
            await exchange.event("", id="ev-1", retry=10)
            exchange.close()

        async def refuse(exchange: Exchange) -> None:
            await exchange.status(405)

        server.on("tools/call", begin)
        server.on("GET", refuse)
        answer = await worker.call("echo")
        assert answer.reason == "connection_broken"
        assert "could not be resumed" in answer.message


async def test_the_stream_of_notifications_is_kept_and_opened_again(tmp_path: Path) -> None:
    """A list_changed that comes on the GET stream is heard, also on the one that follows a broken one."""
    async with RawHttp() as server, Worker.start(tmp_path, server_config(server.config())) as worker:
        await listed(worker, "legacy")
        for name in ("fresh", "fresher"):
            await wait_for(lambda: server.streams, what="the GET stream")
            stream = server.streams[0]
            server.tools.append({"name": name, "inputSchema": {"type": "object"}})
            await stream.event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}, id=name)
            await listed(worker, "legacy", f"tool:{name}")
            stream.reset()
            await gone(server, stream)
        again = await wait_for(lambda: server.of("GET")[1:])
        assert again[0].headers["last-event-id"] == "fresh"


async def test_an_event_that_the_upstream_no_longer_knows_is_not_asked_for_again(tmp_path: Path) -> None:
    async def forgetful(exchange: Exchange) -> None:
        if "last-event-id" in exchange.seen.headers:
            await exchange.status(400, "unknown event")
        else:
            await exchange.server.stream_for(exchange)

    async with RawHttp() as server, Worker.start(tmp_path, server_config(server.config())) as worker:
        server.on("GET", forgetful)
        await listed(worker, "legacy")
        stream = (await wait_for(lambda: server.streams))[0]
        await stream.event({"jsonrpc": "2.0", "method": "notifications/x"}, id="ev-1", retry=20)
        stream.reset()
        await gone(server, stream)
        await wait_for(lambda: server.streams)
        assert [seen.headers.get("last-event-id") for seen in server.of("GET")] == [None, "ev-1", None]


async def test_a_session_forgotten_while_nothing_is_called_is_found_out(tmp_path: Path) -> None:
    """The stream of notifications is refused with 404: a new session, without waiting for a call."""

    async def strict(exchange: Exchange) -> None:
        if exchange.seen.headers.get("mcp-session-id") == exchange.server.session:
            await exchange.server.stream_for(exchange)
        else:
            await exchange.status(404)

    async with RawHttp() as server, Worker.start(tmp_path, server_config(server.config())) as worker:
        server.on("GET", strict)
        await listed(worker, "legacy")
        stream = (await wait_for(lambda: server.streams))[0]
        server.session = "s-2"
        server.tools.append({"name": "fresh", "inputSchema": {"type": "object"}})
        stream.reset()
        await listed(worker, "legacy", "tool:fresh")
        await wait_for(lambda: [each for each in server.streams if each.seen.headers["mcp-session-id"] == "s-2"])


async def test_a_modern_upstream_is_heard_over_its_listen_stream(tmp_path: Path) -> None:
    """E16: one stream, opened again when it breaks."""
    async with RawHttp(era="modern") as server, Worker.start(tmp_path, server_config(server.config())) as worker:
        await listed(worker, "modern")
        stream = (await wait_for(lambda: server.streams))[0]
        server.tools.append({"name": "fresh", "inputSchema": {"type": "object"}})
        params = {"_meta": {"io.modelcontextprotocol/subscriptionId": stream.id}}
        await stream.event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": params})
        await listed(worker, "modern", "tool:fresh")
        stream.reset()
        again = await wait_for(lambda: [each for each in server.streams if each is not stream])
        assert again[0].id != stream.id
        assert not server.of("GET")


# ---- the older transport


async def test_http_with_sse_is_spoken_where_there_is_nothing_else(tmp_path: Path) -> None:
    """2024-11-05: POST is refused, the event stream names the endpoint, and everything comes on that stream."""
    streams: list[Exchange] = []
    seen: list[str] = []

    async def refuse_or_take(exchange: Exchange) -> None:
        if exchange.seen.target == "/mcp":
            await exchange.status(405)
            return
        seen.append(exchange.seen.target)
        await exchange.status(202, "Accepted")
        message = exchange.seen.body
        if "id" not in message:
            return
        if message["method"] == "initialize":
            result: Any = {
                "protocolVersion": "2024-11-05",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "old"},
            }
        else:
            result = server.result_of(exchange.seen)
        await streams[-1].event({"jsonrpc": "2.0", "id": message["id"], "result": result}, event="message")

    async def stream(exchange: Exchange) -> None:
        streams.append(exchange)
        await exchange.stream()
        await exchange.event("/messages?session=abc", event="endpoint")
        await exchange.forever()

    async with RawHttp() as server:
        for method in ("server/discover", "initialize", "notifications/initialized", "tools/list", "tools/call"):
            server.on(method, refuse_or_take)
        server.on("GET", stream)
        async with Worker.start(tmp_path, server_config(server.config())) as worker:
            assert worker.all(frames.State)[-1].revision == "2024-11-05"
            await listed(worker, "legacy")
            assert json.loads((await worker.call("echo", {"a": 1}, caller("2024-11-05"))).text) == {"a": 1}
            assert set(seen) == {"/messages?session=abc"}
            # Its stream is the connection: where it ends, everything does, and is begun again.
            since = len(worker.all(frames.State))
            for each in list(streams):
                each.reset()
            await worker.state("ready", since)
            assert json.loads((await worker.call("echo", {"a": 2}, caller("2024-11-05"))).text) == {"a": 2}


# ---- ends


async def test_a_session_is_ended_when_it_is_no_longer_needed(tmp_path: Path) -> None:
    async with RawHttp() as server, Worker.start(tmp_path, server_config(server.config())) as worker:
        await worker.call("echo", {}, caller(LEGACY, "s1"))
        await worker.send(frames.CloseSession("s1", "it ended"))
        ended = await wait_for(lambda: server.of("DELETE"))
        assert ended[0].headers["mcp-session-id"] == "s-1"
        assert ended[0].headers["mcp-protocol-version"] == LEGACY


async def test_a_cancelled_call_is_cancelled_upstream(tmp_path: Path) -> None:
    """The SDK's server sees it in either era."""
    for era, revision in (("legacy", LEGACY), ("modern", MODERN)):
        home = tmp_path / era
        home.mkdir()
        async with (
            fake_http("--era", era, log=home / "log.jsonl") as upstream,
            Worker.start(home, server_config(upstream.config())) as worker,
        ):
            corr = await worker.begin("tools/call", "sleep", {"arguments": {"seconds": 60}}, caller(revision))
            await reached(upstream, "request")
            await worker.send(frames.Cancel(corr, "enough"))
            await reached(upstream, "interrupted")


async def test_sessions_have_connections_of_their_own(tmp_path: Path) -> None:
    async with (
        fake_http("--era", "legacy", log=tmp_path / "log.jsonl") as upstream,
        Worker.start(tmp_path, server_config(upstream.config())) as worker,
    ):
        for session in ("s1", "s2"):
            await worker.call("echo", {}, caller(LEGACY, session))
        assert len({call["session"] for call in upstream.messages("tools/call")}) == 2


async def test_a_header_that_cannot_be_sent_is_said_at_once(tmp_path: Path) -> None:
    config = server_config({"transport": "http", "url": "http://127.0.0.1:1/mcp", "headers": {"Host": "x-y-z"}})
    async with Worker.start(tmp_path, config, ready=False) as worker:
        state = await worker.state("backoff")
        assert "the header Host" in state.message
        assert "x-y-z" not in state.message


async def test_a_log_message_goes_to_the_client_whose_call_it_came_with(tmp_path: Path) -> None:
    """Over HTTP the stream tells: of two clients' calls at once only the one that caused the message hears it."""
    release = asyncio.Event()

    async def act(exchange: Exchange) -> None:
        if exchange.seen.params["name"] == "other":
            await release.wait()
            await exchange.server.plain(exchange)
            return
        await exchange.stream()
        params = {"level": "info", "data": "hello"}
        await exchange.event({"jsonrpc": "2.0", "method": "notifications/message", "params": params})
        await exchange.answer_event({"resultType": "complete", "content": [{"type": "text", "text": "done"}]})
        exchange.close()

    async with RawHttp(era="modern") as server, Worker.start(tmp_path, server_config(server.config())) as worker:
        await listed(worker, "modern")
        server.on("tools/call", act)
        params = {"name": "other", "arguments": {}}
        quiet = await worker.begin("tools/call", "other", params, caller(MODERN, "quiet", "raw"), log_level="info")
        await wait_for(lambda: server.of("tools/call"))
        loud = await worker.begin(
            "tools/call", "echo", {"name": "echo"}, caller(MODERN, "loud", "raw"), log_level="info"
        )
        answer = await worker.answer(loud)
        assert [(frame.method, payload["data"]) for frame, payload in answer.notices] == [
            ("notifications/message", "hello")
        ]
        release.set()
        assert not (await worker.answer(quiet)).notices
