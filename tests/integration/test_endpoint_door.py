"""The endpoint's door and its manners: what needs no upstream. One daemon serves all tests of this file."""

import asyncio
import hashlib
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp import Client

from coffer_common import protocol
from tests.support.clients import META, RawHttp, http_client, modern_message, raw_http, sse_data
from tests.support.daemon import Daemon

INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}


@pytest.fixture
async def raw(door: Daemon) -> AsyncIterator[RawHttp]:
    async with raw_http(door) as client:
        yield client


# ---- who may enter


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost:1"}, 403),
        ({"Host": "localhost"}, 403),
        ({"Host": "localhost.evil.example:PORT"}, 403),
        ({"Host": "localhost:PORT"}, 200),
        ({"Host": "LOCALHOST:PORT"}, 200),
        ({"Host": "127.0.0.1:PORT"}, 200),
        ({"Host": "[::1]:PORT"}, 200),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://localhost.evil.example"}, 403),
        ({"Origin": "http://localhost:99999999"}, 403),
        ({"Origin": "http://localhost"}, 200),
        ({"Origin": "http://127.0.0.1:3000"}, 200),
        ({"Origin": "https://[::1]:8443"}, 200),
    ],
)
async def test_only_this_machines_names_and_pages_are_let_in(
    door: Daemon, raw: RawHttp, headers: dict[str, str], status: int
) -> None:
    """K11: Host must name loopback and our own port, Origin must be absent or loopback; on every route alike."""
    sent = {name: value.replace("PORT", str(door.port)) for name, value in headers.items()}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
    assert (await raw.post(message, sent)).status == status
    for path in ("/api/v1/daemon/status", "/servers/x/mcp", "/nowhere"):
        answer = await raw.exchange("GET", headers=sent, url=door.url(path))
        assert (answer.status == 403) == (status == 403)


async def test_every_request_needs_a_token(door: Daemon, raw: RawHttp) -> None:
    """K12: another local user who calls the port is refused, and not sent to log in anywhere."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
    for headers in (
        {"Authorization": None},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer " + door.token[:-1]},
        {"Authorization": "Basic " + door.token},
        {"X-Coffer-Token": "wrong"},
        {"Authorization": None, "X-Coffer-Token": ""},
    ):
        refused = await raw.post(message, headers)
        assert (refused.status, refused.error["data"]["reason"]) == (401, "denied")
        assert "WWW-Authenticate" not in refused.headers
    assert (await raw.post(message, {"Authorization": "bearer  " + door.token})).status == 200
    assert (await raw.post(message, {"Authorization": None, "X-Coffer-Token": door.token})).status == 200


async def test_a_refusal_at_the_door_is_in_the_words_of_the_clients_era(raw: RawHttp) -> None:
    """A client of 2026-07-28 never sees a code of the range that old servers used for their own."""
    for headers, status in (({"Authorization": None}, 401), ({"Origin": "http://evil.example"}, 403)):
        modern = await raw.modern("tools/list", headers=headers)
        assert (modern.status, modern.error["code"]) == (status, protocol.INVALID_PARAMS)
        legacy = await raw.request("initialize", INITIALIZE, headers)
        assert (legacy.status, legacy.error["code"]) == (status, protocol.SERVER_ERROR)
        assert modern.error["data"] == legacy.error["data"] == {"reason": "denied", "retryable": False}


async def test_what_is_open_and_what_is_not(door: Daemon, raw: RawHttp) -> None:
    """Only the daemon's status needs no token; the daemon's own token is not taken in a path."""
    bare = {"Authorization": None}
    assert (await raw.exchange("GET", headers=bare, url=door.url("/api/v1/daemon/status"))).status == 200
    for path in ("/api/v1/resources", "/metrics", "/mcp", "/nowhere", f"/key/{door.token}/mcp"):
        assert (await raw.exchange("GET", headers=bare, url=door.url(path))).status == 401
    assert (await raw.exchange("GET", url=door.url("/api/v1/resources"))).status == 200
    nowhere = await raw.exchange("GET", url=door.url("/nowhere"))
    assert (nowhere.status, nowhere.error["code"]) == (404, protocol.INVALID_REQUEST)
    log = (door.home / "logs" / "daemon.log").read_text()
    assert door.token not in log


async def test_a_clients_own_token_and_its_scope(door: Daemon, raw: RawHttp) -> None:
    """K12: a client enters where its scope allows, by header or path; another client's session is not there for it."""
    server = {"kind": "mcp_server", "name": "a", "config": {"transport": "stdio", "command": "true"}, "enabled": False}
    await door.call("POST", "/resources", server)
    for name, servers in (("one", ["a"]), ("two", None)):
        digest = hashlib.sha256(f"token-{name}".encode()).hexdigest()
        config = {"token_sha256": digest} | ({} if servers is None else {"servers": servers})
        await door.call("POST", "/resources", {"kind": "client", "name": name, "config": config})
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
    bare = {**raw.headers, "Authorization": ""}
    del bare["Authorization"]
    async with raw.session.post(door.url("/key/token-one/mcp"), json=message, headers=bare) as response:
        assert response.status == 200
        session = response.headers["Mcp-Session-Id"]
    one, two = ({"Authorization": f"Bearer token-{name}", "Mcp-Session-Id": session} for name in ("one", "two"))
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert (await raw.post(ping, two)).status == 404
    assert (await raw.exchange("DELETE", headers=two)).status == 404
    assert (await raw.post(ping, one)).result == {}
    assert (await raw.post(ping, {"Mcp-Session-Id": session})).status == 404
    denied = await raw.exchange("POST", json.dumps(message).encode(), one, door.url("/servers/b/mcp"))
    assert (denied.status, denied.error["data"]["reason"]) == (403, "denied")
    assert (await raw.exchange("GET", headers=two, url=door.url("/api/v1/resources"))).status == 403
    assert (await raw.exchange("GET", headers=bare, url=door.url("/key/token-two/api/v1/resources"))).status == 404
    assert "token-one" not in (door.home / "logs" / "daemon.log").read_text()


async def test_verbs(raw: RawHttp) -> None:
    """A verb that an endpoint does not have is 405 with the ones it has; a modern client has POST alone."""
    put = await raw.exchange("PUT", b"{}")
    assert (put.status, put.headers["Allow"]) == (405, "GET, POST, DELETE")
    for verb in ("GET", "DELETE"):
        modern = await raw.exchange(verb, headers={"MCP-Protocol-Version": "2026-07-28"})
        assert (modern.status, modern.headers["Allow"]) == (405, "POST")


# ---- bodies


@pytest.mark.parametrize(
    ("body", "status", "code", "mid"),
    [
        (b"", 400, -32700, None),
        (b'{"jsonrpc":"2.0","id":1', 400, -32700, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":"x"}', 400, -32602, 1),
        (b'{"jsonrpc":"2.0","id":"a","method":"ping","params":[1]}', 400, -32602, "a"),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":7}', 400, -32602, 1),
        (b'{"jsonrpc":"2.0","id":1}', 400, -32600, 1),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', 400, -32600, 1),
        (b'{"jsonrpc":"2.0","id":null,"method":"tools/list"}', 400, -32600, None),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"tools/list"}', 400, -32600, None),
        (b"7", 400, -32600, None),
        (b'"\xff"', 400, -32700, None),
        (b"[" * 100 + b"]" * 100, 400, -32600, None),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, 400, None, None),
        (b"[]", 400, -32600, None),
        (b"[1]", 400, -32600, None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', 400, -32600, None),
    ],
)
async def test_bad_bodies_get_an_error_that_names_what_is_wrong(
    raw: RawHttp, body: bytes, status: int, code: int | None, mid: Any
) -> None:
    """H13, H14, I04: a JSON-RPC error with the request's id where it is known; never 500, never silence."""
    await raw.initialize()
    answer = await raw.post(body)
    assert answer.status == status
    assert code is None or answer.error["code"] == code
    reasons = {-32700: "parse_error", -32600: "invalid_request", -32602: "invalid_params"}
    assert answer.error["data"] == {"reason": reasons[answer.error["code"]], "retryable": False}
    assert answer.message["id"] == mid


async def test_content_type_and_size(door: Daemon, raw: RawHttp) -> None:
    """H14, H15: a wrong content type is 415, a body beyond 64 MiB 413, with a JSON-RPC body."""
    await raw.initialize()
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    for headers in ({"Content-Type": "text/plain"}, {"Content-Type": None}, {"Content-Encoding": "gzip"}):
        assert (await raw.post(ping, headers)).status == 415
    assert (await raw.post(ping, {"Content-Type": "Application/JSON; charset=utf-8"})).result == {}
    large = json.dumps({**ping, "params": {"pad": "x" * (20 << 20)}}).encode()
    async with raw.session.post(raw.url, data=io.BytesIO(large), headers=raw.headers) as response:
        assert (await response.json())["result"] == {}
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{door.port}\r\nX-Coffer-Token: {door.token}\r\n"
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}).encode()
    expecting = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
    writer.write((head + expecting).encode())
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    assert b" 200 " in await reader.readline()
    writer.close()
    await writer.wait_closed()
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {65 << 20}\r\n\r\n".encode())
    assert b" 413 " in await reader.readline()
    assert b'"body_limit"' in await reader.readuntil(b"}}")
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("*/*", 200),
        ("application/json", 200),
        (None, 200),
        ("application/*;q=0.5", 200),
        ("text/event-stream", 200),
        ("application/json;q=0, text/event-stream", 200),
        ("text/html", 406),
    ],
)
async def test_accept(raw: RawHttp, accept: str | None, status: int) -> None:
    """H11: served wherever a form of answer is possible."""
    await raw.initialize()
    answer = await raw.request("ping", headers={"Accept": accept})
    assert answer.status == status
    assert answer.status == 406 or answer.result == {}


async def test_a_client_that_takes_streams_alone_is_answered_on_one(raw: RawHttp) -> None:
    """One event with the answer, in either era; an error that has an HTTP status of its own is JSON (ADR 0007)."""
    raw.headers["Accept"] = "text/event-stream"
    raw.headers["Mcp-Session-Id"] = (first := await raw.request("initialize", INITIALIZE)).headers["Mcp-Session-Id"]
    answers = [first, *[await raw.request(method) for method in ("ping", "tools/list", "no/method", "tools/call")]]
    answers += [await raw.modern("server/discover"), await raw.modern("tools/list")]
    for answer in answers:
        form = answer.headers["Content-Type"]
        assert (answer.status, form, len(answer.messages)) == (200, "text/event-stream", 1), answer.message
    for method, status in (("no/method", 404), ("tools/call", 400)):
        refused = await raw.modern(method)
        assert (refused.status, refused.headers["Content-Type"]) == (status, "application/json")
        assert refused.error["code"] < 0


# ---- handshake and sessions


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2025-03-26", "2025-03-26"),
        ("2024-11-05", "2024-11-05"),
        ("2099-01-01", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        (None, "2025-11-25"),
        (7, "2025-11-25"),
    ],
)
async def test_the_revision_that_initialize_answers(raw: RawHttp, asked: Any, answered: str) -> None:
    """E08: a revision that is really served; the client's own where it is known, never the modern one."""
    answer = await raw.request("initialize", {**INITIALIZE, "protocolVersion": asked})
    assert answer.result["protocolVersion"] == answered
    session = answer.headers["Mcp-Session-Id"]
    assert len(session) >= 32
    assert session.isascii()
    assert session.isprintable()


async def test_what_the_aggregate_declares(raw: RawHttp) -> None:
    """Tools, resources, prompts with listChanged, subscribe, and completions; no logging on the aggregate."""
    wanted = {
        "tools": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
        "prompts": {"listChanged": True},
        "completions": {},
    }
    legacy = (await raw.initialize()).result
    assert legacy["capabilities"] == wanted
    assert "Coffer" in legacy["instructions"]
    modern = (await raw.modern("server/discover", headers={"Mcp-Session-Id": None})).result
    assert (modern["capabilities"], modern["resultType"]) == (wanted, "complete")
    assert modern["supportedVersions"] == list(protocol.MODERN_REVISIONS)
    assert modern["_meta"][META + "serverInfo"] == legacy["serverInfo"]


async def test_a_session_lives_until_it_is_deleted(raw: RawHttp) -> None:
    """H05, H03: DELETE succeeds once; then 404, with a JSON-RPC body and the request's id; without an id 400."""
    await raw.initialize()
    assert (await raw.request("ping")).result == {}
    assert (await raw.exchange("DELETE")).status == 200
    assert (await raw.exchange("DELETE")).status == 404
    gone = await raw.request("ping", mid="x")
    assert (gone.status, gone.message["id"], gone.error["code"]) == (404, "x", protocol.INVALID_REQUEST)
    assert (await raw.exchange("GET")).status == 404
    del raw.headers["Mcp-Session-Id"]
    assert (await raw.exchange("DELETE")).status == 400
    assert (await raw.exchange("GET")).status == 400
    missing = await raw.request("ping")
    assert (missing.status, missing.error["code"]) == (400, protocol.INVALID_REQUEST)


async def test_a_session_belongs_to_its_endpoint(door: Daemon, raw: RawHttp) -> None:
    """K12: a session id is worth nothing at another endpoint."""
    await raw.initialize()
    async with raw_http(door, "/servers/other/mcp") as other:
        other.headers |= {"Mcp-Session-Id": raw.headers["Mcp-Session-Id"]}
        assert (await other.request("ping")).status == 404


async def test_what_may_come_before_initialized(raw: RawHttp) -> None:
    """F02: ping and logging/setLevel are accepted before notifications/initialized."""
    answer = await raw.request("initialize", INITIALIZE)
    raw.headers["Mcp-Session-Id"] = answer.headers["Mcp-Session-Id"]
    assert (await raw.request("ping")).result == {}
    assert (await raw.request("logging/setLevel", {"level": "info"})).result == {}
    assert (await raw.request("logging/setLevel", {"level": "loud"})).error["code"] == protocol.INVALID_PARAMS


async def test_half_a_surrogate_pair_hides_nothing_beside_it(raw: RawHttp) -> None:
    """JavaScript clients send such halves: what else their params say, a version for one, holds all the same."""
    half = "cut \ud83d"
    info = {"name": half, "version": "1"}
    asked = {"protocolVersion": "2025-06-18", "capabilities": {"roots": {}}, "clientInfo": info}
    answer = await raw.request("initialize", asked)
    assert answer.result["protocolVersion"] == "2025-06-18"
    raw.headers["Mcp-Session-Id"] = answer.headers["Mcp-Session-Id"]
    assert (await raw.request("logging/setLevel", {"level": "info", "x": half})).result == {}
    assert (await raw.request("tools/list", {"x": half})).result == {"tools": []}
    assert (await raw.request("resources/unsubscribe", {"uri": "a://b", "x": half})).result == {}
    refused = await raw.request("resources/subscribe", {"uri": f"a://{half}"})
    assert refused.error["code"] == protocol.RESOURCE_NOT_FOUND
    listening = await raw.modern(
        "subscriptions/listen", {"notifications": 1, "x": half}, {"Accept": "text/event-stream"}
    )
    assert "expected `object`" in listening.error["message"].lower()


async def test_the_version_header_of_a_session(raw: RawHttp) -> None:
    """E11: an unknown version header after a handshake is 400; none at all is served."""
    await raw.initialize()
    bad = await raw.request("ping", headers={"MCP-Protocol-Version": "1900-01-01"})
    assert (bad.status, bad.error["code"]) == (400, protocol.INVALID_REQUEST)
    assert (await raw.request("ping", headers={"MCP-Protocol-Version": None})).result == {}


async def test_unknown_methods_and_empty_lists(raw: RawHttp) -> None:
    """C06: lists that nobody offers are empty, not an error; what is no method is -32601, over legacy HTTP as 200."""
    await raw.initialize()
    for method, member in (
        ("tools/list", "tools"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
        ("prompts/list", "prompts"),
    ):
        assert (await raw.request(method)).result[member] == []
        modern = (await raw.modern(method)).result
        assert (modern[member], modern["resultType"]) == ([], "complete")
        assert {"ttlMs", "cacheScope"} <= set(modern)
        cursor = await raw.request(method, {"cursor": "made-up"})
        assert cursor.error["code"] == protocol.INVALID_PARAMS
        assert (await raw.request(method, {"cursor": 7})).error["code"] == protocol.INVALID_PARAMS
    unknown = await raw.request("no/such")
    assert (unknown.status, unknown.error["code"]) == (200, protocol.METHOD_NOT_FOUND)


async def test_batches_exist_at_one_revision(raw: RawHttp) -> None:
    """H13: at 2025-03-26 a batch is answered with an array; an empty one, or one with rubbish in it, says so."""
    await raw.initialize("2025-03-26")
    batch = [
        {"jsonrpc": "2.0", "id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "method": "notifications/whatever"},
        1,
        {"jsonrpc": "2.0", "id": "1", "method": "no/such"},
        {"jsonrpc": "2.0", "id": 2, "method": "initialize", "params": INITIALIZE},
        {"jsonrpc": "2.0", "id": 3, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 4, "result": {}},
    ]
    answers = (await raw.post(batch)).message
    assert {json.dumps(a["id"]): a.get("error", {}).get("code") for a in answers} == {
        "1": None,
        "null": -32600,
        '"1"': -32601,
        "2": -32601,
        "3": None,
    }
    assert (await raw.post([{"jsonrpc": "2.0", "method": "notifications/whatever"}])).status == 202
    assert (await raw.post([])).status == 400


async def test_a_batch_is_bounded_in_number(raw: RawHttp) -> None:
    """H13: a body full of tiny items is refused as a whole, and the error says how many there may be."""
    await raw.initialize("2025-03-26")
    refused = await raw.post([{"jsonrpc": "2.0", "id": n, "method": "ping"} for n in range(1001)])
    assert (refused.status, refused.message["error"]["code"]) == (400, -32600)
    assert "at most 1000 messages" in refused.message["error"]["message"]


# ---- modern requests


async def post_modern(raw: RawHttp, edit: Any = None, **headers: str | None) -> Any:
    message, made = modern_message("m", "tools/list")
    if edit is not None:
        edit(message)
    return await raw.post(message, {**made, **{k.replace("_", "-"): v for k, v in headers.items()}})


@pytest.mark.parametrize("lost", ["protocolVersion", "clientCapabilities", None])
async def test_a_modern_envelope_must_be_whole(raw: RawHttp, lost: str | None) -> None:
    """E11: missing members of `_meta` are 400 and -32602, with the request's id."""

    def edit(message: Any) -> None:
        if lost is None:
            del message["params"]["_meta"]
        else:
            del message["params"]["_meta"][META + lost]

    answer = await post_modern(raw, edit)
    assert (answer.status, answer.error["code"], answer.message["id"]) == (400, -32602, "m")


async def test_modern_headers_must_agree(raw: RawHttp) -> None:
    """E10: mismatch, absence and repetition are 400 and -32020; names in odd case and padded values are the same."""
    for headers in ({"Mcp_Method": "tools/call"}, {"Mcp_Method": None}, {"MCP_Protocol_Version": None}):
        answer = await post_modern(raw, None, **headers)
        assert (answer.status, answer.error["code"]) == (400, protocol.HEADER_MISMATCH)
    message, made = modern_message(1, "tools/call", {"name": "danger"})
    for name in ("safe", "=?base64??=", None):
        assert (await raw.post(message, {**made, "Mcp-Name": name})).error["code"] == protocol.HEADER_MISMATCH
    assert (await post_modern(raw, None, Mcp_Method=None, mCP_mETHOD=" tools/list ")).status == 200


async def test_modern_versions_and_methods(raw: RawHttp) -> None:
    """E11: an unsupported version is 400 and -32022 with the list; unknown and removed methods 404 and -32601."""

    def edit(message: Any) -> None:
        message["params"]["_meta"][META + "protocolVersion"] = "2099-01-01"

    answer = await post_modern(raw, edit, MCP_Protocol_Version="2099-01-01")
    assert (answer.status, answer.error["code"]) == (400, protocol.UNSUPPORTED_VERSION)
    assert answer.error["data"] == {
        "supported": ["2026-07-28"],
        "requested": "2099-01-01",
        "reason": "unsupported_version",
        "retryable": False,
    }
    for method in ("no/such", "ping", "initialize", "logging/setLevel", "resources/subscribe"):
        gone = await raw.modern(method)
        assert (gone.status, gone.error["code"]) == (404, protocol.METHOD_NOT_FOUND)


async def test_modern_notifications_and_responses(raw: RawHttp) -> None:
    """E06, E11: a notification is 202 (a discover sent as one is not answered); a response is refused."""
    headers = {"MCP-Protocol-Version": "2026-07-28"}
    for method in ("notifications/cancelled", "server/discover"):
        note = await raw.post({"jsonrpc": "2.0", "method": method}, headers)
        assert (note.status, note.body) == (202, b"")
    assert (await raw.post({"jsonrpc": "2.0", "id": 1, "result": {}}, headers)).status == 400
    assert (await raw.post([], headers)).status == 400


async def test_eras_do_not_lock_each_other_out(raw: RawHttp) -> None:
    """E05, E06: the era is decided by each body, on one connection and with a session header present."""
    assert (await raw.modern("server/discover")).status == 200
    await raw.initialize()
    assert (await raw.modern("tools/list")).result["resultType"] == "complete"
    assert "resultType" not in (await raw.request("tools/list")).result


# ---- streams that need no upstream


async def test_listen_acknowledges_first_and_only_what_was_asked(door: Daemon, raw: RawHttp) -> None:
    """A listen stream begins with its acknowledgement, which carries the request's own id with its type."""
    message, made = modern_message(
        7, "subscriptions/listen", {"notifications": {"toolsListChanged": True, "taskIds": ["x"]}}
    )
    async with raw.session.post(raw.url, json=message, headers={**raw.headers, **made}) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        first = json.loads(sse_data(await response.content.readuntil(b"\n\n"))[0])
    assert first == {
        "jsonrpc": "2.0",
        "method": "notifications/subscriptions/acknowledged",
        "params": {"_meta": {META + "subscriptionId": 7}, "notifications": {"toolsListChanged": True}},
    }
    bad = await raw.modern("subscriptions/listen", {"notifications": 7})
    assert (bad.status, bad.error["code"]) == (400, protocol.INVALID_PARAMS)
    answer = await raw.modern("subscriptions/listen", {"notifications": {}}, {"Accept": "application/json"})
    assert answer.status == 406


async def test_a_second_get_stream_replaces_the_first(raw: RawHttp) -> None:
    """H07: a defined answer for the second stream of a session: it takes over, the first one ends."""
    await raw.initialize()
    accept = {**raw.headers, "Accept": "text/event-stream"}
    async with raw.session.get(raw.url, headers=accept) as first:
        assert first.status == 200
        async with raw.session.get(raw.url, headers=accept) as second:
            assert second.status == 200
            assert await first.content.read() == b""
            assert (await raw.exchange("DELETE")).status == 200
            assert await second.content.read() == b""
    assert (await raw.exchange("GET", headers={"Accept": "application/json"})).status == 406


async def test_clients_that_leave_in_the_handshake(door: Daemon, raw: RawHttp) -> None:
    """L09: a client that closes its socket while initialize is answered harms nobody."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}).encode()
    head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{door.port}\r\nX-Coffer-Token: {door.token}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    for _ in range(3):
        _, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    await raw.initialize()
    assert (await raw.request("ping")).result == {}
    log = (door.home / "logs" / "daemon.log").read_text(encoding="utf-8")
    assert not [line for line in log.splitlines() if json.loads(line)["level"] in ("error", "critical")]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28", "auto"])
async def test_the_sdks_client(door: Daemon, mode: str) -> None:
    """The official client of either era connects and lists."""
    client: Client
    async with http_client(door, mode) as client:
        assert client.protocol_version == ("2025-11-25" if mode == "legacy" else "2026-07-28")
        assert (await client.list_tools()).tools == []


async def test_nesting_to_any_depth_gets_an_orderly_answer(raw: RawHttp) -> None:
    """What the door can just read is too deep for who reads on further in: a JSON-RPC answer all the same."""
    await raw.initialize()
    asked: list[tuple[str, dict[str, Any]]] = [
        ("initialize", INITIALIZE),
        ("tools/list", {}),
        ("tools/call", {"name": "no__such"}),
        ("logging/setLevel", {"level": "info"}),
        ("resources/unsubscribe", {"uri": "a://b"}),
    ]
    messages: list[tuple[Any, dict[str, str]]] = []
    for method, params in asked:
        messages.append(({"jsonrpc": "2.0", "id": 7, "method": method, "params": {**params, "x": "HERE"}}, {}))
    for method, params in (("tools/call", {"name": "no__such"}), ("subscriptions/listen", {"notifications": 1})):
        made, headers = modern_message(7, method, {**params, "x": "HERE"})
        messages.append((made, {**headers, "traceparent": f"00-{'a' * 32}-{'b' * 16}-00"}))
    for depth in range(900, 1101, 3):
        nested = b"[" * depth + b"]" * depth
        for message, headers in messages:
            answer = await raw.post(json.dumps(message).encode().replace(b'"HERE"', nested), headers)
            assert answer.status in (200, 400), (depth, message["method"], answer.body)
            assert answer.message["id"] in (7, None)
            assert "result" in answer.message or answer.error["code"] in (-32700, -32602, -32600)
    message, headers = messages[-2]
    for depth in range(900, 1001, 10):  # what is large is parsed in a thread, which is called less deep
        large = b"[" * depth + b"]" * depth + b',"y":"%b"' % (b"y" * (2 << 20))
        body = io.BytesIO(json.dumps(message).encode().replace(b'"HERE"', large))
        async with raw.session.post(raw.url, data=body, headers={**raw.headers, **headers}) as response:
            assert response.status in (200, 400), (depth, await response.read())
            assert (await response.json())["id"] in (7, None)
