"""Upstreams over HTTP that misbehave: each fault is a clear error of the calls concerned, and nothing else.

A real worker process speaks to a server that is scripted byte for byte.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coffer_common import frames
from tests.fixtures.raw_http_server import MODERN, Exchange, RawHttp
from tests.support.certificates import self_signed
from tests.support.wait import wait_for
from tests.support.worker import Answer, Worker, caller, server_config

pytestmark = pytest.mark.fault
ERAS = ("legacy", "modern")


@asynccontextmanager
async def worker_for(home: Path, server: RawHttp, *, ready: bool = True, **more: Any) -> AsyncIterator[Worker]:
    """A worker whose upstream is `server`."""
    async with Worker.start(home, server_config(server.config(**more)), ready=ready) as worker:
        if ready:
            era = worker.all(frames.State)[-1].era
            await wait_for(lambda: "tool:echo" in worker.catalogue(era), what="the catalogue")
        yield worker


def by(era: str, session: str = "s1") -> frames.Caller:
    """A client of that era."""
    return caller(MODERN if era == "modern" else "2025-11-25", session)


async def works(worker: Worker, era: str = "legacy") -> None:
    """A plain call is answered."""
    assert json.loads((await worker.call("echo", {"ok": True}, by(era))).text) == {"ok": True}


def only(tool: str, do: Callable[[Exchange], Awaitable[None]]) -> Callable[[Exchange], Awaitable[None]]:
    """A handler of tools/call that does something else for one tool."""

    async def handler(exchange: Exchange) -> None:
        if exchange.seen.params["name"] == tool:
            await do(exchange)
        else:
            await exchange.server.plain(exchange)

    return handler


def data_of(answer: Answer) -> dict[str, Any]:
    """The data of an error."""
    return answer.value["data"]


# ---- answers that are none


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("body", "kind", "excerpt"),
    [
        ('{"Output":{}}', "application/json", "Output"),
        ("<html><h1>Sign in</h1></html>", "text/html", "Sign in"),
        ("", "application/json", ""),
        ("Grüße", "text/plain; charset=utf-8", "Grüße"),
    ],
)
async def test_200_with_what_is_no_answer(tmp_path: Path, era: str, body: str, kind: str, excerpt: str) -> None:
    """S13: the call fails with the status and a short excerpt; the next call works."""

    async def odd(exchange: Exchange) -> None:
        await exchange.status(200, body, kind)

    async with RawHttp(era=era) as server, worker_for(tmp_path, server) as worker:
        server.on("tools/call", only("other", odd))
        answer = await worker.call("other", by=by(era))
        assert answer.reason == "bad_answer"
        assert data_of(answer)["status"] == 200
        assert excerpt in data_of(answer)["excerpt"]
        assert "'up'" in answer.message
        await works(worker, era)


async def test_an_excerpt_shows_no_secret(tmp_path: Path) -> None:
    """An upstream that repeats its credential in an error page does not bring it into the client's error or the log."""
    secret = "s3cr3t-Tok-9917"

    async def leak(exchange: Exchange) -> None:
        await exchange.status(500, f"bad header: {exchange.seen.headers['authorization']}")

    headers = {"Authorization": f"Bearer {secret}"}
    async with RawHttp() as server, worker_for(tmp_path, server, headers=headers) as worker:
        server.on("tools/call", leak)
        answer = await worker.call("echo")
        assert answer.reason == "upstream_status"
        assert "HTTP 500" in answer.message
        assert secret not in answer.raw.decode()
        assert server.of("tools/call")[0].headers["authorization"] == f"Bearer {secret}"
    assert all(secret not in path.read_text() for path in (tmp_path / "logs").iterdir())


async def test_a_secret_in_a_url_is_sent_and_never_shown(tmp_path: Path) -> None:
    """K02: neither in the errors of calls, nor in the state, nor in the log; of a URL only the origin is."""
    secret = "u-r-l-S3cret-4711"

    async def moved(exchange: Exchange) -> None:
        await exchange.status(307, location=f"http://elsewhere.invalid/?key={secret}")

    async def leak(exchange: Exchange) -> None:
        await exchange.status(500, f"no such path: {exchange.seen.target}")

    async with RawHttp() as server:
        config = server_config({"transport": "http", "url": f"{server.url}?key={secret}"})
        async with Worker.start(tmp_path, config) as worker:
            assert all(seen.target.endswith(f"?key={secret}") for seen in server.seen)
            for handler in (moved, leak):
                server.on("tools/call", handler)
                assert secret not in (await worker.call("echo")).raw.decode()
            await server.close()
            assert secret not in (await worker.call("echo")).raw.decode()
            await worker.state("backoff")
            assert secret not in str(worker.all(frames.State))
    assert all(secret not in path.read_text() for path in (tmp_path / "logs").iterdir())


# ---- silence, resets, halves


@pytest.mark.parametrize("era", ERAS)
async def test_accepting_and_never_answering_ends_at_the_limit(tmp_path: Path, era: str) -> None:
    """The upstream is told as its era asks: a closed stream, or a notification."""
    left = asyncio.Event()

    async def never(exchange: Exchange) -> None:
        await exchange.forever()
        left.set()

    limits = {"idle_seconds": 0.5}
    async with RawHttp(era=era) as server, worker_for(tmp_path, server, limits=limits) as worker:
        server.on("tools/call", only("other", never))
        answer = await worker.call("other", by=by(era))
        assert answer.reason == "idle_limit"
        if era == "modern":
            await asyncio.wait_for(left.wait(), 10)
            assert not server.of("notifications/cancelled")
        else:
            told = await wait_for(lambda: server.of("notifications/cancelled"))
            assert told[0].params["requestId"] == server.of("tools/call")[0].body["id"]
        await works(worker, era)


@pytest.mark.parametrize("era", ERAS)
async def test_a_reset_costs_one_call(tmp_path: Path, era: str) -> None:
    """H04: the call is not made again, the error says that its outcome is unknown, the others go on."""
    release = asyncio.Event()

    async def act(exchange: Exchange) -> None:
        if exchange.seen.params["arguments"].get("slow"):
            await release.wait()
            await exchange.server.plain(exchange)
        else:
            exchange.server.calls += 1
            exchange.reset()

    async with RawHttp(era=era) as server, worker_for(tmp_path, server) as worker:
        server.on("tools/call", act)
        params = {"name": "up__echo", "arguments": {"slow": True}}
        slow = await worker.begin("tools/call", "echo", params, by(era))
        await wait_for(lambda: server.of("tools/call"))
        answer = await worker.call("echo", {}, by(era))
        assert answer.reason == "connection_broken"
        assert "not known" in answer.message
        assert data_of(answer)["retryable"] is False
        release.set()
        assert json.loads((await worker.answer(slow)).text) == {"slow": True}
        assert len(server.of("tools/call")) == 2
        assert worker.all(frames.State)[-1].state == "ready"


@pytest.mark.parametrize("era", ERAS)
async def test_half_an_event_is_no_answer(tmp_path: Path, era: str) -> None:
    async def half(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.raw(b'data: {"jsonrpc":"2.0","id":1,"result":{"content"')
        exchange.close()

    async with RawHttp(era=era) as server, worker_for(tmp_path, server) as worker:
        server.on("tools/call", only("other", half))
        answer = await worker.call("other", by=by(era))
        assert answer.reason == "connection_broken"
        await works(worker, era)


async def test_a_refused_connection_is_waited_out(tmp_path: Path) -> None:
    """H02: an upstream that is being restarted refuses connections for a while, and has forgotten the session."""
    async with RawHttp() as server, worker_for(tmp_path, server) as worker:
        await works(worker)
        await server.close()
        corr = await worker.begin("tools/call", "echo", {"name": "up__echo", "arguments": {"n": 2}}, by("legacy"))
        server.session = "s-2"
        await server.open()
        assert json.loads((await worker.answer(corr)).text) == {"n": 2}
        assert server.of("tools/call")[-1].headers["mcp-session-id"] == "s-2"
        assert worker.all(frames.State)[-1].state == "ready"


@pytest.mark.timeout(90)
@pytest.mark.parametrize("era", ERAS)
async def test_an_upstream_that_stays_away_is_tried_again_later(tmp_path: Path, era: str) -> None:
    async with RawHttp(era=era) as server, worker_for(tmp_path, server) as worker:
        await works(worker, era)
        await server.close()
        answer = await worker.call("echo", {}, by(era))
        assert answer.reason == "upstream_unreachable"
        assert "nothing was sent" in answer.message
        state = await worker.state("backoff")
        assert "refused the connection" in state.message
        since = len(worker.all(frames.State))
        await server.open()
        await worker.state("ready", since)
        await works(worker, era)


@pytest.mark.parametrize("era", ERAS)
async def test_what_was_sent_before_the_upstream_went_away_has_an_unknown_outcome(tmp_path: Path, era: str) -> None:
    """The call that could not be sent may be made again; the one that was under way is never said to be unsent."""
    held: list[Exchange] = []

    async def hold(exchange: Exchange) -> None:
        held.append(exchange)
        await exchange.forever()

    async with RawHttp(era=era) as server, worker_for(tmp_path, server) as worker:
        server.on("tools/call", hold)
        first = await worker.begin("tools/call", "echo", {"name": "up__echo"}, by(era))
        await wait_for(lambda: held)
        server.deaf(held[0])
        await wait_for(lambda: server.connections == 1)
        second = await worker.call("echo", {}, by(era))
        assert (second.reason, data_of(second)["retryable"]) == ("upstream_unreachable", True)
        answer = await worker.answer(first)
        assert (answer.reason, data_of(answer)["retryable"]) == ("connection_broken", False)


async def test_an_upstream_that_is_not_there_at_the_start(tmp_path: Path) -> None:
    server = RawHttp()
    await server.open()
    await server.close()
    async with worker_for(tmp_path, server, ready=False) as worker:
        state = await worker.state("backoff")
        assert (state.reason, state.retry_in is not None) == ("upstream_unreachable", True)
        await server.open()
        try:
            await worker.state("ready")
            await works(worker)
        finally:
            await server.close()


async def test_an_upstream_that_accepts_and_says_nothing_at_the_start(tmp_path: Path) -> None:
    """Silence over HTTP is no verdict on the era: the older handshake is not tried, the start limit ends it."""

    async def never(exchange: Exchange) -> None:
        await exchange.forever()

    async with RawHttp() as server:
        server.on("server/discover", never)
        async with worker_for(tmp_path, server, ready=False, limits={"start_seconds": 0.5}) as worker:
            state = await worker.state("backoff")
            assert (state.reason, not server.of("initialize")) == ("start_limit", True)


# ---- sessions


@pytest.mark.parametrize(
    ("status", "text"), [(404, "Session not found"), (400, "Bad Request: No valid session ID provided"), (404, "")]
)
async def test_a_lost_session_is_made_again(tmp_path: Path, status: int, text: str) -> None:
    """H01, H02: a new initialize without id, initialized, the same call once more under a new id."""

    async def gone(exchange: Exchange) -> None:
        if exchange.seen.headers.get("mcp-session-id") == "s-2":
            await exchange.server.plain(exchange)
        elif text:
            await exchange.error(-32000, text, status)
        else:
            await exchange.status(status)

    async with RawHttp() as server, worker_for(tmp_path, server) as worker:
        server.session = "s-2"
        server.on("tools/call", gone)
        await works(worker)
        first, second = server.of("tools/call")
        assert first.body["id"] != second.body["id"]
        assert first.params["_meta"]["progressToken"] != second.params["_meta"]["progressToken"]
        hello = server.of("initialize")[-1]
        assert "mcp-session-id" not in hello.headers
        assert "mcp-protocol-version" not in hello.headers
        assert server.of("notifications/initialized")[-1].headers["mcp-session-id"] == "s-2"
        assert len(server.of("initialize")) == 2
        assert server.calls == 1
        # What the new session may list is another matter: it is read again.
        await wait_for(lambda: any(seen.headers["mcp-session-id"] == "s-2" for seen in server.of("tools/list")))


async def test_a_session_that_is_lost_again_at_once_fails_the_call(tmp_path: Path) -> None:
    async def always(exchange: Exchange) -> None:
        await exchange.error(-32001, "Session not found", 404)

    async with RawHttp() as server, worker_for(tmp_path, server) as worker:
        server.on("tools/call", only("other", always))
        answer = await worker.call("other")
        assert answer.reason == "session_lost"
        assert len(server.of("tools/call")) == 2
        await works(worker)


async def test_a_session_lost_behind_a_503_is_found_out(tmp_path: Path) -> None:
    """H02: the call that met it fails, for nobody knows; the next one first looks whether the session is there."""

    async def lost(exchange: Exchange) -> None:
        if exchange.seen.headers.get("mcp-session-id") == "s-2":
            await exchange.server.plain(exchange)
        else:
            await exchange.status(503, "no such instance")

    async with RawHttp() as server, worker_for(tmp_path, server) as worker:
        server.session = "s-2"
        server.on("tools/call", lost)
        server.on("ping", lost)
        answer = await worker.call("echo")
        assert (answer.reason, data_of(answer)["retryable"]) == ("upstream_busy", True)
        await works(worker)
        assert server.calls == 1


async def test_subscriptions_follow_into_a_new_session(tmp_path: Path) -> None:
    capabilities = {"tools": {}, "resources": {"subscribe": True}}
    async with RawHttp(capabilities=capabilities) as server, worker_for(tmp_path, server) as worker:
        by_client = by("legacy")
        made = await worker.request(lambda corr: frames.Subscribe(corr, by_client, "s1", "memo://1"))
        assert isinstance(made.frame, frames.Reply), made.raw
        server.session = "s-2"
        await works(worker)
        again = await wait_for(lambda: server.of("resources/subscribe")[1:])
        assert (again[0].params["uri"], again[0].headers["mcp-session-id"]) == ("memo://1", "s-2")
        notices = await wait_for(
            lambda: [f for f in worker.all(frames.Notify) if f.method == "notifications/resources/updated"]
        )
        assert notices[0].uri == "memo://1"


# ---- refusals


@pytest.mark.parametrize("era", ERAS)
async def test_401_asks_for_a_login_and_for_nothing_else(tmp_path: Path, era: str) -> None:
    """K10, H02: the upstream needs a login; what it listed stays; no initialize is spent on it."""

    async def refused(exchange: Exchange) -> None:
        await exchange.status(401, "", www_authenticate='Bearer resource_metadata="https://evil.example/x"')

    async with RawHttp(era=era) as server, worker_for(tmp_path, server) as worker:
        server.on("tools/call", refused)
        before = len(server.of("initialize"))
        answer = await worker.call("echo", {}, by(era))
        assert answer.reason == "needs_login"
        assert "coffer mcp update up --header" in answer.message
        state = await worker.state("needs_login")
        assert state.reason == "needs_login"
        again = await worker.call("echo", {}, by(era))
        assert again.reason == "needs_login"
        assert len(server.of("tools/call")) == 1
        assert len(server.of("initialize")) == before
        assert "tool:echo" in worker.catalogue(era)


async def test_401_at_the_start_is_no_verdict_on_the_era(tmp_path: Path) -> None:
    """E03: neither initialize nor the older transport is tried with a credential that is refused."""

    async def refused(exchange: Exchange) -> None:
        await exchange.status(401)

    async with RawHttp() as server:
        server.on("server/discover", refused)
        async with worker_for(tmp_path, server, ready=False) as worker:
            await worker.state("needs_login")
            assert [seen.method for seen in server.seen] == ["server/discover"]


@pytest.mark.parametrize(
    ("status", "reason"), [(403, "upstream_forbidden"), (429, "upstream_busy"), (502, "upstream_status")]
)
async def test_no_verdict_on_the_era_from_other_refusals(tmp_path: Path, status: int, reason: str) -> None:
    async def refused(exchange: Exchange) -> None:
        await exchange.status(status, retry_after="3")

    async with RawHttp() as server:
        server.on("server/discover", refused)
        async with worker_for(tmp_path, server, ready=False) as worker:
            state = await worker.state("backoff")
            assert state.reason == reason
            assert {seen.method for seen in server.seen} == {"server/discover"}
            if status == 429:
                assert (state.retry_in or 0) >= 3


@pytest.mark.parametrize(
    "refusal",
    [
        (403, "upstream_forbidden", "does not allow", False),
        (429, "upstream_busy", "try again in 7 s", True),
        (503, "upstream_busy", "HTTP 503", True),
        (500, "upstream_status", "HTTP 500", False),
        (405, "upstream_status", "Is its URL right?", False),
    ],
)
@pytest.mark.parametrize("era", ERAS)
async def test_refusals_are_told_apart(tmp_path: Path, era: str, refusal: tuple[int, str, str, bool]) -> None:
    """One call fails with status and reason in its error; it is not made twice; the next one works."""
    status, reason, words, retryable = refusal

    async def refused(exchange: Exchange) -> None:
        await exchange.status(status, retry_after="7")

    async with RawHttp(era=era) as server, worker_for(tmp_path, server) as worker:
        server.on("tools/call", only("other", refused))
        answer = await worker.call("other", by=by(era))
        assert answer.reason == reason
        assert words in answer.message
        assert (data_of(answer)["status"], data_of(answer)["retryable"]) == (status, retryable)
        if status == 429:
            assert data_of(answer)["retry_after"] == 7
        assert len(server.of("tools/call")) == 1
        await works(worker, era)


# ---- redirects


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("target", ["http://127.0.0.1:{other}/mcp", "file:///etc/passwd", "//evil.example/x"])
async def test_no_redirect_carries_a_credential_elsewhere(tmp_path: Path, status: int, target: str) -> None:
    """K05: a redirect to another origin is not followed, and the error names where it leads."""
    async with RawHttp() as elsewhere, RawHttp() as server:

        async def moved(exchange: Exchange) -> None:
            await exchange.status(status, location=target.format(other=elsewhere.port))

        headers = {"Authorization": "Bearer tok-tok-tok-1", "X-Api-Key": "key-key-key-1"}
        async with worker_for(tmp_path, server, headers=headers) as worker:
            server.on("tools/call", moved)
            answer = await worker.call("echo")
            assert answer.reason == "upstream_status"
            assert "redirects to" in answer.message
            assert not elsewhere.seen


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_within_the_origin_is_followed(tmp_path: Path, status: int) -> None:
    async def moved(exchange: Exchange) -> None:
        if exchange.seen.target == "/mcp":
            await exchange.status(status, location="/mcp/")
        else:
            await exchange.server.plain(exchange)

    async with RawHttp() as server:
        for method in ("server/discover", "initialize", "tools/call", "tools/list", "notifications/initialized"):
            server.on(method, moved)
        async with worker_for(tmp_path, server) as worker:
            await works(worker)
            assert server.calls == 1


async def test_a_post_that_would_lose_its_body_is_not_followed(tmp_path: Path) -> None:
    async def moved(exchange: Exchange) -> None:
        await exchange.status(302, location="/mcp/")

    async with RawHttp() as server, worker_for(tmp_path, server) as worker:
        server.on("tools/call", moved)
        assert "redirects to" in (await worker.call("echo")).message


# ---- sizes


@pytest.mark.parametrize("stream", [False, True])
async def test_a_body_of_100_mb_is_not_taken_in(tmp_path: Path, stream: bool) -> None:
    """The limit on a message holds for bodies and for events; the worker stays small and goes on."""
    chunk, chunks = b"x" * (1 << 20), 100

    async def flood(exchange: Exchange) -> None:
        if stream:
            await exchange.stream()
            await exchange.raw(b"data: ")
        else:
            await exchange.raw(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (chunks << 20)
            )
        for _ in range(chunks):
            await exchange.raw(chunk)
        exchange.close()

    limits = {"line_bytes": 1 << 20}
    async with RawHttp() as server, worker_for(tmp_path, server, limits=limits) as worker:
        server.on("tools/call", only("other", flood))
        before = (await wait_for(lambda: worker.beats[-1:]))[0].rss
        answer = await worker.call("other")
        assert answer.reason == "line_limit"
        await works(worker)
        count = len(worker.beats)
        beat = await wait_for(lambda: worker.beats[count + 1 :][:1])
        assert beat[0].rss - before < 50 << 20


async def test_an_answer_of_10_mb_arrives_whole(tmp_path: Path) -> None:
    text = "ä" * (5 << 20)

    async def big(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.answer_event({"content": [{"type": "text", "text": text}]})
        exchange.close()

    async with RawHttp() as server, worker_for(tmp_path, server) as worker:
        server.on("tools/call", big)
        assert (await worker.call("echo")).text == text


# ---- TLS


async def test_a_certificate_that_nobody_trusts(tmp_path: Path) -> None:
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate = self_signed(tmp_path)
    server_side.load_cert_chain(certificate)
    async with RawHttp(tls=server_side) as server, worker_for(tmp_path, server, ready=False) as worker:
        state = await worker.state("backoff")
        assert state.reason == "upstream_unreachable"
        assert "certificate" in state.message
        assert "not trusted" in state.message


async def test_tls_where_there_is_none(tmp_path: Path) -> None:
    async with RawHttp() as server:
        config = {**server.config(), "url": server.url.replace("http://", "https://")}
        async with Worker.start(tmp_path, server_config(config), ready=False) as worker:
            assert "TLS" in (await worker.state("backoff")).message


async def test_a_trusted_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate = self_signed(tmp_path)
    server_side.load_cert_chain(certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with RawHttp(tls=server_side) as server, worker_for(tmp_path, server) as worker:
        await works(worker)


# ---- proxies


async def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H16."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    async with RawHttp() as server, worker_for(tmp_path, server) as worker:
        await works(worker)


async def test_a_proxy_of_the_environment_is_asked_for_other_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H16: the proxy sees the request; a host that NO_PROXY names would be asked directly."""
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with RawHttp() as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        config = server_config({"transport": "http", "url": "http://mcp.invalid/mcp"})
        async with Worker.start(tmp_path, config) as worker:
            await works(worker)
            assert {seen.target for seen in proxy.seen} == {"http://mcp.invalid/mcp"}
