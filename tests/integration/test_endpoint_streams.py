"""Calls, streams and notices of both eras over HTTP, through the real daemon to a real upstream and back."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import mcp_types as types
import pytest
from mcp import Client

from coffer_common import protocol
from tests.support.clients import META, RawHttp, http_client, modern_message, raw_http, text_of
from tests.support.daemon import Daemon
from tests.support.upstreams import Upstream, fake
from tests.support.wait import wait_for

EVENT = "text/event-stream"


@pytest.fixture
def upstream(daemon: Daemon, tmp_path: Path) -> Upstream:
    """One fake server, known as `s`."""
    made = fake(log=tmp_path / "s.log")
    daemon.add_server("s", made)
    daemon.wait_state("s")
    return made


@pytest.fixture
async def raw(daemon: Daemon, upstream: Upstream) -> AsyncIterator[RawHttp]:
    """A legacy session, ended afterwards."""
    async with raw_http(daemon) as client:
        await client.initialize()
        yield client
        await client.exchange("DELETE")


class Events:
    """Reads one event stream: (id, message) of each event with data."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def event(self) -> tuple[str, str]:
        """The next event's id and data; a comment alone is skipped."""
        while True:
            block = await asyncio.wait_for(self.response.content.readuntil(b"\n\n"), 20)
            fields = dict(line.partition(": ")[::2] for line in block.decode().strip().split("\n"))
            if "data" in fields or "data:" in block.decode():
                return fields.get("id", ""), fields.get("data", "").strip()

    async def message(self) -> Any:
        """The next message; a priming event is none."""
        while not (data := (await self.event())[1]):
            pass
        return json.loads(data)

    async def message_of(self, method: str) -> Any:
        """The next notification of one method."""
        while (message := await self.message()).get("method") != method:
            pass
        return message


@asynccontextmanager
async def stream(
    raw: RawHttp, verb: str = "GET", body: Any = None, headers: dict[str, str] | None = None
) -> AsyncIterator[Events]:
    sent = {**raw.headers, **(headers or {})}
    async with raw.session.request(verb, raw.url, json=body, headers=sent) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"].startswith(EVENT)
        yield Events(response)


UPDATED = "notifications/resources/updated"


def call(mid: Any, tool: str, arguments: Any = None, **params: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments or {}, **params}
    return {"jsonrpc": "2.0", "id": mid, "method": "tools/call", "params": params}


def echoed(answer: Any) -> Any:
    return json.loads(answer["result"]["content"][0]["text"])


def reached(upstream: Upstream, method: str) -> int:
    return len(upstream.messages(method))


# ---- calls and their ids


async def test_equal_ids_of_two_clients_and_of_two_types(daemon: Daemon, raw: RawHttp) -> None:
    """I01, I03: answers belong to their calls; ids come back with their own type and value."""
    async with raw_http(daemon) as other:
        await other.initialize()
        ids = [1, "1", 0, "", "é", 9007199254740993]
        calls = [c.post(call(i, "s__echo", {"n": [w, repr(i)]})) for w, c in enumerate((raw, other)) for i in ids]
        answers = await asyncio.gather(*calls)
        for answer, (who, mid) in zip(answers, ((w, i) for w in (0, 1) for i in ids), strict=True):
            assert answer.message["id"] == mid
            assert type(answer.message["id"]) is type(mid)
            assert echoed(answer.message) == {"n": [who, repr(mid)]}
        await other.exchange("DELETE")


async def test_an_id_still_open_is_refused(raw: RawHttp) -> None:
    """Two open requests with one id could not be told apart: the second is refused, the first goes on."""
    async with stream(
        raw, "POST", call(1, "s__progress", {"n": 3, "delay": 0.5}, _meta={"progressToken": 0})
    ) as events:
        await events.message()
        again = await raw.post(call(1, "s__echo"))
        assert again.error["code"] == protocol.INVALID_REQUEST
    await raw.request("ping")


async def test_a_reply_first_is_json_and_a_notification_first_is_a_stream(raw: RawHttp) -> None:
    """The first thing that happens decides the form; progress carries the client's own token, before the reply."""
    plain = await raw.post(call(1, "s__echo", {"a": 1}))
    assert plain.headers["Content-Type"] == "application/json"
    messages = (await raw.post(call(2, "s__progress", {"n": 3}, _meta={"progressToken": 0}))).messages
    assert [m["params"]["progressToken"] for m in messages[:-1]] == [0, 0, 0]
    assert messages[-1]["id"] == 2
    silent = await raw.post(call(3, "s__progress", {"n": 3}))
    assert (silent.headers["Content-Type"], len(silent.messages)) == ("application/json", 1)
    only_json = {"Accept": "application/json"}
    json_form = await raw.post(call(4, "s__progress", {"n": 3}, _meta={"progressToken": "t"}), only_json)
    assert (json_form.headers["Content-Type"], json_form.message["id"]) == ("application/json", 4)
    only_stream = await raw.post(call(5, "s__echo"), {"Accept": EVENT})
    assert (only_stream.headers["Content-Type"], only_stream.message["id"]) == (EVENT, 5)


@pytest.mark.slow
async def test_ten_silent_seconds_open_a_stream(daemon: Daemon, raw: RawHttp) -> None:
    """A call that is silent for ten seconds becomes a stream, which can be kept alive; its answer comes on it.

    A client that takes JSON alone waits for its JSON.
    """
    arguments = {"seconds": 11}
    modern = {"name": "s__sleep", "arguments": arguments}
    async with raw_http(daemon) as other:
        await other.initialize()
        legacy, later, plain = await asyncio.gather(
            raw.post(call(1, "s__sleep", arguments)),
            raw.modern("tools/call", modern),
            other.post(call(2, "s__sleep", arguments), {"Accept": "application/json"}),
        )
        await other.exchange("DELETE")
    for answer, form in ((legacy, EVENT), (later, EVENT), (plain, "application/json")):
        assert answer.headers["Content-Type"] == form
        assert echoed(answer.message) == arguments


async def test_modern_answers_carry_their_status(raw: RawHttp) -> None:
    """A modern error that is known before the stream begins has its HTTP status; a tool's own error has none."""
    unknown = await raw.modern("tools/call", {"name": "s__nothing", "arguments": {}})
    assert (unknown.status, unknown.error["code"]) == (400, protocol.INVALID_PARAMS)
    failed = await raw.modern("tools/call", {"name": "s__fail", "arguments": {}})
    assert (failed.status, failed.result["isError"]) == (200, True)
    meta = {"progressToken": "p"}
    messages = (await raw.modern("tools/call", {"name": "s__progress", "arguments": {"n": 2}, "_meta": meta})).messages
    assert [m.get("method", "answer") for m in messages] == ["notifications/progress"] * 2 + ["answer"]


async def test_a_batch_with_calls(daemon: Daemon, upstream: Upstream) -> None:
    """H13: calls of a batch run together; as an array, or one by one on a stream where progress comes first."""
    async with raw_http(daemon) as raw:
        await raw.initialize("2025-03-26")
        answers = (await raw.post([call(n, "s__echo", {"n": n}) for n in (1, 2)])).message
        assert {a["id"]: echoed(a)["n"] for a in answers} == {1: 1, 2: 2}
        batch = [call(1, "s__progress", {"n": 2}, _meta={"progressToken": 1}), call(2, "s__echo")]
        messages = (await raw.post(batch)).messages
        flat = [m for part in messages for m in (part if isinstance(part, list) else [part])]
        assert {m["id"] for m in flat if "id" in m} == {1, 2}
        await raw.exchange("DELETE")


# ---- cancellation


async def test_a_legacy_cancellation_reaches_the_upstream(raw: RawHttp, upstream: Upstream) -> None:
    """L06, L07: notifications/cancelled ends the call at the upstream; nothing answers it; the session goes on."""
    waiting = asyncio.create_task(raw.post(call("c", "s__hang")))
    await wait_for(lambda: reached(upstream, "tools/call"))
    assert (await raw.notify("notifications/cancelled", {"requestId": "x"})).status == 202
    assert (await raw.notify("notifications/cancelled", {"requestId": "c", "reason": "enough"})).status == 202
    answer = await waiting
    assert (answer.status, answer.body) == (202, b"")
    await wait_for(lambda: reached(upstream, "notifications/cancelled"))
    assert (await raw.post(call("c", "s__echo", {"a": 1}))).result


async def test_a_dropped_legacy_response_is_no_cancellation(raw: RawHttp, upstream: Upstream) -> None:
    """L07: the upstream works on; a stream that broke is resumed with Last-Event-ID and brings the rest."""
    body = call(1, "s__progress", {"n": 4, "delay": 0.2}, _meta={"progressToken": 0})
    async with stream(raw, "POST", body) as events:
        _, priming = await events.event()
        assert priming == ""
        event_id, first = await events.event()
    assert json.loads(first)["params"]["progress"] == 1
    async with stream(raw, headers={"Last-Event-ID": event_id}) as events:
        rest = [await events.message() for _ in range(4)]
    assert [m.get("params", {}).get("progress") for m in rest] == [2, 3, 4, None]
    assert rest[-1]["id"] == 1
    assert not reached(upstream, "notifications/cancelled")


async def test_replay_is_of_the_own_session_only(daemon: Daemon, raw: RawHttp) -> None:
    """K12: another session that shows an event id gets nothing of the one it belongs to."""
    body = call(1, "s__progress", {"n": 1}, _meta={"progressToken": 0})
    async with stream(raw, "POST", body) as events:
        event_id, _ = await events.event()
    async with raw_http(daemon) as other:
        await other.initialize()
        async with stream(other, headers={"Last-Event-ID": event_id}) as events:
            assert (await other.post(call(2, "s__add_tool", {"name": "marker"}))).result
            assert (await events.message())["method"] == "notifications/tools/list_changed"
        await other.exchange("DELETE")


async def test_closing_a_modern_response_is_the_cancellation(raw: RawHttp, upstream: Upstream) -> None:
    """L07: a modern client that closes its response has cancelled, in JSON form as well as in stream form."""

    async def calls_of(method: str, number: int) -> None:
        await wait_for(lambda: reached(upstream, method) >= number)

    async def interruptions(number: int) -> None:
        await wait_for(lambda: len([e for e in upstream.log() if e["event"] == "interrupted"]) >= number)

    for count, params in enumerate(
        (
            {"name": "s__hang", "arguments": {}},
            {"name": "s__progress", "arguments": {"n": 500, "delay": 0.1}, "_meta": {"progressToken": 1}},
        ),
        1,
    ):
        message, headers = modern_message(count, "tools/call", params)
        waiting = asyncio.create_task(raw.post(message, headers))
        await calls_of("tools/call", count)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await interruptions(count)


async def test_rounds_of_call_and_cancel(raw: RawHttp) -> None:
    """L06: whichever wins, there is at most one reply and the session lives."""

    async def round_(number: int) -> int:
        waiting = asyncio.create_task(raw.post(call(number, "s__echo", {"n": number})))
        for _ in range(number % 4):
            await asyncio.sleep(0)
        await raw.notify("notifications/cancelled", {"requestId": number})
        answer = await waiting
        assert answer.status == 202 or echoed(answer.message) == {"n": number}
        return answer.status

    for start in range(0, 200, 20):
        assert {*await asyncio.gather(*(round_(start + n) for n in range(20)))} <= {200, 202}
    assert (await raw.request("ping")).result == {}


async def test_deleting_a_session_ends_its_calls(daemon: Daemon, upstream: Upstream) -> None:
    """DELETE cancels what is open: the client's response ends with an error, the upstream hears of it."""
    async with raw_http(daemon) as raw:
        await raw.initialize()
        waiting = asyncio.create_task(raw.post(call(1, "s__hang")))
        await wait_for(lambda: reached(upstream, "tools/call"))
        await raw.exchange("DELETE")
        assert (await waiting).error["data"]["reason"] == "cancelled"
        await wait_for(lambda: [e for e in upstream.log() if e["event"] in ("interrupted", "end")])


# ---- the pass-through endpoint


async def test_pass_through_streams_at_once_with_a_priming_event(daemon: Daemon, upstream: Upstream) -> None:
    """At 2025-11-25 a pass-through call is a stream at once: an id without data and `retry` first. Older: no."""
    async with raw_http(daemon, "/servers/s/mcp") as raw:
        shown = (await raw.initialize()).result
        assert shown["serverInfo"]["name"] == "fake"
        assert "logging" in shown["capabilities"]
        assert shown["instructions"] == "This is the fake server fake."
        answer = await raw.post(call(1, "echo", {"a": 1}))
        assert answer.headers["Content-Type"] == EVENT
        head = answer.body.split(b"\n\n")[0]
        assert head.startswith(b"id: ")
        assert b"\nretry: " in head
        assert echoed(answer.message) == {"a": 1}
        for method in ("tools/list", "ping", "no/such"):
            listed = await raw.request(method)
            assert (listed.headers["Content-Type"], len(listed.messages)) == (EVENT, 1)
        assert (await raw.request("ping", headers={"Accept": "application/json"})).result == {}
        await raw.exchange("DELETE")
        del raw.headers["Mcp-Session-Id"], raw.headers["MCP-Protocol-Version"]
        await raw.initialize("2025-06-18")
        assert (await raw.post(call(1, "echo"))).headers["Content-Type"] == "application/json"
        await raw.exchange("DELETE")


# ---- notices


async def test_a_change_waits_for_the_stream_that_can_tell_it(daemon: Daemon, raw: RawHttp) -> None:
    """C11: a change before a GET stream is open is told when it opens, once, however often it happened."""
    for n in range(3):
        assert (await raw.post(call(n, "s__add_tool", {"name": f"extra{n}"}))).result
    names = lambda answer: {t["name"] for t in answer.result["tools"]}  # noqa: E731

    async def listed() -> bool:
        return {f"s__extra{n}" for n in range(3)} <= names(await raw.request("tools/list"))

    await wait_for(listed)
    async with stream(raw) as events:
        assert (await events.message())["method"] == "notifications/tools/list_changed"
        await daemon.call("POST", "/resources/mcp_server/s/disable")
        kinds = {(await events.message())["method"].split("/")[1] for _ in range(3)}
        assert kinds == {"tools", "resources", "prompts"}
    assert names(await raw.request("tools/list")) == set()


async def test_resource_updates_reach_their_subscribers_only(daemon: Daemon, raw: RawHttp) -> None:
    """R07: one update with the namespaced URI to who subscribed, none to who did not, in both eras' forms."""
    uri = "coffer://s/memo://notes/1"
    async with raw_http(daemon) as other:
        await other.initialize()
        assert (await raw.request("resources/subscribe", {"uri": uri})).result == {}
        listen, headers = modern_message(
            "L", "subscriptions/listen", {"notifications": {"resourceSubscriptions": [uri, "coffer://s/no:where"]}}
        )
        async with (
            stream(raw) as mine,
            stream(other) as theirs,
            stream(raw, "POST", listen, headers) as modern,
        ):
            acknowledged = await modern.message()
            assert uri in acknowledged["params"]["notifications"]["resourceSubscriptions"]
            for touched in ("file:///fake/a.txt", "memo://notes/1"):  # each era has a process of its own
                await raw.post(call(touched, "s__touch", {"uri": touched}))
                await raw.modern("tools/call", {"name": "s__touch", "arguments": {"uri": touched}})
            legacy = {"jsonrpc": "2.0", "method": UPDATED, "params": {"uri": uri}}
            assert await mine.message_of(UPDATED) == legacy
            update = await modern.message()
            assert (update["method"], update["params"]["uri"]) == (UPDATED, uri)
            assert update["params"]["_meta"][META + "subscriptionId"] == "L"
            await raw.post(call("t", "s__add_tool", {"name": "marker"}))
            assert (await theirs.message())["method"] == "notifications/tools/list_changed"
        assert (await raw.request("resources/unsubscribe", {"uri": uri})).result == {}
        await other.exchange("DELETE")


async def test_a_stopping_daemon_ends_listens_with_a_result(daemon: Daemon) -> None:
    """A listen stream that the daemon ends on purpose ends with its result, which names the subscription."""
    message, headers = modern_message("L", "subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    async with raw_http(daemon) as raw, stream(raw, "POST", message, headers) as events:
        await events.message()
        await asyncio.to_thread(daemon.stop)
        last = await events.message()
    assert last["id"] == "L"
    assert last["result"] == {"resultType": "complete", "_meta": {META + "subscriptionId": "L"}}


# ---- the official client


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_sdks_client_of_either_era(daemon: Daemon, upstream: Upstream, mode: str) -> None:
    """Calls, progress, reads, prompts, completion and change notices through the official client."""
    changed = asyncio.Event()

    async def heard(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changed.set()

    seen: list[float] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    client: Client
    async with http_client(daemon, mode, message_handler=heard) as client:
        assert "s__echo" in [tool.name for tool in (await client.list_tools()).tools]
        assert json.loads(text_of(await client.call_tool("s__echo", {"n": 1}))) == {"n": 1}
        await client.call_tool("s__progress", {"n": 3}, progress_callback=progressed)
        assert seen == [1, 2, 3]
        read = await client.read_resource("coffer://s/memo://notes/1")
        assert str(read.contents[0].uri) == "coffer://s/memo://notes/1"
        assert (await client.get_prompt("s__plain")).messages
        reference = types.PromptReference(type="ref/prompt", name="s__greet")
        completed = await client.complete(reference, {"name": "name", "value": "a"})
        assert completed.completion.values is not None
        if mode == "legacy":
            await client.call_tool("s__add_tool", {"name": "later"})
            await asyncio.wait_for(changed.wait(), 20)
        else:
            async with client.listen(tools_list_changed=True) as subscription:
                await client.call_tool("s__add_tool", {"name": "later"})
                event = await asyncio.wait_for(anext(subscription), 20)
                assert type(event).__name__ == "ToolsListChanged"


async def test_bursts_of_parallel_calls(daemon: Daemon, upstream: Upstream) -> None:
    """Q04: clients in parallel, some calls failing, some denied, one client stuck: every call is answered once."""
    async with raw_http(daemon) as stuck:
        await stuck.initialize()
        waiting = asyncio.create_task(stuck.post(call(0, "s__hang")))

        async def client(number: int) -> None:
            async with raw_http(daemon) as raw:
                for start in range(3):
                    tools = ["s__echo", "s__fail", "s__nothing", "s__echo"] * 5
                    mids = range(start * 20, start * 20 + 20)
                    answers = await asyncio.gather(
                        *(
                            raw.post(*modern_message(m, "tools/call", {"name": t, "arguments": {"n": [number, m]}}))
                            for m, t in zip(mids, tools, strict=True)
                        )
                    )
                    assert [a.message["id"] for a in answers] == list(mids)
                    assert all(
                        echoed(a.message) == {"n": [number, m]}
                        for a, m, t in zip(answers, mids, tools, strict=True)
                        if t == "s__echo"
                    )

        await asyncio.gather(*(client(n) for n in range(5)))
        await stuck.exchange("DELETE")
        assert (await waiting).error


async def test_a_header_that_is_no_text_spoils_no_other_call(daemon: Daemon, raw: RawHttp) -> None:
    """Bytes that are no UTF-8 cannot be passed on in a frame: that call is answered, and so is the next one."""
    asked = {"name": "s__touch", "arguments": {"uri": "memo://notes/1"}}
    message, headers = modern_message(1, "tools/call", asked)
    body = json.dumps(message).encode()
    named = {**raw.headers, **headers, "Host": f"127.0.0.1:{daemon.port}", "Connection": "close"}
    del named["Mcp-Session-Id"]
    lines = ["POST /mcp HTTP/1.1", f"Content-Length: {len(body)}", *(f"{key}: {value}" for key, value in named.items())]
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    writer.write("\r\n".join(lines).encode() + b"\r\nMcp-Param-X: \xff\r\n\r\n" + body)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    assert answer.split()[1] in (b"200", b"400")
    assert b'"result"' in answer or b'"error"' in answer
    assert "content" in (await raw.modern("tools/call", asked)).result
