"""Upstreams that misbehave, through the installed daemon: a fault is a clear error or a log line, never a hang.

Each test has a well-behaved bystander beside the bad one, and no other upstream may notice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import upstreams
from tests.support.clients import RawHttp, raw_http
from tests.support.daemon import Daemon
from tests.support.procs import all_gone
from tests.support.upstreams import Upstream
from tests.support.wait import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.fault]

# name -> what it does wrong; all of these must work all the same
TOLERATED: dict[str, tuple[str, ...]] = {
    "f01-chatter": (
        *("--chatter", "Server v1 ready", "--chatter", "{ starting }", "--chatter", '"ready"'),
        *("--chatter", '{"level":"info"}', "--chatter-between", "one more line"),
    ),
    "f02-early-notice": ("--notify-before-init",),
    "f04-long-line": ("--big-instructions", "133120"),
    "f07-bom": ("--bom", "every"),
    "f08-crlf": ("--newline", "crlf", "--blank-lines"),
    "f10-stderr": ("--stderr-before-answer", "262144", "--stderr-idle", "65536"),
    "halves": ("--split",),
    "invalid-utf8": ("--invalid-utf8",),
    "twice": ("--double-answers",),
    "flood": ("--flood", "2000"),
    "l02-stray-progress": ("--progress-stray",),
    "v02-unknown-request": ("--stray-request", "foo/bar"),
    "e02-late-probe": ("--probe", "late"),
    "e03-32602": ("--probe", "-32602"),
    "e03-32000": ("--probe", "-32000"),
    "e03-die": ("--probe", "die"),
    "e04-stderr-on-probe": ("--stderr-on-unknown", "204800"),
    "l12-no-ping": ("--never", "ping"),
}


@pytest.fixture
async def http(daemon: Daemon) -> AsyncIterator[RawHttp]:
    """A legacy session on /mcp; errors are seen as they are on the wire."""
    async with raw_http(daemon) as client:
        await client.initialize()
        yield client


async def call(client: RawHttp, tool: str, **arguments: Any) -> Any:
    """The message that answers a tools/call."""
    return (await client.request("tools/call", {"name": tool, "arguments": arguments})).message


def echoed(message: Any) -> Any:
    """The arguments that came back."""
    return json.loads(message["result"]["content"][0]["text"])


async def add(daemon: Daemon, name: str, upstream: Upstream, *states: str, **config: Any) -> dict[str, Any]:
    """Register, and wait for one of the states (`ready` by default)."""
    await asyncio.to_thread(daemon.add_server, name, upstream, **config)
    return await asyncio.to_thread(daemon.wait_state, name, *states)


@pytest.mark.timeout(120)
async def test_what_is_only_odd_is_tolerated(daemon: Daemon, http: RawHttp, tmp_path: Path) -> None:
    """F01, F02, F04, F07, F08, F10, L02, L12, V02, E02, E03, E04: the handshake and later calls succeed."""
    logs = {name: tmp_path / name for name in TOLERATED}
    for name, flags in TOLERATED.items():
        await asyncio.to_thread(daemon.add_server, name, upstreams.raw(*flags, log=logs[name]))
    wrong = {}
    for name in TOLERATED:
        try:
            await asyncio.to_thread(daemon.wait_state, name, bound=40)
            for n in range(2):
                answer = await call(http, f"{name}__echo", n=n, of=name)
                assert "result" in answer, answer
                assert echoed(answer) == {"n": n, "of": name}
        except AssertionError as error:
            wrong[name] = str(error)[:400]
    assert not wrong, json.dumps(wrong, indent=1)
    log = [json.loads(line) for line in logs["v02-unknown-request"].read_text(encoding="utf-8").splitlines()]
    answers = [entry["message"] for entry in log if entry["event"] == "received" and "method" not in entry["message"]]
    assert answers
    assert {answer["error"]["code"] for answer in answers} == {-32601}


async def test_what_is_wrongly_printed_is_in_the_upstreams_log(daemon: Daemon, http: RawHttp) -> None:
    """F01, F10: text on stdout and on stderr is kept for the person who looks for the fault."""
    await add(daemon, "noisy", upstreams.raw("--chatter", "Server v1 ready", "--stderr-at-start", "a word of warning"))
    log = daemon.home / "logs" / "upstream-noisy.log"
    await wait_for(lambda: log.exists() and "a word of warning" in (text := log.read_text()) and "Server v1" in text)


async def test_a_call_that_is_never_answered_ends_at_its_limit(daemon: Daemon, http: RawHttp, tmp_path: Path) -> None:
    """L07, L11: the error names server and limit; the upstream is told once, under its own id."""
    silent = upstreams.raw("--never", "tools/call", log=tmp_path / "log")
    await add(daemon, "silent", silent, limits={"idle_seconds": 1})
    await add(daemon, "good", upstreams.raw())
    hung = asyncio.create_task(call(http, "silent__echo"))
    assert echoed(await call(http, "good__echo", n=1)) == {"n": 1}
    error = (await hung)["error"]
    assert "silent" in error["message"]
    assert error["data"]["server"] == "silent"
    cancelled = await wait_for(lambda: silent.messages("notifications/cancelled"))
    calls = silent.messages("tools/call")
    assert [one["params"]["requestId"] for one in cancelled] == [one["id"] for one in calls]


async def test_closing_stdout_fails_the_calls_at_once(daemon: Daemon, http: RawHttp, tmp_path: Path) -> None:
    """F12: a child that closes stdout but lives on fails its calls now, not at their limit, and is replaced."""
    closing = upstreams.raw("--close-stdout-after", "6", "--never", "tools/call", log=tmp_path / "log")
    await add(daemon, "closing", closing)
    tasks = [asyncio.create_task(call(http, "closing__echo")) for _ in range(6)]
    answers = await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert all("closing" in answer["error"]["message"] for answer in answers)
    first = closing.log()[0]["pid"]
    await asyncio.to_thread(all_gone, [first])


async def test_a_death_at_start_tells_its_reason(daemon: Daemon, http: RawHttp) -> None:
    """P09: exit code and last words are in the state and in the caller's error; nobody waits for the start limit."""
    dying = upstreams.raw("--stderr-at-start", "Error: API_KEY missing", "--die-at-start", "1")
    row = await add(daemon, "dying", dying, "backoff", "failed")
    assert "API_KEY missing" in json.dumps(row)
    await asyncio.to_thread(daemon.wait_state, "dying", "failed", bound=60)
    error = (await call(http, "dying__echo"))["error"]
    assert "API_KEY missing" in error["message"]
    assert error["data"]["server"] == "dying"


async def test_a_command_that_is_not_there_is_named(daemon: Daemon, http: RawHttp) -> None:
    """P09: command not found names the command."""
    missing = Upstream("/nowhere/tool", [])
    row = await add(daemon, "missing", missing, "backoff", "failed")
    assert "/nowhere/tool" in json.dumps(row)


async def test_waiting_for_a_key_is_a_bounded_failure(daemon: Daemon, http: RawHttp, tmp_path: Path) -> None:
    """F15: the message shows the last output; no process is left over."""
    asking = upstreams.raw("--keypress", "--never", "initialize", log=tmp_path / "log")
    row = await add(daemon, "asking", asking, "backoff", "failed", limits={"start_seconds": 1})
    assert "Ok to proceed?" in json.dumps(row)
    pids = [entry["pid"] for entry in asking.log() if entry["event"] == "start"]
    await asyncio.to_thread(daemon.api, "DELETE", "/resources/mcp_server/asking")
    await asyncio.to_thread(all_gone, pids)


async def test_answers_to_wrong_ids_go_to_nobody(daemon: Daemon, http: RawHttp) -> None:
    """I05: strays are dropped, the call fails at its limit, the next one works."""
    await add(daemon, "stray", upstreams.raw("--wrong-ids"), limits={"idle_seconds": 1})
    for _ in range(3):
        assert "error" in await call(http, "stray__echo")
    assert echoed(await call(http, "stray__echo", n=4)) == {"n": 4}


async def test_a_line_beyond_the_cap_ends_its_call_only(daemon: Daemon, http: RawHttp) -> None:
    """F05: the call fails with an error that names the limit, and the next call succeeds."""
    await add(daemon, "huge", upstreams.raw(), limits={"line_bytes": 65536, "idle_seconds": 20})
    failed = await asyncio.wait_for(call(http, "huge__huge", n_bytes=2 << 20), 15)
    assert "huge" in failed["error"]["message"]
    await asyncio.to_thread(daemon.wait_state, "huge")
    assert echoed(await call(http, "huge__echo", n=6)) == {"n": 6}


async def test_removing_a_server_that_ignores_its_end(daemon: Daemon, http: RawHttp, tmp_path: Path) -> None:
    """P04: SIGTERM and end of file are ignored; SIGKILL is not, for grandchildren in other sessions neither."""
    pids = tmp_path / "pids"
    stubborn = upstreams.raw("--ignore-term", "--ignore-eof", "--grandchildren", "2", "--pid-file", str(pids))
    await add(daemon, "stubborn", stubborn)
    assert echoed(await call(http, "stubborn__echo", n=1)) == {"n": 1}
    await asyncio.to_thread(daemon.api, "DELETE", "/resources/mcp_server/stubborn")
    await asyncio.to_thread(all_gone, [int(line) for line in pids.read_text().split()])


async def test_a_server_that_exits_after_each_answer(daemon: Daemon, http: RawHttp) -> None:
    """P14: each call works or fails with a reason that names the server; none hangs."""
    await add(daemon, "brief", upstreams.raw("--exit-after", "4", "--no-final-newline"))
    for n in range(4):
        answer = await asyncio.wait_for(call(http, "brief__echo", n=n), 40)
        if "error" in answer:
            assert "brief" in answer["error"]["message"]
        else:
            assert echoed(answer) == {"n": n}


async def test_two_hundred_calls_answered_out_of_order(daemon: Daemon, http: RawHttp) -> None:
    """I06: each answer matches its argument, although the child answers in another order."""
    await add(daemon, "mixed", upstreams.raw(), limits={"queue": 1000})
    delays = [(n * 37 % 20) / 400 for n in range(200)]
    answers = await asyncio.gather(*(call(http, "mixed__echo", n=n, delay=d) for n, d in enumerate(delays)))
    assert [echoed(answer)["n"] for answer in answers] == list(range(200))


async def test_words_pass_exactly(daemon: Daemon, http: RawHttp, tmp_path: Path) -> None:
    """S06, S09: numbers, key order, unknown members and an error's code, message and data are not touched."""
    result = '{"content":[{"type":"hologram","z":1}],"big":9007199254740993,"float":1e2,"b":1,"a":"\\u00e9 é"}'
    script = {
        "replies": {
            "tools/call a": {"raw": '{"jsonrpc":"2.0","id":$ID,"result":' + result + "}"},
            "tools/call b": {"error": {"code": -32042, "message": "m", "data": {"k": [1]}}},
            "tools/list": {
                "result": {
                    "tools": [
                        {"name": "a", "inputSchema": {"type": "object"}, "xVendor": {"a": 1}, "title": "T"},
                        {"name": "b", "inputSchema": {"type": "object"}},
                    ]
                }
            },
        }
    }
    await add(daemon, "exact", upstreams.raw(script=script, at=tmp_path))
    answer = await http.request("tools/call", {"name": "exact__a", "arguments": {}})
    assert result.encode() in answer.body
    assert (await call(http, "exact__b"))["error"] == {"code": -32042, "message": "m", "data": {"k": [1]}}
    listed = (await http.request("tools/list")).result["tools"]
    assert listed[0] == {"name": "exact__a", "inputSchema": {"type": "object"}, "xVendor": {"a": 1}, "title": "T"}
