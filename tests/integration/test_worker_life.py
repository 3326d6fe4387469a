"""Starts, crashes, limits, ends: what a worker does with an upstream that does not live as it should."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from pathlib import Path

import psutil
import pytest

from coffer_common import frames
from tests.support.upstreams import Upstream, fake, raw
from tests.support.wait import wait_for, wait_until
from tests.support.worker import Worker, caller, server_config


def starts(upstream: Upstream) -> int:
    """How many processes of it were started."""
    return len([entry for entry in upstream.log() if entry["event"] == "start"])


async def test_one_start_serves_twenty_callers_of_the_same_instant(tmp_path: Path) -> None:
    """P06: exactly one process, all answered."""
    upstream = raw("--init-delay-ms", "700", log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream), ready=False) as worker:
        corrs = [await worker.begin("tools/call", "echo", {"arguments": {"n": n}}, caller()) for n in range(20)]
        for n, corr in enumerate(corrs):
            assert json.loads((await worker.answer(corr)).text) == {"n": n}
        assert starts(upstream) == 1


async def test_a_server_that_dies_at_start_says_why_at_once(tmp_path: Path) -> None:
    """P09: exit code and the last stderr lines, secrets masked, to the waiting caller and in the state."""
    upstream = raw("--die-at-start", "1", "--stderr-at-start", "Error: API_KEY s3cr3tvalue is wrong")
    config = server_config(upstream, env={"API_KEY": "s3cr3tvalue"})
    async with Worker.start(tmp_path, config, ready=False) as worker:
        failed = await worker.call("echo")
        assert failed.reason == "start_failed"
        assert "code 1" in failed.message
        assert "Error: API_KEY" in failed.message
        state = await worker.state("backoff")
        assert any("API_KEY" in line for line in state.stderr)
        assert state.retry_in is not None
        everything = repr(worker.seen) + (tmp_path / "logs" / "upstream-up.log").read_text(encoding="utf-8")
        assert "s3cr3tvalue" not in everything


@pytest.mark.parametrize(
    ("command", "said"), [("no-such-command-anywhere", "no-such-command-anywhere"), ("/etc/hostname", "/etc/hostname")]
)
async def test_a_command_that_cannot_be_started(tmp_path: Path, command: str, said: str) -> None:
    """P09, P16: not found, or not executable: the error names the command."""
    config = server_config({"transport": "stdio", "command": command})
    async with Worker.start(tmp_path, config, ready=False) as worker:
        failed = await worker.call("echo")
        assert failed.reason == "start_failed"
        assert said in failed.message


async def test_a_launcher_that_waits_for_a_keypress(tmp_path: Path) -> None:
    """F15: a bounded failure that shows the last output and hints at a non-interactive flag; nothing is left over."""
    program = "import time; print('Ok to proceed? (y) ', end='', flush=True); time.sleep(60)"
    config = server_config(
        {"transport": "stdio", "command": sys.executable, "args": ["-c", program]}, limits={"start_seconds": 1.0}
    )
    async with Worker.start(tmp_path, config, ready=False) as worker:
        failed = await worker.call("echo")
        assert failed.reason == "start_limit"
        assert "Ok to proceed" in failed.message
        assert "non-interactive" in failed.message
        await worker.state("backoff")
        await wait_for(lambda: not psutil.Process(worker.process.pid).children(recursive=True))


async def test_a_server_that_dies_for_ever_ends_in_failed_and_is_refused_at_once(tmp_path: Path) -> None:
    """P10: backoff grows, at most five tries in the window, then failed: calls are refused naming the cause."""
    upstream = raw("--die-at-start", "3", log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream), ready=False) as worker:
        state = await worker.state("failed")
        assert state.retry_in is not None
        assert state.retry_in > 30
        assert worker.states().count("backoff") == 5
        begun = starts(upstream)
        failed = await worker.call("echo")
        assert failed.reason == "upstream_failed"
        assert "code 3" in failed.message
        assert "coffer mcp restart up" in failed.message
        assert starts(upstream) == begun <= 12


async def test_a_killed_server_fails_its_calls_and_comes_back(tmp_path: Path) -> None:
    """P08: in-flight calls fail at once, the state changes, the next call finds a new process."""
    async with Worker.start(tmp_path, server_config(raw(), isolation="shared")) as worker:
        await wait_for(lambda: worker.beats and worker.beats[-1].pids)
        both = [await worker.begin("tools/call", "echo", {"arguments": {"delay": 30}}, caller()) for _ in range(2)]
        await wait_for(lambda: worker.beats[-1].in_flight == 2)
        since = len(worker.all(frames.State))
        os.kill(worker.beats[-1].pids[0], signal.SIGKILL)
        for corr in both:
            failed = await worker.answer(corr)
            assert failed.reason == "upstream_exited"
            assert "SIGKILL" in failed.message
        await worker.state("backoff", since)
        assert (await worker.call("echo", {"a": 1})).text
        assert (await worker.state("ready", since)).restarts == 1


async def test_the_crash_of_one_sessions_connection_leaves_the_others_alone(tmp_path: Path) -> None:
    """Backoff is for that session only; bystanders see nothing, and the state of the upstream does not fail."""
    async with Worker.start(tmp_path, server_config(fake("--era", "legacy"))) as worker:
        bystander, unlucky = caller(session="by"), caller(session="un")
        assert (await worker.call("counter", by=bystander)).text == "1"
        assert (await worker.call("crash", by=unlucky)).reason == "upstream_exited"
        assert (await worker.call("counter", by=bystander)).text == "2"
        assert (await worker.call("counter", by=unlucky)).text == "1"
        assert set(worker.states()) <= {"starting", "ready"}
        assert worker.all(frames.State)[-1].restarts == 1


async def test_a_session_whose_connection_keeps_crashing_is_refused_alone(tmp_path: Path) -> None:
    async with Worker.start(tmp_path, server_config(fake("--era", "legacy", "--tools", "crash", "echo"))) as worker:
        assert (await worker.call("echo", {"a": 1}, caller(session="by"))).text
        reasons = [(await worker.call("crash", by=caller(session="un"))).reason for _ in range(7)]
        assert reasons[-1] == "upstream_failed"
        assert reasons[0] == "upstream_exited"
        assert (await worker.call("echo", {"a": 1}, caller(session="by"))).text
        assert (await worker.call("echo", {"a": 1}, caller(session="third"))).text
        assert "failed" not in worker.states()


async def test_a_server_that_exits_after_every_answer(tmp_path: Path) -> None:
    """P14: each call works or fails with a clear reason; clean exits are no crash loop, and the state says so."""
    upstream = raw("--exit-after", "4", log=tmp_path / "log.jsonl")  # probe, initialize, list, one call
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        worked = 0
        for n in range(10):
            answer = await worker.call("echo", {"n": n})
            if isinstance(answer.frame, frames.Reply):
                worked += 1
            else:
                assert answer.reason == "upstream_exited", answer
        assert worked >= 5
        assert "failed" not in worker.states()
        assert any("answered call" in state.message for state in worker.all(frames.State))


async def test_max_connections_names_the_limit(tmp_path: Path) -> None:
    """Beyond it a call fails naming the limit; no process is started for it."""
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream, limits={"max_connections": 2})) as worker:
        for session in "ab":
            assert (await worker.call("echo", {"a": 1}, caller(session=session))).text
        refused = await worker.call("echo", {"a": 1}, caller(session="c"))
        assert refused.reason == "connection_limit"
        assert "2 connections" in refused.message
        await worker.send(frames.CloseSession("a"))
        await wait_for(lambda: worker.beats[-1].connections == 1)
        assert (await worker.call("echo", {"a": 1}, caller(session="c"))).text


async def test_idle_connections_are_closed_and_opened_again_on_need(tmp_path: Path) -> None:
    """No call, no subscription: closed after the idle time; the state stays ready and the lists stay."""
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream, limits={"idle_close_seconds": 0.5})) as worker:
        await wait_for(lambda: [entry for entry in upstream.log() if entry["event"] == "eof"])
        await wait_for(lambda: worker.beats[-1].connections == 0)
        assert worker.states()[-1] == "ready"
        assert "tool:echo" in worker.catalogue()
        assert (await worker.call("echo", {"a": 1})).text
        assert starts(upstream) == 2
        await wait_for(lambda: len(upstream.messages("tools/list")) == 2, what="lists are read again at the next start")


async def test_a_refresh_reads_again_and_is_answered(tmp_path: Path) -> None:
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        assert isinstance((await worker.request(frames.Refresh)).frame, frames.Reply)
        assert len(upstream.messages("tools/list")) == 2
        assert len(worker.all(frames.Catalogue)) == 1


async def test_stop_drains_then_ends_everything(tmp_path: Path) -> None:
    """Open calls may end, new ones are refused, the upstream gets its end of input, the worker exits 0."""
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        open_one = await worker.begin("tools/call", "echo", {"arguments": {"delay": 0.7}}, caller())
        await wait_for(lambda: upstream.messages("tools/call"))
        await worker.send(frames.Stop(10.0, "configuration changed"))
        await worker.state("stopping")
        refused = await worker.call("echo")
        assert refused.reason == "upstream_stopped"
        assert (await worker.answer(open_one)).text
        await wait_for(lambda: worker.process.poll() is not None)
        assert worker.process.returncode == 0
        assert upstream.log()[-1] == {**upstream.log()[-1], "event": "end", "reason": "eof"}


async def test_stop_without_drain_fails_what_is_open(tmp_path: Path) -> None:
    """P04: an upstream that ignores end of input and SIGTERM is killed; calls hear why."""
    upstream = raw("--ignore-eof", "--ignore-term", log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        corr = await worker.begin("tools/call", "echo", {"arguments": {"delay": 60}}, caller())
        await wait_for(lambda: upstream.messages("tools/call"))
        pids = worker.beats[-1].pids
        await worker.send(frames.Stop(0.0, "removed"))
        failed = await worker.answer(corr)
        assert failed.reason == "upstream_stopped"
        assert "removed" in failed.message
        await wait_for(lambda: worker.process.poll() is not None)
        assert worker.process.returncode == 0
        assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_when_the_supervisor_is_gone_nothing_lives_on(tmp_path: Path) -> None:
    """P02: grandchildren with sessions of their own included."""
    pid_file = tmp_path / "pids"
    upstream = raw("--grandchildren", "2", "--pid-file", str(pid_file), "--ignore-term", "--ignore-eof")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        pids = [int(line) for line in pid_file.read_text(encoding="ascii").split()]
        assert len(pids) == 3
        worker.lifeline.close()
        await wait_for(lambda: worker.process.poll() is not None)
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), 5.0)


async def test_figures_title_and_dump_show_what_hangs(tmp_path: Path) -> None:
    """An operator sees the oldest call, the upstream's pid, its tree and its last lines of stderr."""
    upstream = raw("--stderr-at-start", "warming up")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        await worker.begin("tools/call", "echo", {"arguments": {"delay": 30}, "_meta": {"progressToken": 1}}, caller())
        await wait_for(lambda: worker.beats[-1].in_flight == 1)
        beat = worker.beats[-1]
        assert beat.oldest_key == "echo"
        assert beat.connections == 1
        assert beat.rss > 1_000_000
        assert beat.bytes_in > 0
        assert psutil.pid_exists(beat.pids[0])
        seen = await worker.dump()
        assert seen["calls"][0]["key"] == "echo"
        assert seen["calls"][0]["waiting_for"] == "the upstream's answer"
        assert 0 < seen["calls"][0]["limit_in"] <= 120
        assert seen["tree"][0]["pid"] == beat.pids[0]
        assert seen["stderr"] == ["warming up"]
        assert seen["tasks"]


async def test_the_log_is_private(tmp_path: Path) -> None:
    async with Worker.start(tmp_path, server_config(raw("--stderr-at-start", "hello"))):
        path = tmp_path / "logs" / "upstream-up.log"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_an_http_upstream_that_nobody_serves_says_so(tmp_path: Path) -> None:
    """An upstream that cannot be reached is shown as such, and waited for; who asks for its lists hears why."""
    config = server_config({"transport": "http", "url": "http://127.0.0.1:9/mcp"})
    async with Worker.start(tmp_path, config, ready=False) as worker:
        said = "http://127.0.0.1:9 refused the connection"
        assert said in (await worker.state("backoff")).message
        answer = await worker.request(frames.Refresh)
        assert answer.reason == "upstream_failed"
        assert said in answer.message


async def test_a_server_that_holds_a_lock_for_life_serves_its_first_session(tmp_path: Path) -> None:
    """P07: never two copies for one session; where a second session needs one, that session alone hears why."""
    upstream = raw("--lock", str(tmp_path / "lock"), log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        assert (await worker.call("echo", {"a": 1})).text
        failed = await worker.call("echo", {"a": 1}, caller(session="second"))
        assert failed.reason == "start_failed"
        assert "another copy holds the lock" in failed.message
        assert (await worker.call("echo", {"a": 1})).text
        assert set(worker.states()) <= {"starting", "ready"}


async def test_a_call_in_backoff_waits_for_the_next_try(tmp_path: Path) -> None:
    """A short outage is no error for whoever calls meanwhile; what was executed is not sent twice."""
    upstream = raw("--exit-after", "3", "--exit-code", "1", log=tmp_path / "log.jsonl")  # probe, initialize, list
    async with Worker.start(tmp_path, server_config(upstream), ready=False) as worker:
        await worker.state("backoff")
        assert (await worker.call("echo", {"nonce": "n1"})).text
        seen = [m for m in upstream.messages("tools/call") if m["params"]["arguments"] == {"nonce": "n1"}]
        assert len(seen) == 1
