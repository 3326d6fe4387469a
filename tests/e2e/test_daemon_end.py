"""How the daemon ends: open calls are given their time, nothing is left, and a fault at start is told."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support import procs
from tests.support.clients import http_client, json_of
from tests.support.daemon import DAEMON, Daemon
from tests.support.upstreams import raw
from tests.support.wait import wait_for, wait_until

pytestmark = pytest.mark.e2e


async def test_sigterm_lets_open_calls_end_and_takes_no_new_ones(daemon: Daemon, tmp_path: Path) -> None:
    """SIGTERM drains calls for up to 10 s, then ends everything; a stop on purpose exits with 0."""
    one = raw(log=tmp_path / "log")
    daemon.add_server("one", one)
    async with http_client(daemon, "legacy") as client:
        call = asyncio.create_task(client.call_tool("one__echo", {"delay": 1.5, "n": 7}))
        await wait_for(lambda: one.messages("tools/call"))
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGTERM)
        await wait_for(lambda: not (daemon.run_dir / "mcp.sock").exists())
        assert json_of(await call)["n"] == 7
    assert await asyncio.to_thread(daemon.process.wait, 20) == 0
    assert procs.of_home(daemon.home) == []
    with open(daemon.home / "logs" / "daemon.log", encoding="utf-8") as log:
        assert "leaving: stopped; 1 calls are open" in log.read()


def test_a_daemon_killed_hard_leaves_nothing_within_five_seconds(daemon: Daemon, tmp_path: Path) -> None:
    """P02: not even grandchildren that called setsid outlive a SIGKILL of the supervisor."""
    pids = tmp_path / "pids"
    daemon.add_server("one", raw("--grandchildren", "2", "--ignore-term", "--ignore-eof", "--pid-file", str(pids)))
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 3)
    alive = [int(pid) for pid in pids.read_text().split()]
    daemon.kill()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in alive), 5)
    wait_until(lambda: not procs.of_home(daemon.home), 5)


def test_a_damaged_store_is_refused_with_the_remedy_and_kept(coffer: Daemon) -> None:
    """A corrupt file is never overwritten; the starter is told what is wrong and how to mend it."""
    coffer.home.mkdir(exist_ok=True)
    rubbish = b"SQLite format 3\x00" + b"\xff" * 5000
    (coffer.home / "coffer.db").write_bytes(rubbish)
    ended = subprocess.run([DAEMON], check=False, env=coffer.env, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1
    assert "coffer.db" in ended.stderr
    assert (coffer.home / "coffer.db").read_bytes() == rubbish
    assert "Traceback" not in ended.stderr


def test_a_removed_daemon_json_comes_back() -> None:
    """Commands find the daemon again soon, with the token that its clients have."""
    daemon = Daemon().start()
    try:
        before = daemon.info
        (daemon.home / "daemon.json").unlink()
        wait_until((daemon.home / "daemon.json").exists, 15, daemon.story)
        assert daemon.info == before
        assert daemon.cli("daemon", "status", "--no-spawn").returncode == 0
    finally:
        daemon.close()


def test_nothing_of_the_sockets_stays_after_a_stop(tmp_path: Path) -> None:
    """A clean end takes its four sockets away, and the folder of a home whose path is too long for them; the next
    daemon makes them anew."""
    home = tmp_path / ("long-" * 24) / "home"
    home.mkdir(parents=True, mode=0o700)
    daemon = Daemon(home=home).start()
    try:
        run_dir = daemon.run_dir
        assert run_dir.parent != home
        assert {"control.ipc", "bulk.ipc"} < {file.name for file in run_dir.iterdir()}
        assert daemon.stop() == 0
        assert not run_dir.exists()
        daemon.start()
        assert daemon.run_dir == run_dir
        assert daemon.cli("daemon", "status", "--no-spawn").returncode == 0
    finally:
        daemon.close()
    assert not run_dir.exists()


def test_no_socket_stays_in_a_usual_home(daemon: Daemon) -> None:
    """A clean end leaves the folder of sockets empty."""
    sockets = daemon.run_dir
    assert len(list(sockets.iterdir())) == 4
    assert daemon.stop() == 0
    assert list(sockets.iterdir()) == []
