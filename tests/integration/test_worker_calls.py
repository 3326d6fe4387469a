"""A worker, a real peer on its sockets, and upstreams that behave in every odd way a pipe allows."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from coffer_common import frames
from tests.support.upstreams import fake, raw
from tests.support.wait import wait_for
from tests.support.worker import Worker, caller, server_config

TEXT = {"text": "hé 'x'", "n": 12345678901234567890}


def log_text(home: Path) -> str:
    """The upstream's log so far."""
    path = home / "logs" / "upstream-up.log"
    return path.read_text(encoding="utf-8") if path.exists() else ""


ODD: dict[str, tuple[str, ...]] = {
    "F01 chatter": ("--chatter", "Server v1 ready", "--chatter", "{ starting }", "--chatter", '"ready"', "--chatter",
                    '{"level":"info"}', "--chatter-between", "one more line"),
    "F02 early notification": ("--notify-before-init",),
    "F04 long instructions": ("--big-instructions", "133120"),
    "F07 first bom": ("--bom", "first"),
    "F07 every bom": ("--bom", "every"),
    "F08 crlf and blank lines": ("--newline", "crlf", "--blank-lines"),
    "F10 full stderr": ("--stderr-before-answer", "262144", "--stderr-idle", "65536"),
    "E04 stderr on the probe": ("--stderr-on-unknown", "204800"),
    "half lines": ("--split",),
    "invalid utf-8": ("--invalid-utf8",),
    "flood": ("--flood", "5000"),
    "double answers": ("--double-answers",),
    "L02 stray progress": ("--progress-stray",),
    "V02 stray request": ("--stray-request", "foo/bar"),
}  # fmt: skip


@pytest.mark.parametrize("flags", ODD.values(), ids=ODD.keys())
async def test_an_upstream_that_misbehaves_on_its_pipe_still_answers(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Misbehaviour is a fault, not a crash: what is no message is skipped and kept in the log (F01 to F10, E04)."""
    async with Worker.start(tmp_path, server_config(raw(*flags))) as worker:
        for _ in range(2):
            assert json.loads((await worker.call("echo", TEXT)).text) == TEXT
        if "--chatter" in flags:
            assert "stdout: Server v1 ready" in log_text(tmp_path)
            assert "stdout: one more line" in log_text(tmp_path)


async def test_what_is_forwarded_reaches_the_upstream_under_its_own_name(tmp_path: Path) -> None:
    """I01: ids and tokens towards the upstream are the worker's own; arguments arrive as they were sent."""
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        params = b'{"name":"up__echo","arguments":{"n":1e2,"nonce":"x1"},"_meta":{"progressToken":"mine","v/k":1}}'
        both = [await worker.begin("tools/call", "echo", params, caller(session=s)) for s in ("a", "a")]
        for corr in both:
            assert "x1" in (await worker.answer(corr)).text
        calls = upstream.messages("tools/call")
        assert len(calls) == 2
        assert calls[0]["id"] != calls[1]["id"]
        assert calls[0]["params"]["name"] == "echo"
        assert calls[0]["params"]["_meta"] == {"progressToken": calls[0]["id"], "v/k": 1}


async def test_two_hundred_calls_at_once_get_their_own_answers(tmp_path: Path) -> None:
    """I06: answers that come out of order belong to their calls."""
    config = server_config(raw(), limits={"in_flight": 64, "queue": 256})
    async with Worker.start(tmp_path, config) as worker:
        corrs = [
            await worker.begin("tools/call", "echo", {"arguments": {"n": n, "delay": (n * 37 % 11) / 100}}, caller())
            for n in range(200)
        ]
        for n, corr in enumerate(corrs):
            assert json.loads((await worker.answer(corr)).text)["n"] == n


async def test_a_line_over_the_limit_fails_its_call_and_no_other(tmp_path: Path) -> None:
    """F05: the error names the limit, the tail is skipped, the next call succeeds."""
    script = {"replies": {"tools/call big": {"result": {"content": [{"type": "text", "text": "x" * 200_000}]}}}}
    upstream = raw(script=script, at=tmp_path)
    async with Worker.start(tmp_path, server_config(upstream, limits={"line_bytes": 65536})) as worker:
        failed = await worker.call("big")
        assert failed.reason == "line_limit"
        assert failed.message == "Upstream 'up' sent a message over its limit line_bytes (65536)"
        assert (await worker.call("echo", TEXT)).text


async def test_a_big_result_passes_whole(tmp_path: Path) -> None:
    """F04, Q01: a result of 5 MiB is far over any reader's default."""
    async with Worker.start(tmp_path, server_config(fake("--era", "legacy"))) as worker:
        assert len((await worker.call("big", {"n_bytes": 5 * 1024 * 1024})).text) == 5 * 1024 * 1024


async def test_answers_to_wrong_ids_are_given_to_nobody(tmp_path: Path) -> None:
    """I05: the call ends at its limit with a word about them; the next one works."""
    config = server_config(raw("--wrong-ids"), limits={"idle_seconds": 0.5})
    async with Worker.start(tmp_path, config) as worker:
        failed = await worker.call("echo")
        assert failed.reason == "idle_limit"
        assert "belong to no request" in failed.message
        assert (await worker.call("echo")).reason == "idle_limit"
        assert (await worker.call("echo")).reason == "idle_limit"
        assert (await worker.call("echo", TEXT)).text


async def test_stdout_closed_while_alive_fails_calls_at_once(tmp_path: Path) -> None:
    """F12: not at the limit; the process is stopped and the restart policy applies."""
    upstream = raw("--close-stdout-after", "5", "--ignore-eof")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        failed = await worker.call("echo", {"delay": 5})
        assert failed.reason == "upstream_exited"
        assert "standard output" in failed.message
        await worker.state("backoff")


async def test_one_cancel_goes_upstream_with_its_own_id(tmp_path: Path) -> None:
    """L05, L06, L07: forwarded once, for each method; a late answer is dropped; nothing is answered after it."""
    silent = [
        word for method in ("prompts/get", "resources/read", "completion/complete") for word in ("--never", method)
    ]
    upstream = raw("--answer-cancelled", *silent, log=tmp_path / "log.jsonl")
    complete = {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": ""}}
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        corrs = [
            await worker.begin("tools/call", "echo", {"arguments": {"delay": 0.4}}, caller()),
            await worker.begin("prompts/get", "p", {}, caller()),
            await worker.begin("resources/read", "x:1", {}, caller()),
            await worker.begin("completion/complete", "p", complete, caller()),
        ]
        await wait_for(lambda: upstream.messages("completion/complete"))
        for corr in corrs:
            await worker.send(frames.Cancel(corr, "not wanted"))
            await worker.send(frames.Cancel(corr, "not wanted"))
        await wait_for(lambda: len(upstream.messages("notifications/cancelled")) == 4)
        methods = ("tools/call", "prompts/get", "resources/read", "completion/complete")
        ids = {m["id"] for name in methods for m in upstream.messages(name)}
        cancelled = upstream.messages("notifications/cancelled")
        assert {m["params"]["requestId"] for m in cancelled} == ids
        await wait_for(lambda: "late answer" in log_text(tmp_path))
        assert not [frame for frame in worker.all(frames.Reply) if frame.corr in corrs]
        assert (await worker.call("echo", TEXT)).text
        assert len(upstream.messages("notifications/cancelled")) == 4


async def test_a_cancel_that_overtakes_its_call(tmp_path: Path) -> None:
    """Cancel travels on the other pair and may come first; the call then never goes upstream."""
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        await worker.send(frames.Cancel(101))
        beats = len(worker.beats)
        await wait_for(lambda: len(worker.beats) > beats + 1)
        await worker.begin("tools/call", "echo", {}, caller())
        assert (await worker.call("echo", TEXT)).text
        assert len(upstream.messages("tools/call")) == 1


async def test_progress_keeps_a_call_alive_and_reaches_the_client_that_asked(tmp_path: Path) -> None:
    """L02, L10: tokens keep their type; progress resets the idle limit, also where the client gave no token."""
    config = server_config(fake("--era", "legacy"), limits={"idle_seconds": 1.0})
    async with Worker.start(tmp_path, config) as worker:
        done = await worker.call("progress", {"n": 6, "delay": 0.4}, meta={"progressToken": 0})
        assert [p["progress"] for p in done.progress] == [1, 2, 3, 4, 5, 6]
        assert all(p["progressToken"] == 0 and p["progressToken"] is not False for p in done.progress)
        quiet = await worker.call("progress", {"n": 4, "delay": 0.4})
        assert isinstance(quiet.frame, frames.Reply)
        assert quiet.progress == []


async def test_progress_can_be_absorbed(tmp_path: Path) -> None:
    """A per-server setting keeps progress from clients; the limit is reset all the same."""
    config = server_config(fake("--era", "legacy"), forward_progress=False, limits={"idle_seconds": 1.0})
    async with Worker.start(tmp_path, config) as worker:
        done = await worker.call("progress", {"n": 4, "delay": 0.4}, meta={"progressToken": "t"})
        assert isinstance(done.frame, frames.Reply)
        assert done.progress == []


async def test_limits_name_the_upstream_and_cancel_there(tmp_path: Path) -> None:
    """L07, L10, L11: idle and total limits; the upstream is told once, with its own id."""
    upstream = raw("--never", "tools/call", log=tmp_path / "log.jsonl")
    config = server_config(upstream, limits={"idle_seconds": 0.4, "total_seconds": 30})
    async with Worker.start(tmp_path, config) as worker:
        failed = await worker.call("echo")
        assert failed.reason == "idle_limit"
        assert "'up'" in failed.message
        assert "0.4 s" in failed.message
        assert failed.value["data"]["server"] == "up"
        cancelled = await wait_for(lambda: upstream.messages("notifications/cancelled"))
        assert [m["params"]["requestId"] for m in cancelled] == [upstream.messages("tools/call")[0]["id"]]
        assert (await worker.call("echo", budget=0.2)).reason == "total_limit"


async def test_places_and_queue(tmp_path: Path) -> None:
    """Beyond the queue a call is refused at once; a queued one runs when a place is free."""
    upstream = raw(log=tmp_path / "log.jsonl")
    config = server_config(upstream, limits={"in_flight": 1, "queue": 1})
    async with Worker.start(tmp_path, config) as worker:
        first = await worker.begin("tools/call", "echo", {"arguments": {"delay": 0.5}}, caller())
        second = await worker.begin("tools/call", "echo", {"arguments": {"n": 2}}, caller())
        refused = await worker.call("echo")
        assert refused.reason == "queue_full"
        assert (await worker.answer(first)).text
        assert json.loads((await worker.answer(second)).text) == {"n": 2}


async def test_names_and_errors_come_back_in_the_clients_naming(tmp_path: Path) -> None:
    """S09, R01: a link in a result is Coffer's on the aggregate and the upstream's own on its own endpoint."""
    async with Worker.start(tmp_path, server_config(fake("--era", "legacy"))) as worker:
        content = (await worker.call("resource")).value["content"]
        assert content[0]["uri"] == "coffer://up/file:///fake/a.txt"
        assert content[1]["resource"]["uri"] == "coffer://up/file:///fake/a.txt"
        content = (await worker.call("resource", by=caller(naming="raw"))).value["content"]
        assert content[0]["uri"] == "file:///fake/a.txt"
        failed = await worker.call("raise", {"code": -32042, "message": "m", "data": {"k": [1]}})
        assert failed.value == {"code": -32042, "message": "m", "data": {"k": [1]}}
        assert failed.reason == ""
        tool_error = await worker.call("fail")
        assert isinstance(tool_error.frame, frames.Reply)
        assert tool_error.frame.error


async def test_lone_surrogates_pass(tmp_path: Path) -> None:
    """JavaScript servers emit them; the message must not be taken for chatter."""
    reply = '{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"\\ud83d cut"}]}}'
    upstream = raw(script={"replies": {"tools/call": {"raw": reply}}}, at=tmp_path)
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        answer = await worker.call("echo")
        assert b"\\ud83d cut" in answer.raw


@pytest.mark.parametrize(("before", "after"), [("", ""), ("[", "]")])
async def test_an_answer_of_invalid_utf8_fails_its_call(tmp_path: Path, before: str, after: str) -> None:
    """Never passed on to a client, whose whole connection it could end; nor if it comes in a batch."""
    program = (
        "import sys,json\n"
        "for line in sys.stdin.buffer:\n"
        "    m=json.loads(line)\n"
        "    if 'id' not in m: continue\n"
        "    r={'protocolVersion':'2025-11-25','capabilities':{},'serverInfo':{'name':'x','version':'1'}}\n"
        "    body=json.dumps({'jsonrpc':'2.0','id':m['id'],'result':r if m['method']=='initialize' else {}}).encode()\n"
        "    if m['method']=='tools/call': body=body[:-2]+b'\"t\":\"\\xff\\xfe\"}}'\n"
        f"    if m['method']=='tools/call': body=b'{before}'+body+b'{after}'\n"
        "    sys.stdout.buffer.write(body+b'\\n'); sys.stdout.buffer.flush()\n"
    )
    config = server_config({"transport": "stdio", "command": sys.executable, "args": ["-c", program]})
    async with Worker.start(tmp_path, config, hint="legacy") as worker:
        failed = await worker.call("echo")
        assert failed.reason == "bad_answer"
        assert "UTF-8" in failed.message


@pytest.mark.parametrize(
    ("kind", "code"), [("roots/list", -32601), ("sampling/createMessage", -32601), ("elicitation/create", -32602)]
)
async def test_asks_are_refused_at_once_while_none_is_declared(tmp_path: Path, kind: str, code: int) -> None:
    """I07, V01: the upstream gets exactly one answer, equal ids in the two directions do not meet."""
    upstream = raw("--ask", kind, log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        answer = json.loads((await worker.call("echo")).text)
        assert answer["error"]["code"] == code
        declared = upstream.messages("initialize")[0]["params"]["capabilities"]
        assert declared == {"experimental": {}}
        received = [entry["message"] for entry in upstream.log() if entry["event"] == "received"]
        assert len([message for message in received if "method" not in message]) == 1


async def test_a_session_that_ends_takes_its_calls_along(tmp_path: Path) -> None:
    """L07: the end of a session cancels what it had open, and its connection goes; others do not notice."""
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        mine = await worker.begin("tools/call", "echo", {"arguments": {"delay": 30}}, caller(session="a"))
        other = await worker.begin("tools/call", "echo", {"arguments": {"delay": 1}}, caller(session="b"))
        await wait_for(lambda: len(upstream.messages("tools/call")) == 2)
        await worker.send(frames.CloseSession("a", "gone"))
        await wait_for(lambda: upstream.messages("notifications/cancelled"))
        assert (await worker.answer(other)).text
        await wait_for(lambda: [e for e in upstream.log() if e["event"] == "eof"])
        assert not [f for f in worker.all(frames.Reply) if f.corr == mine]


async def test_requests_that_come_before_configure_wait_for_it(tmp_path: Path) -> None:
    """Calls travel on the other pair and may come first."""
    async with Worker.start(tmp_path, None) as worker:
        early = await worker.begin("tools/call", "echo", {"arguments": TEXT}, caller())
        gone = await worker.begin("tools/call", "echo", {"arguments": TEXT}, caller())
        beats = len(worker.beats)
        await wait_for(lambda: len(worker.beats) > beats + 1)
        await worker.send(frames.Cancel(gone))
        await wait_for(lambda: len(worker.beats) > beats + 2)
        await worker.configure(server_config(raw()))
        assert (await worker.answer(early)).text
        assert not [f for f in worker.all(frames.Reply) if f.corr == gone]


async def test_a_method_that_is_not_routed_is_refused(tmp_path: Path) -> None:
    async with Worker.start(tmp_path, server_config(raw())) as worker:
        corr = await worker.begin("tools/destroy", "x", {}, caller())
        assert (await worker.answer(corr)).reason == "method_not_found"


async def test_completions_prompts_and_resources(tmp_path: Path) -> None:
    """R02, R04, R08: each under the upstream's own name, answers in the client's naming."""
    async with Worker.start(tmp_path, server_config(fake("--era", "legacy"))) as worker:
        corr = await worker.begin("resources/read", "file:///fake/b.bin", {"uri": "coffer://up/x"}, caller())
        contents = (await worker.answer(corr)).value["contents"]
        assert contents[0]["uri"] == "coffer://up/file:///fake/b.bin"
        assert "blob" in contents[0]
        assert "mimeType" not in contents[0]
        corr = await worker.begin("prompts/get", "greet", {"name": "up__greet", "arguments": {"name": "Zoë"}}, caller())
        assert (await worker.answer(corr)).value["messages"]
        params: dict[str, Any] = {
            "ref": {"type": "ref/prompt", "name": "up__greet"},
            "argument": {"name": "name", "value": "a"},
        }
        corr = await worker.begin("completion/complete", "greet", params, caller())
        assert "completion" in (await worker.answer(corr)).value


async def test_headers_of_a_modern_client_must_agree_with_its_arguments(tmp_path: Path) -> None:
    """E10: nothing is executed where they do not."""
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    script = {"replies": {"tools/list": {"result": {"tools": [{"name": "where", "inputSchema": schema}]}}}}
    upstream = raw(script=script, at=tmp_path, log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        by = caller("2026-07-28", "modern:local:/mcp")
        failed = await worker.call("where", {"region": "eu"}, by, headers={"mcp-param-region": "us"})
        assert failed.reason == "header_mismatch"
        assert isinstance(failed.frame, frames.Fail)
        assert (failed.frame.code, failed.frame.status) == (-32020, 400)
        assert not upstream.messages("tools/call")
        good = await worker.call("where", {"region": "eu"}, by, headers={"mcp-param-region": "eu"})
        assert upstream.messages("tools/call"), good


@pytest.mark.parametrize("result", ["{oops", "[" * 200_000 + "]" * 200_000])
async def test_an_answer_that_cannot_be_read_fails_its_call_at_once(tmp_path: Path, result: str) -> None:
    """Broken JSON, or nesting no reader could follow: a clear error, and the next call works."""
    reply = {"raw": '{"jsonrpc":"2.0","id":$ID,"result":' + result + "}"}
    upstream = raw(script={"replies": {"tools/call bad": reply}}, at=tmp_path)
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        assert (await worker.call("bad")).reason == "bad_answer"
        assert (await worker.call("echo", TEXT)).text


async def test_many_cancels_race_with_answers(tmp_path: Path) -> None:
    """L06: at most one answer a call, and the connection lives on."""
    async with Worker.start(tmp_path, server_config(raw())) as worker:
        for n in range(100):
            corr = await worker.begin("tools/call", "echo", {"arguments": {"delay": (n % 6) / 1000}}, caller())
            if n % 3:
                await asyncio.sleep(0)
            await worker.send(frames.Cancel(corr))
        assert (await worker.call("echo", TEXT)).text
        answered = [frame.corr for frame in worker.all(frames.Reply)]
        assert len(answered) == len(set(answered))
