"""Caps on what an upstream takes of the machine: each ends it with an error of its own, and the next call works."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coffer_common import frames
from tests.support.daemon import Daemon
from tests.support.procs import all_gone
from tests.support.upstreams import raw
from tests.support.wait import wait_for
from tests.support.worker import Worker, caller, server_config

pytestmark = pytest.mark.fault


async def test_too_much_memory_ends_the_upstream_and_names_the_limit(tmp_path: Path) -> None:
    """A leak up to the cap: every open call hears of it, the state says it, and the next call starts it anew."""
    config = server_config(raw(), limits={"max_rss_bytes": 100_000_000})
    async with Worker.start(tmp_path, config) as worker:
        waiting = await worker.begin("tools/call", "echo", {"name": "echo", "arguments": {"delay": 30}}, caller())
        answer = await worker.call("echo", {"do": "leak", "mb": 3000})
        assert (answer.reason, "over its limit max_rss_bytes (100 MB)" in answer.message) == ("memory_limit", True)
        assert (await worker.answer(waiting)).reason == "memory_limit"
        assert any("max_rss_bytes" in state.message for state in worker.all(frames.State))
        assert (await worker.call("echo", {"n": 1})).text == '{"n": 1}'


async def test_too_many_processes_end_the_upstream_with_all_of_them(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    config = server_config(
        raw("--grandchildren", "4", "--pid-file", str(pids)), limits={"max_processes": 3}, isolation="shared"
    )
    async with Worker.start(tmp_path, config) as worker:
        await wait_for(pids.exists)
        family = [int(line) for line in pids.read_text().split()]
        answer = await worker.call("echo", {"delay": 30})
        assert (answer.reason, "max_processes (3)" in answer.message) == ("process_limit", True)
        all_gone(family)
        assert "max_processes" in worker.all(frames.State)[-1].message


async def test_one_that_does_not_read_is_ended_before_it_fills_our_memory(tmp_path: Path) -> None:
    """What calls that were given up left in its pipe counts; the limit is that of a line."""
    limits = {"line_bytes": 1_000_000, "idle_seconds": 0.3}
    async with Worker.start(tmp_path, server_config(raw(), limits=limits, isolation="shared")) as worker:
        assert (await worker.call("echo", {"do": "deaf"})).reason == "idle_limit"
        for _ in range(3):
            assert (await worker.call("echo", {"blob": "x" * 500_000})).reason in ("idle_limit", "input_limit")
        assert (await worker.call("echo", {"n": 1})).text == '{"n": 1}'
        ended = [state for state in worker.all(frames.State) if state.reason == "input_limit"]
        assert "does not read its input" in ended[0].message
        assert "line_bytes (1000000)" in ended[0].message


@pytest.mark.e2e
def test_a_cap_is_set_by_command_acts_and_is_shown(daemon: Daemon) -> None:
    """`coffer mcp update NAME --max-rss`: the call fails naming it, and `coffer ps` shows why."""
    daemon.add_server("one", raw())
    daemon.wait_state("one")
    daemon.cli(
        "mcp", "update", "one", "--max-rss", "100M", "--max-processes", "5", "--max-calls", "7"
    ).check_returncode()
    config = json.loads(daemon.cli("mcp", "show", "one", "--json").stdout)["config"]
    assert config["limits"] == {"max_rss_bytes": 104857600, "max_processes": 5, "in_flight": 7}
    called = daemon.cli("mcp", "call", "one", "echo", "--arg", "do=leak", "--arg", "mb=3000")
    assert called.returncode == 1
    assert "max_rss_bytes" in called.stderr
    assert "max_rss_bytes" in daemon.server("one")["last_error"]
    assert "max_rss_bytes" in daemon.cli("mcp", "logs", "one").stdout
    again = daemon.cli("mcp", "update", "one", "--max-rss", "off", "--json")
    assert "max_rss_bytes" not in json.loads(again.stdout)["config"]["limits"]
