"""Workers and upstreams that crash, stop, never start or never stop: each ends in clear errors, and comes back."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from coffer_common import frames
from coffer_supervisor.core.lifecycle import Lifecycle
from tests.support.heart import Beating, beating, text
from tests.support.upstreams import Upstream, fake, raw
from tests.support.wait import wait_for

pytestmark = pytest.mark.fault


@pytest_asyncio.fixture
async def heart() -> AsyncIterator[Beating]:
    async with beating() as found:
        yield found


def _life(heart: Beating, name: str) -> Lifecycle:
    return heart.supervision.upstreams[name].life


async def test_a_killed_worker_fails_its_calls_alone_and_is_replaced(heart: Beating, tmp_path: Path) -> None:
    """A worker's crash: its calls fail naming it, no other upstream notices, a new one takes the next call."""
    one = raw(log=tmp_path / "log")
    await asyncio.gather(heart.add("one", one), heart.add("two", raw()))
    pid, incarnation = heart.view("one").worker_pid, _life(heart, "one").incarnation
    _, sink = heart.tool("one__echo", delay=30)
    await wait_for(lambda: one.messages("tools/call"))
    _, other = heart.tool("two__echo", delay=0.5, n=2)
    os.kill(pid, signal.SIGKILL)
    kind, error = await asyncio.wait_for(sink.done, 10)
    assert (kind, error["data"]["reason"], error["data"]["server"]) == ("fail", "worker_lost", "one")
    assert "signal 9" in error["message"]
    assert text((await other.done)[1])["n"] == 2
    held = heart.tool("one__echo", again=1)[1]
    kind, body = await asyncio.wait_for(held.done, 20)
    assert (kind, text(body)) == ("reply", {"again": 1})
    view = heart.view("one")
    assert view.worker_pid != pid
    assert _life(heart, "one").incarnation == incarnation + 1
    assert (view.restarts, "signal 9" in view.last_error) == (1, True)
    assert [row.status for row in await heart.rows(3)].count("error") == 1
    records = heart.heart.home.upstream_pids
    await wait_for(lambda: len(list(records.iterdir())) == 2, what="one record for each living upstream process")


async def test_a_call_that_could_not_be_sent_may_be_tried_again(heart: Beating) -> None:
    """A worker is gone before its end is noticed: its call was never sent, so the error says that a retry is safe."""
    await heart.add("one", raw())
    corr, sink = heart.tool("one__echo", delay=30)
    call = heart.heart.calls.table[corr]
    await wait_for(lambda: call.peer)
    assert call.peer is not None
    frame = frames.Call(corr, call.request.caller, "tools/call", "echo")
    heart.heart.router.unsent(call.peer, frame, "gone")
    kind, error = await asyncio.wait_for(sink.done, 10)
    assert (kind, error["data"]) == ("fail", {"server": "one", "reason": "worker_lost", "retryable": True})
    assert "was not sent; try again" in error["message"]


async def test_what_a_new_worker_cannot_read_stays_as_it_was_known(heart: Beating, tmp_path: Path) -> None:
    """A worker is replaced while its upstream does not answer lists: nothing leaves the clients' lists, calls work."""
    broken = tmp_path / "broken"
    never = [*raw("--never", "tools/list").argv]
    script = f"if [ -e {broken} ]; then exec {shlex.join(never)}; else exec {shlex.join(raw().argv)}; fi"
    await heart.add("one", Upstream("sh", ["-c", script]), limits={"start_seconds": 5.0})
    before = await heart.names()
    assert before
    broken.touch()
    heart.ear.lists.clear()
    os.kill(heart.view("one").worker_pid, signal.SIGKILL)
    view = await wait_for(lambda: v if "tools/list" in (v := heart.view("one")).message else None)
    assert view.state == "ready"
    assert await heart.names() == before
    assert heart.ear.lists == [], "nobody is told of a change that is none"
    assert text(await heart.call("one__echo", n=1)) == {"n": 1}


@pytest.mark.slow
async def test_a_stopped_worker_is_found_silent_killed_with_a_reason_and_replaced(heart: Beating) -> None:
    """After 10 missed beats the worker is asked for its stacks, then killed with all it started, and replaced."""
    await asyncio.gather(heart.add("one", raw()), heart.add("two", raw()))
    pid = heart.view("one").worker_pid
    upstream = await wait_for(lambda: heart.view("one").upstream_pids)
    os.kill(pid, signal.SIGSTOP)
    _, sink = heart.tool("one__echo", n=1)
    assert text(await heart.call("two__echo", n=2)) == {"n": 2}, "nobody else notices"
    kind, error = await asyncio.wait_for(sink.done, 25)
    assert (kind, error["data"]["reason"]) == ("fail", "worker_lost")
    await wait_for(lambda: heart.view("one").worker_pid not in (0, pid))
    assert "heartbeats" in heart.view("one").last_error
    await wait_for(lambda: not any(Path(f"/proc/{p}").exists() for p in (pid, *upstream)))
    assert text(await heart.call("one__echo", n=3)) == {"n": 3}


async def test_the_fork_servers_death_costs_workers_but_not_the_daemon(heart: Beating) -> None:
    await heart.add("one", raw())
    forks = heart.supervision._workers._forks
    assert forks.pid is not None
    os.kill(forks.pid, signal.SIGKILL)
    await wait_for(lambda: heart.view("one").state != "ready")
    await heart.reach("one", "ready")
    assert text(await heart.call("one__echo", n=1)) == {"n": 1}


async def test_an_upstream_that_cannot_start_is_registered_and_says_why(heart: Beating) -> None:
    """P09: registered all the same, shown as unhealthy with the reason; calls name the cause."""
    view = await heart.add("one", Upstream("/no/such/command", []))
    assert view.state in ("backoff", "failed")
    assert "/no/such/command" in view.message
    assert view.missing
    assert await heart.names() == [], "nobody waits for what has failed"
    error = await heart.refused("one__echo")
    assert error["data"]["server"] == "one"


@pytest.mark.slow
async def test_one_that_dies_at_once_for_ever_ends_as_failed_and_comes_back_when_mended(
    heart: Beating, tmp_path: Path
) -> None:
    """P10, P11: back-off, then failed: calls fail at once with the last words; mended, it recovers."""
    await heart.add("one", raw("--stderr-at-start", "no licence", "--die-at-start", "3"))
    view = await heart.reach("one", "failed", 50)
    loop = asyncio.get_running_loop()
    asked = loop.time()
    error = await heart.refused("one__echo")
    assert error["data"]["reason"] == "upstream_failed"
    assert "no licence" in error["message"]
    assert loop.time() - asked < 5, "at once"
    assert view.retry_in is not None
    await heart.store.resources.update("mcp_server", "one", config=raw().config(path=os.environ["PATH"]), actor="cli")
    await heart.supervision.apply("one")
    await heart.reach("one", "ready")
    assert text(await heart.call("one__echo", n=1)) == {"n": 1}


async def test_a_missing_credential_is_failed_with_the_remedy_and_nothing_is_started(heart: Beating) -> None:
    """Never an unresolved placeholder sent as the secret (K06)."""
    one = raw()
    await heart.add("one", Upstream(one.command, one.args, {"TOKEN": "${NOT A NAME}"}))
    view = await heart.reach("one", "failed")
    assert "Store the secret" in view.message
    assert view.worker_pid == 0
    error = await heart.refused("one__echo")
    assert (error["data"]["reason"], "Store the secret" in error["message"]) == ("upstream_failed", True)
    await heart.store.resources.update("mcp_server", "one", config=one.config(path=os.environ["PATH"]), actor="cli")
    await heart.supervision.apply("one")
    await heart.reach("one", "ready")


async def test_an_upstream_that_crashes_in_a_call_fails_that_call_and_serves_the_next(heart: Beating) -> None:
    await heart.add("one", fake())
    error = await heart.refused("one__crash")
    assert (error["data"]["reason"], error["data"]["server"]) == ("upstream_exited", "one")
    assert text(await heart.call("one__echo", text="back")) == {"text": "back"}
    assert heart.view("one").worker_pid, "the worker lives on"


async def test_an_upstream_that_will_not_stop_is_gone_all_the_same(heart: Beating, tmp_path: Path) -> None:
    """P04: ignoring EOF and TERM ends in KILL, for the upstream and its grandchildren."""
    pids = tmp_path / "pids"
    await heart.add("one", raw("--ignore-term", "--ignore-eof", "--grandchildren", "2", "--pid-file", str(pids)))
    alive = [int(line) for line in pids.read_text().split()]
    assert len(alive) >= 3
    await heart.store.resources.delete("mcp_server", "one", actor="cli")
    await heart.supervision.apply("one")
    await wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in alive), 25)


async def test_a_flood_from_one_worker_does_not_stall_another(heart: Beating) -> None:
    """Q04: one noisy upstream; the other's calls go on."""
    await asyncio.gather(heart.add("noisy", fake()), heart.add("calm", raw()))
    params = {"name": "noisy__progress", "arguments": {"n": 2000, "delay": 0}, "_meta": {"progressToken": 1}}
    floods = [heart.start("tools/call", params)[1] for _ in range(4)]
    for n in range(20):
        assert text(await heart.call("calm__echo", n=n)) == {"n": n}
    for flood in floods:
        assert (await asyncio.wait_for(flood.done, 40))[0] == "reply"


async def test_the_end_does_not_wait_for_an_upstream_that_is_starting(tmp_path: Path) -> None:
    """P03: shutdown while a server is connecting."""
    pids = tmp_path / "pids"
    async with beating() as heart:
        await heart.add("one", raw("--never", "initialize", "--pid-file", str(pids)), wait=False)
        await wait_for(pids.exists)
        _, sink = heart.tool("one__echo")
        loop = asyncio.get_running_loop()
        heart.router.close()
        heart.router.fail_all()
        assert (await sink.done)[1]["data"]["reason"] == "daemon_stopping"
        began = loop.time()
    assert loop.time() - began < 15


async def test_what_a_dead_worker_asked_a_session_is_taken_back(
    heart: Beating, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ask outside any call ends with the worker that waits for its answer: nobody is left with a question."""
    asked: list[int] = []
    taken: list[tuple[str, int]] = []

    def ask(session: str, number: int, method: str, params: bytes) -> bool:
        asked.append(number)
        return True

    monkeypatch.setattr(heart.ear, "session_ask", ask)
    monkeypatch.setattr(heart.ear, "session_withdraw", lambda session, number: taken.append((session, number)))
    await heart.add("one", raw())
    peer = heart.supervision.upstreams["one"].peer
    assert peer is not None
    heart.router._asks._asked(peer, frames.Ask(1, 0, "s1", "roots/list"), b"{}")
    os.kill(heart.view("one").worker_pid, signal.SIGKILL)
    await wait_for(lambda: taken)
    assert taken == [("s1", asked[0])]
