"""Calls through the supervisor's heart, real workers and real upstreams."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio

from coffer_supervisor import sending, workers
from coffer_supervisor.core import lifecycle
from coffer_supervisor.core.calls import Principal, Scope
from tests.support.heart import Beating, beating, text
from tests.support.upstreams import fake, raw
from tests.support.wait import wait_for

PASS_THROUGH = Scope("/servers/one/mcp", server="one")


@pytest_asyncio.fixture
async def heart() -> AsyncIterator[Beating]:
    async with beating() as found:
        yield found


async def test_a_call_reaches_its_upstream_alone_and_is_written_down(heart: Beating, tmp_path: Path) -> None:
    """Forwarding is seen at the upstream, with a nonce; a bystander sees nothing; one row for the call."""
    one, two = fake(log=tmp_path / "one"), fake(log=tmp_path / "two")
    await asyncio.gather(heart.add("one", one), heart.add("two", two))
    assert text(await heart.call("one__echo", text="nonce-4711")) == {"text": "nonce-4711"}
    assert any("nonce-4711" in str(message) for message in one.messages("tools/call"))
    assert not two.messages("tools/call")
    (row,) = await heart.rows(1)
    assert (row.server, row.type, row.key, row.status) == ("one", "tool", "echo", "ok")
    assert (row.session, row.client, row.trace_id, row.error) == ("s1", "test", "t1", None)


async def test_the_pass_through_endpoint_keeps_the_upstreams_names(heart: Beating) -> None:
    await heart.add("one", raw())
    assert text(await heart.call("echo", to={"scope": PASS_THROUGH}, text="x")) == {"text": "x"}
    listed = await heart.page(scope=PASS_THROUGH)
    assert "echo" in [tool["name"] for tool in listed["tools"]]
    identity = await heart.router.identity(PASS_THROUGH)
    assert b"raw" in identity.server_info


async def test_two_hundred_calls_of_five_sessions_get_their_own_answers(heart: Beating) -> None:
    """I01, I06: answers come out of order and reach the call they belong to."""
    await heart.add("one", raw())
    sinks = [heart.tool("one__echo", to={"session": f"s{n % 5}"}, n=n, delay=(n * 7 % 13) / 100)[1] for n in range(200)]
    answers = await asyncio.gather(*(sink.done for sink in sinks))
    assert [text(body)["n"] for kind, body in answers] == list(range(200))


async def test_what_is_refused_is_refused_at_once_naming_the_upstream(heart: Beating, tmp_path: Path) -> None:
    """Unknown and disabled capabilities: -32602 with a reason (legacy: -32000 for disabled); nothing is sent."""
    one = raw(log=tmp_path / "log")
    await heart.add("one", one)
    unknown = await heart.refused("one__nothing")
    assert (unknown["code"], unknown["data"]["reason"]) == (-32602, "unknown_capability")
    await heart.store.preferences.set("one", "tool", "echo", False, actor="cli")
    await heart.supervision.preference_changed("one")
    assert ("one", frozenset({"tools"})) in heart.ear.lists
    assert "one__echo" not in await heart.names()
    disabled = await heart.refused("one__echo")
    assert (disabled["code"], disabled["data"]["server"]) == (-32000, "one")
    assert "echo" in disabled["message"]
    modern = await heart.refused("one__echo", to={"modern": True})
    assert (modern["code"], modern["data"]["reason"]) == (-32602, "capability_disabled")
    outsider = Principal("client:x", "x", frozenset({"other"}))
    assert (await heart.refused("one__echo", to={"who": outsider}))["data"]["reason"] == "denied"
    rows = await heart.rows(4)
    assert [row.status for row in rows] == ["error", "denied", "denied", "denied"]
    assert not one.messages("tools/call")


async def test_a_cancelled_call_is_cancelled_at_the_upstream_and_never_answered(heart: Beating, tmp_path: Path) -> None:
    """L07: the upstream gets notifications/cancelled once, with its own id."""
    one = raw(log=tmp_path / "log")
    await heart.add("one", one)
    number, sink = heart.tool("one__echo", delay=20)
    await wait_for(lambda: one.messages("tools/call"))
    heart.router.cancel(number, "the user pressed escape")
    (cancelled,) = await wait_for(lambda: one.messages("notifications/cancelled"))
    (called,) = one.messages("tools/call")
    assert cancelled["params"]["requestId"] == called["id"]
    assert not sink.done.done()
    assert (await heart.rows(1))[0].status == "cancelled"
    assert text(await heart.call("one__echo", after=1)) == {"after": 1}
    assert heart.supervision.calls() == []


async def test_an_operator_sees_a_call_and_ends_it(heart: Beating, tmp_path: Path) -> None:
    one = raw(log=tmp_path / "log")
    await heart.add("one", one)
    _, sink = heart.tool("one__echo", delay=20)
    await wait_for(lambda: one.messages("tools/call"))
    (seen,) = heart.supervision.calls("one")
    assert (seen.server, seen.type, seen.key, seen.client, seen.state) == ("one", "tool", "echo", "test", "running")
    assert heart.supervision.kill_call(seen.id)
    assert not heart.supervision.kill_call(seen.id)
    assert not heart.supervision.kill_call("c-x")
    kind, error = await sink.done
    assert (kind, error["data"]["reason"]) == ("fail", "cancelled")
    await wait_for(lambda: one.messages("notifications/cancelled"))


async def test_a_session_that_ends_takes_its_calls_and_its_connection_along(heart: Beating, tmp_path: Path) -> None:
    """DELETE, session expiry and the end of the shim cancel what is open, and free what the session held."""
    one = raw(log=tmp_path / "log")
    await heart.add("one", one)
    await heart.call("one__echo", to={"session": "other"})
    heart.tool("one__echo", to={"session": "leaving"}, delay=20)
    await wait_for(lambda: heart.view("one").connections == 2)
    heart.router.close_session("leaving", "the client is gone")
    await wait_for(lambda: heart.view("one").connections == 1)
    assert text(await heart.call("one__echo", to={"session": "other"}, still=1)) == {"still": 1}


async def test_calls_made_while_the_upstream_starts_wait_for_it(heart: Beating) -> None:
    await heart.add("one", fake("--init-delay-ms", "700"), wait=False)
    assert text(await heart.call("one__echo", text="patient")) == {"text": "patient"}
    assert text(await heart.call("echo", text="bare")) == {"text": "bare"}


async def test_a_server_that_dies_at_start_is_told_of_at_once_with_its_last_words(heart: Beating) -> None:
    """P09: exit code and last lines of stderr, for calls made before and after the failure; no wait for the limit."""
    dying = raw("--stderr-at-start", "no licence found", "--die-at-start", "3")
    await heart.add("one", dying, wait=False, limits={"start_seconds": 600})
    for _ in range(3):
        error = await heart.refused("one__echo")
        assert error["data"]["reason"] in ("upstream_backoff", "upstream_failed")
        assert error["data"]["retryable"]
        assert "no licence found" in error["message"]


async def test_a_call_does_not_wait_longer_than_the_start_limit(heart: Beating) -> None:
    await heart.add("one", fake("--init-delay-ms", "60000"), wait=False, limits={"start_seconds": 1.5})
    error = await heart.refused("one__echo")
    assert error["data"]["server"] == "one"
    assert error["data"]["reason"] in ("start_limit", "upstream_backoff")
    assert "its start limit" in error["message"]


async def test_progress_comes_before_the_answer(heart: Beating) -> None:
    await heart.add("one", fake())
    params = {"name": "one__progress", "arguments": {"n": 3}, "_meta": {"progressToken": "mine"}}
    _, sink = heart.start("tools/call", params)
    kind, _ = await sink.done
    assert (kind, [p["progressToken"] for p in sink.progressed]) == ("reply", ["mine"] * 3)


async def test_an_upstreams_own_error_passes_unchanged(heart: Beating) -> None:
    """S09, S10: code and message are the upstream's; the row says error."""
    await heart.add("one", fake())
    error = await heart.refused("one__raise", code=-31999)
    assert error["code"] == -31999
    assert "reason" not in (error.get("data") or {})
    result = await heart.call("one__fail", text="no")
    assert result["isError"] is True
    assert [row.status for row in await heart.rows(2)] == ["error", "error"]


async def test_resources_prompts_and_completions_are_routed_back(heart: Beating) -> None:
    """R08 and the URI rule: what clients name is transformed back to the upstream's own."""
    await heart.add("one", fake())
    read = await heart.start("resources/read", {"uri": "coffer://one/file:///fake/a.txt"})[1].done
    assert read[0] == "reply"
    assert read[1]["contents"][0]["uri"] == "coffer://one/file:///fake/a.txt"
    prompt = await heart.start("prompts/get", {"name": "one__plain"})[1].done
    assert prompt[0] == "reply", prompt
    ref = {"type": "ref/prompt", "name": "one__greet"}
    completion = await heart.start("completion/complete", {"ref": ref, "argument": {"name": "name", "value": "a"}})[
        1
    ].done
    assert completion[0] == "reply", completion
    missing = await heart.start("resources/read", {"uri": "no://where"})[1].done
    assert (missing[1]["code"], missing[1]["data"]["uri"]) == (-32002, "no://where")
    assert [row.type for row in await heart.rows(2)][:2] == ["resource", "prompt"]


async def test_management_calls_a_tool_by_its_own_name(heart: Beating) -> None:
    await heart.add("one", raw())
    ok, body = await heart.router.call_for_management("one", "echo", b'{"a":1}', 20)
    assert ok
    assert b'{\\"a\\":1}' in body.replace(b": ", b":")
    ok, body = await heart.router.call_for_management("one", "echo", b'{"delay":30}', 0.3)
    assert (ok, b"total_limit" in body) == (False, True)
    ok, body = await heart.router.call_for_management("nobody", "echo", b"{}", 5)
    assert (ok, b"unknown_server" in body) == (False, True)


async def test_a_closed_router_takes_no_calls_and_tells_the_open_ones(heart: Beating, tmp_path: Path) -> None:
    """What was sent may have been carried out: no retry is advised. What was refused may be sent again."""
    one = raw(log=tmp_path / "log")
    await heart.add("one", one)
    _, sink = heart.tool("one__echo", delay=30)
    await wait_for(lambda: one.messages("tools/call"))
    heart.router.close()
    assert (await heart.refused("one__echo"))["data"]["reason"] == "daemon_stopping"
    drained = asyncio.ensure_future(heart.heart.calls.drained())
    heart.router.fail_all()
    assert (await sink.done)[1]["data"] == {"server": "one", "reason": "daemon_lost", "retryable": False}
    await asyncio.wait_for(drained, 5)


@pytest.mark.parametrize("size", [100, 3_000_000])
async def test_large_params_and_results_pass_whole(heart: Beating, size: int) -> None:
    """Q01: intact, whatever the size."""
    await heart.add("one", raw())
    assert text(await heart.call("one__echo", text="x" * size)) == {"text": "x" * size}


async def test_calls_held_for_a_starting_upstream_are_bounded(heart: Beating) -> None:
    """Beyond a queue limit a call is refused at once."""
    limits = {"in_flight": 1, "queue": 1}
    await heart.add("one", raw("--init-delay-ms", "1500"), limits=limits)
    await heart.supervision.restart("one")
    await wait_for(lambda: heart.view("one").state != "ready")
    sinks = [heart.tool("one__echo", n=n)[1] for n in range(3)]
    kind, error = await asyncio.wait_for(sinks[2].done, 1)
    assert (kind, error["data"]["reason"], error["data"]["retryable"]) == ("fail", "queue_full", True)
    for sink in sinks[:2]:
        assert (await asyncio.wait_for(sink.done, 20))[0] == "reply"


async def test_a_held_call_can_be_cancelled(heart: Beating, tmp_path: Path) -> None:
    one = raw("--init-delay-ms", "1000", log=tmp_path / "log")
    await heart.add("one", one)
    await heart.supervision.restart("one")
    await wait_for(lambda: heart.view("one").state != "ready")
    number, sink = heart.tool("one__echo", n=1)
    awaiting, _ = heart.tool("nobody-knows", n=1)
    heart.router.cancel(number, "no longer wanted")
    heart.router.cancel(awaiting, "no longer wanted")
    await heart.reach("one", "ready")
    assert text(await heart.call("one__echo", n=2)) == {"n": 2}
    assert [message["params"]["arguments"] for message in one.messages("tools/call")] == [{"n": 2}]
    assert not sink.done.done()


async def test_credit_is_counted_in_bytes_and_comes_back(heart: Beating, monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker is owed a bounded number of bytes; a call beyond it fails, and only that one."""
    monkeypatch.setattr(sending, "CREDIT_BYTES", 10_000)
    await heart.add("one", raw())
    _, first = heart.tool("one__echo", text="x" * 9_000, delay=0.4)
    _, second = heart.tool("one__echo", text="y" * 2_000)
    kind, error = await asyncio.wait_for(second.done, 1)
    assert (kind, error["data"]["reason"]) == ("fail", "worker_busy")
    assert (await first.done)[0] == "reply"
    assert text(await heart.call("one__echo", text="y" * 2_000)) == {"text": "y" * 2_000}
    assert text(await heart.call("one__echo", text="z" * 50_000)) == {"text": "z" * 50_000}, "alone it may be larger"


async def test_a_locked_database_stops_no_call(heart: Beating) -> None:
    """D06: calls keep flowing while the store is locked; their rows are written afterwards."""
    await heart.add("one", raw())
    with closing(sqlite3.connect(heart.store.path, isolation_level=None)) as lock:
        lock.execute("BEGIN EXCLUSIVE")
        for n in range(5):
            assert text(await heart.call("one__echo", n=n)) == {"n": n}
        lock.execute("ROLLBACK")
    assert [row.key for row in await heart.rows(5)] == ["echo"] * 5


async def test_a_failed_call_has_one_line_in_the_log_without_its_arguments(
    heart: Beating, caplog: pytest.LogCaptureFixture
) -> None:
    """One canonical line, with what an operator looks for; arguments and results are written nowhere."""
    await heart.add("one", fake())
    caplog.clear()
    with caplog.at_level("INFO", logger="coffer.calls"):
        await heart.refused("one__raise", code=-31999, secret="do-not-write")
        await heart.call("one__echo", text="fine")
    (line,) = [record for record in caplog.records if record.name == "coffer.calls"]
    assert (line.message, line.server, line.key, line.status) == ("tools/call", "one", "raise", "error")  # type: ignore[attr-defined]
    assert "do-not-write" not in repr(vars(line))
    assert "do-not-write" not in str(await heart.rows(2))


async def test_log_levels_and_roots_are_passed_on_where_they_mean_something(heart: Beating) -> None:
    await heart.add("one", fake("--era", "legacy"))
    caller = heart.caller(scope=PASS_THROUGH)
    heart.router.set_level(caller, PASS_THROUGH, "debug")
    heart.router.set_level(heart.caller(), Scope("/mcp"), "debug")
    heart.router.roots_changed("s1")
    heart.router.roots_changed("nobody")
    _, sink = heart.start("tools/call", {"name": "log", "arguments": {"text": "heard"}}, scope=PASS_THROUGH)
    assert (await sink.done)[0] == "reply"


async def test_stacks_and_calls_of_a_worker_can_be_asked_for(heart: Beating, tmp_path: Path) -> None:
    one = raw(log=tmp_path / "log")
    await heart.add("one", one)
    heart.tool("one__echo", delay=2)
    await wait_for(lambda: one.messages("tools/call"))
    dump = json.loads(await heart.supervision.dump("one"))
    assert [call["key"] for call in dump["calls"]] == ["echo"]
    assert dump["tasks"]
    with pytest.raises(TimeoutError):
        await heart.supervision.dump("nobody")


async def test_a_server_that_is_called_waits_for_no_turn(heart: Beating, monkeypatch: pytest.MonkeyPatch) -> None:
    """P13: however many starts hang, and however long each keeps its place: who is called starts at once."""
    monkeypatch.setattr(lifecycle, "SLOT_SECONDS", 600.0)
    silent = [f"silent{n}" for n in range(12)]
    await asyncio.gather(*(heart.add(name, raw("--never", "initialize"), wait=False) for name in silent))
    await heart.add("good", raw(), wait=False)
    assert heart.supervision.upstreams["good"].life.phase == "queued"
    assert text(await heart.call("good__echo", n=1))["n"] == 1
    phases = [heart.supervision.upstreams[name].life.phase for name in silent]
    assert phases.count("queued") == len(silent) - workers.STARTING_AT_ONCE, "only what is called jumps the queue"
