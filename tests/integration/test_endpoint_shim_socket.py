"""The shim's socket, spoken by hand: greeting, framing, both eras on one connection, notices, and its ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coffer_common import protocol
from coffer_supervisor.daemon import listen_unix
from coffer_supervisor.endpoint.methods import Methods
from coffer_supervisor.endpoint.notices import Notices
from coffer_supervisor.endpoint.shim_socket import ShimServer
from tests.support.clients import META, modern_message
from tests.support.daemon import Daemon
from tests.support.heart import beating
from tests.support.upstreams import Upstream, fake, raw
from tests.support.wait import wait_for

INITIALIZE = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "shim", "version": "1"}}
LIMIT = 100 << 20


def call(mid: Any, tool: str, arguments: Any = None) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments or {}}
    return {"jsonrpc": "2.0", "id": mid, "method": "tools/call", "params": params}


class Line:
    """One connection to `mcp.sock`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, message: Any) -> None:
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.writer.write(data + b"\n")

    async def line(self) -> bytes:
        return await asyncio.wait_for(self.reader.readline(), 20)

    async def message(self) -> Any:
        return json.loads(await self.line())

    async def request(self, mid: Any, method: str, params: Any = None) -> Any:
        message = {"jsonrpc": "2.0", "id": mid, "method": method}
        self.send(message if params is None else {**message, "params": params})
        return await self.message()

    async def initialize(self) -> Any:
        answer = await self.request("init", "initialize", INITIALIZE)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer

    def call(self, mid: Any, tool: str, arguments: Any = None) -> None:
        self.send(call(mid, tool, arguments))

    async def modern(self, mid: Any, method: str, params: Any = None) -> Any:
        self.send(modern_message(mid, method, params)[0])
        return await self.message()


@asynccontextmanager
async def connected(daemon: Daemon, endpoint: str = "/mcp", **hello: Any) -> AsyncIterator[Line]:
    reader, writer = await asyncio.open_unix_connection(str(daemon.run_dir / "mcp.sock"), limit=LIMIT)
    line = Line(reader, writer)
    greeting = {"coffer": "hello", "version": 1, "client_version": "0", "endpoint": endpoint, "cwd": "/", "pid": 1}
    line.send({**greeting, **hello})
    try:
        yield line
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


@asynccontextmanager
async def welcomed(daemon: Daemon, endpoint: str = "/mcp") -> AsyncIterator[Line]:
    async with connected(daemon, endpoint) as line:
        assert (await line.message())["coffer"] == "welcome"
        yield line


@pytest.fixture
def upstream(daemon: Daemon, tmp_path: Path) -> Upstream:
    """One fake server, known as `s`."""
    made = fake(log=tmp_path / "s.log")
    daemon.add_server("s", made)
    daemon.wait_state("s")
    return made


async def test_greetings_that_are_refused(daemon: Daemon) -> None:
    """The first line must be a hello of our version for an endpoint that there is; else the reason, and the end."""
    for hello, reason in (
        ({"version": 99}, "version"),
        ({"endpoint": "/nowhere"}, "endpoint"),
        ({"endpoint": "/servers/Bad__Name/mcp"}, "endpoint"),
        ({"coffer": "goodbye", "reason": "x"}, "protocol"),
    ):
        async with connected(daemon, **hello) as line:
            answer = await line.message()
            assert (answer["coffer"], answer["reason"]) == ("refused", reason)
            assert await line.line() == b""
    reader, writer = await asyncio.open_unix_connection(str(daemon.run_dir / "mcp.sock"))
    writer.write(b"x" * 70_000)
    assert b'"protocol"' in await reader.readline()
    writer.close()


async def test_a_connection_that_says_no_hello_is_not_kept() -> None:
    """Who connects must say who it is in time, and is told so; one that did may be silent as long as it likes."""
    async with beating() as heart:
        shims = ShimServer(heart.router, Methods(heart.router), Notices(heart.router.sees), "0")
        shims.hello_seconds = 0.2
        path = heart.heart.home.mcp_sock
        await shims.start(listen_unix(path))
        try:
            mute, closed = await asyncio.open_unix_connection(str(path))
            reader, writer = await asyncio.open_unix_connection(str(path))
            hello = {"coffer": "hello", "version": 1, "client_version": "0", "endpoint": "/mcp", "cwd": "/", "pid": 1}
            writer.write(json.dumps(hello).encode() + b"\n")
            assert b'"welcome"' in await reader.readline()
            refused = json.loads(await asyncio.wait_for(mute.readline(), 20))
            assert (refused["reason"], "no hello came" in refused["message"]) == ("protocol", True)
            assert await mute.read() == b""
            await wait_for(lambda: len(shims.connections) == 1)
            writer.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
            assert json.loads(await reader.readline())["result"] == {}
        finally:
            shims.stop("stopped")
        for end in (closed, writer):
            end.close()
            await end.wait_closed()


async def test_malformed_lines_and_both_eras_on_one_connection(daemon: Daemon) -> None:
    """F09, E05, E06, H13, I04: rubbish is answered and harms nothing; the era is decided by each request."""
    async with welcomed(daemon) as line:
        line.send(b"{oops")
        bad = await line.message()
        assert (bad["id"], bad["error"]["code"]) == (None, protocol.PARSE_ERROR)
        line.send(b"\xef\xbb\xbf" + b'{"jsonrpc":"2.0","id":1,"method":"ping"}\r')
        line.send(b"")
        assert await line.message() == {"jsonrpc": "2.0", "id": 1, "result": {}}
        early = await line.request(2, "tools/list")
        assert early["error"]["code"] == protocol.INVALID_REQUEST
        line.send({"jsonrpc": "2.0", "method": "server/discover"})
        assert (await line.modern("d", "server/discover"))["result"]["resultType"] == "complete"
        assert (await line.initialize())["result"]["protocolVersion"] == "2024-11-05"
        assert (await line.modern(3, "tools/list"))["result"]["resultType"] == "complete"
        assert (await line.request("3", "tools/list")) == {"jsonrpc": "2.0", "id": "3", "result": {"tools": []}}
        assert (await line.modern(4, "ping"))["error"]["code"] == protocol.METHOD_NOT_FOUND
        assert (await line.request(5, "no/such"))["error"]["code"] == protocol.METHOD_NOT_FOUND
        for body in ([], [1], [{"jsonrpc": "2.0", "id": 1, "method": "ping"}]):
            line.send(body)
            assert (await line.message())["error"]["code"] == protocol.INVALID_REQUEST
        line.send({"jsonrpc": "2.0", "id": None, "method": "tools/list"})
        assert (await line.message())["error"]["code"] == protocol.INVALID_REQUEST
        line.send(
            {"jsonrpc": "2.0", "id": 6, "method": "tools/list", "params": {"_meta": {META + "protocolVersion": 1}}}
        )
        assert (await line.message())["error"]["code"] == protocol.INVALID_PARAMS


async def test_large_lines_and_too_large_ones(daemon: Daemon) -> None:
    """H15 on lines: 20 MiB is served, beyond 64 MiB one error; what follows on the connection works."""
    async with welcomed(daemon) as line:
        ping = b'{"jsonrpc":"2.0","id":%d,"method":"ping","params":{"pad":"'
        line.send(ping % 1 + b"x" * (20 << 20) + b'"}}')
        assert (await line.message())["id"] == 1
        line.send(ping % 2 + b"x" * (65 << 20) + b'"}}')
        assert "64 MiB" in (await line.message())["error"]["message"]
        assert (await line.request(3, "ping"))["id"] == 3


async def test_requests_written_at_once_are_served_in_order(daemon: Daemon, upstream: Upstream) -> None:
    """H12, F13: a client that writes its handshake and its calls in one go gets every answer, initialize first."""
    async with welcomed(daemon) as line:
        messages = [
            {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": INITIALIZE},
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            *(call(mid, "s__echo", {"n": [mid]}) for mid in (1, "1", 2)),
        ]
        line.send(b"\n".join(json.dumps(message).encode() for message in messages))
        answers = [await line.message() for _ in range(4)]
        assert {json.dumps(a["id"]) for a in answers} == {"0", "1", '"1"', "2"}
        for answer in answers:
            if answer["id"] != 0:
                assert json.loads(answer["result"]["content"][0]["text"]) == {"n": [answer["id"]]}


async def test_cancellation_by_message_in_both_eras(daemon: Daemon, upstream: Upstream) -> None:
    """L07: on a line transport notifications/cancelled ends a call of either era; nothing answers it."""
    async with welcomed(daemon) as line:
        await line.initialize()
        line.call("old", "s__hang")
        line.send(modern_message("new", "tools/call", {"name": "s__hang", "arguments": {}})[0])
        await wait_for(lambda: len(upstream.messages("tools/call")) == 2)
        for mid in ("old", "new"):
            line.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": mid}})
        await wait_for(lambda: len([e for e in upstream.log() if e["event"] == "interrupted"]) == 2)
        line.call("old", "s__echo")
        assert (await line.message())["id"] == "old"


async def test_five_hundred_cancels_race_with_their_answers(daemon: Daemon, upstream: Upstream) -> None:
    """L06: at most one answer each, none after a cancel that won, and the connection lives; in both eras."""
    async with welcomed(daemon) as line:
        await line.initialize()
        answered: list[Any] = []

        async def ping(mid: str) -> None:
            line.send({"jsonrpc": "2.0", "id": mid, "method": "ping"})
            while (seen := await line.message())["id"] != mid:
                answered.append(seen)

        for n in range(500):
            message = call(n, "s__echo", {"n": n})
            line.send(message if n % 2 else modern_message(n, "tools/call", message["params"])[0])
            for k in range(n % 4):  # longer each time: none, one, two or three round trips
                await ping(f"{n}-{k}")
            line.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": n}})
            await ping(f"{n}-cancelled")
            assert [seen["id"] for seen in answered] in ([], [n]), "an answer came twice, or after its cancel"
            assert all(json.loads(seen["result"]["content"][0]["text"]) == {"n": n} for seen in answered)
            answered.clear()
        line.call("after", "s__echo", {"n": "after"})
        assert (await line.message())["id"] == "after"


async def test_a_shim_that_goes_ends_its_calls(daemon: Daemon, upstream: Upstream) -> None:
    """L07: the end of the connection is the end of the session: what was open is cancelled upstream."""
    async with welcomed(daemon) as line:
        await line.initialize()
        line.call(1, "s__hang")
        await wait_for(lambda: upstream.messages("tools/call"))
    await wait_for(lambda: [e for e in upstream.log() if e["event"] in ("interrupted", "end")])


async def test_notices_on_a_line(daemon: Daemon, upstream: Upstream) -> None:
    """C11, E16: a change is told in the session's form once it is initialized, and in each listen's form."""
    async with welcomed(daemon) as line:
        ack = await line.modern("L", "subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        assert ack["method"] == "notifications/subscriptions/acknowledged"
        line.send(modern_message(1, "tools/call", {"name": "s__add_tool", "arguments": {"name": "one"}})[0])
        got = [await line.message() for _ in range(2)]
        stamped = next(m for m in got if m.get("method") == "notifications/tools/list_changed")
        assert stamped["params"]["_meta"][META + "subscriptionId"] == "L"
        line.send({"jsonrpc": "2.0", "id": 2, "method": "initialize", "params": INITIALIZE})
        assert (await line.message())["id"] == 2
        line.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert await line.message() == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        line.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "L"}})
        line.call(3, "s__add_tool", {"name": "two"})
        got = [await line.message() for _ in range(2)]
        assert [m for m in got if "params" in m] == []


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_what_an_upstream_refuses_stays_out_of_the_acknowledgement(
    daemon: Daemon, tmp_path: Path, era: str
) -> None:
    """E16, R07: a listen is acknowledged first, with what was asked for and could be had; then updates, stamped with
    the client's own id in its own type; with the stream ends the upstream's subscription."""
    replies: dict[str, Any] = {"resources/subscribe": {"result": {}}, "resources/unsubscribe": {"result": {}}}
    replies["resources/subscribe no:1"] = {"error": {"code": -32602, "message": "no such resource"}}
    capabilities = {"tools": {}, "resources": {"subscribe": True}}
    discovered = {"supportedVersions": ["2026-07-28"], "capabilities": capabilities, "resultType": "complete"}
    flags: tuple[str, ...] = ()
    if era == "modern":
        flags, replies["server/discover"] = ("--probe", "script", "--modern-only"), {"result": discovered}
    script = {"capabilities": capabilities, "replies": replies}
    server = raw(*flags, log=tmp_path / "log", script=script, at=tmp_path)
    daemon.add_server("up", server)
    daemon.wait_state("up", "ready")
    async with welcomed(daemon) as line:
        wanted = {"resourceSubscriptions": ["coffer://up/x:1", "coffer://up/no:1"], "promptsListChanged": True}
        ack = await line.modern(7, "subscriptions/listen", {"notifications": wanted})
        assert ack["method"] == "notifications/subscriptions/acknowledged"
        assert ack["params"]["_meta"][META + "subscriptionId"] == 7
        assert ack["params"]["notifications"] == {
            "resourceSubscriptions": ["coffer://up/x:1"],
            "promptsListChanged": True,
        }
        line.send(modern_message(8, "tools/call", {"name": "up__echo", "arguments": {"do": "update", "uri": "x:1"}})[0])
        got = [await line.message() for _ in range(2)]
        update = next(message for message in got if "method" in message)
        assert update["params"] == {"_meta": {META + "subscriptionId": 7}, "uri": "coffer://up/x:1"}
        line.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
        if era == "legacy":
            ended = await wait_for(lambda: server.messages("resources/unsubscribe"))
            assert [message["params"]["uri"] for message in ended] == ["x:1"]
        else:
            await wait_for(
                lambda: (
                    "resourceSubscriptions"
                    not in server.messages("subscriptions/listen")[-1]["params"]["notifications"]
                )
            )


async def test_the_daemon_says_goodbye(daemon: Daemon) -> None:
    """A daemon that stops says why and closes; an open listen ends without a result, the shim carries it over."""
    async with welcomed(daemon) as line:
        await line.modern("L", "subscriptions/listen", {"notifications": {}})
        await asyncio.to_thread(daemon.stop)
        assert await line.message() == {"coffer": "goodbye", "reason": "stopped"}
        assert await line.line() == b""


async def test_nesting_to_any_depth_ends_no_connection(daemon: Daemon) -> None:
    """What can just be read as a message is too deep for who reads on further in: an answer all the same."""
    async with welcomed(daemon) as line:
        await line.initialize()
        for depth in range(900, 1101, 3):
            nested = b"[" * depth + b"]" * depth
            for params in (
                b'"method":"tools/list","params":{"x":',
                b'"method":"tools/call","params":{"name":"no__such","x":',
            ):
                line.send(b'{"jsonrpc":"2.0","id":7,' + params + nested + b"}}")
                answer = await line.message()
                assert answer["id"] in (7, None)
                assert "result" in answer or "error" in answer
        assert (await line.request(8, "ping"))["result"] == {}
