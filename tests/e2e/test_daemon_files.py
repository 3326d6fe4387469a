"""What others find the daemon by is removed while it runs, as cleaners of temporary files do: it comes back."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from coffer_common import flocks
from tests.support.clients import json_of, shim_client
from tests.support.daemon import Daemon
from tests.support.upstreams import raw
from tests.support.wait import wait_for, wait_until

pytestmark = pytest.mark.e2e

SOCKETS = ("api.sock", "mcp.sock", "control.ipc", "bulk.ipc")


def logged(daemon: Daemon, words: str) -> list[str]:
    """The daemon's log lines that say so."""
    lines = (daemon.home / "logs" / "daemon.log").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if words in json.loads(line)["event"]]


@pytest.mark.parametrize("whole", [False, True], ids=["the sockets", "their folder"])
async def test_removed_sockets_are_made_anew(daemon: Daemon, tmp_path: Path, whole: bool) -> None:
    """Commands and shims find the daemon again within seconds; what was connected goes on, open calls included; new
    workers can say hello; one line tells of it."""
    upstream = raw(log=tmp_path / "one")
    daemon.add_server("one", upstream)
    daemon.wait_state("one")
    async with shim_client(daemon, "legacy") as before:
        call = asyncio.create_task(before.call_tool("one__echo", {"delay": 8, "n": 1}))
        await wait_for(lambda: upstream.messages("tools/call"))
        worker = daemon.server("one")["worker_pid"]
        if whole:
            shutil.rmtree(daemon.run_dir)
        else:
            for name in SOCKETS:
                (daemon.run_dir / name).unlink()
        await wait_for(lambda: all((daemon.run_dir / name).exists() for name in SOCKETS), 15, daemon.story)
        await wait_for(lambda: len(logged(daemon, "sockets were removed")) == 1, 5)
        assert all((daemon.run_dir / name).stat().st_mode & 0o077 == 0 for name in ("api.sock", "mcp.sock"))
        assert daemon.run_dir.stat().st_mode & 0o777 == 0o700
        assert (await asyncio.to_thread(daemon.cli, "daemon", "status", "--no-spawn")).returncode == 0
        await asyncio.to_thread(daemon.add_server, "two", raw())
        await asyncio.to_thread(daemon.wait_state, "two")
        async with shim_client(daemon) as after:
            assert json_of(await after.call_tool("two__echo", {"n": 2}))["n"] == 2
            assert json_of(await after.call_tool("one__echo", {"n": 3}))["n"] == 3
        assert json_of(await call)["n"] == 1
        assert json_of(await before.call_tool("one__echo", {"n": 4}))["n"] == 4
    assert daemon.server("one")["worker_pid"] == worker
    assert len(logged(daemon, "sockets were removed")) == 1


def test_a_removed_lock_is_held_anew(daemon: Daemon) -> None:
    """No second daemon of this home can start because the file is gone by which the first is single."""
    alive = daemon.home / "daemon.alive"
    alive.unlink()
    wait_until(alive.exists, 15, daemon.story)
    wait_until(lambda: logged(daemon, "daemon.alive was removed"), 5, daemon.story)
    assert flocks.try_lock(alive) is None


def test_removed_folders_and_logs_are_begun_anew(daemon: Daemon) -> None:
    """Logs, and the folder of the records by which stray processes are found, are there again when they are needed."""
    daemon.add_server("one", raw())
    worker = daemon.wait_state("one")["worker_pid"]
    for folder in ("logs", "upstream-pids"):
        shutil.rmtree(daemon.home / folder)
    wait_until((daemon.home / "upstream-pids").exists, 15)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: daemon.server("one")["worker_pid"] not in (0, None, worker), 15, daemon.story)
    daemon.wait_state("one")
    assert len(list((daemon.home / "upstream-pids").glob("one.*"))) == 1
    assert logged(daemon, "upstream 'one'")


@pytest.mark.parametrize("spoilt", [None, "{bad"], ids=["removed", "spoilt"])
def test_a_command_that_comes_before_the_file_is_back_is_answered(daemon: Daemon, spoilt: str | None) -> None:
    """The command finds no daemon and may start none beside the one that runs; it is served by that one."""
    pid, file = daemon.info["pid"], daemon.home / "daemon.json"
    for _ in range(3):  # the file comes back every two seconds: one of these finds it gone
        file.unlink()
        if spoilt is not None:
            file.write_text(spoilt)
        done = daemon.cli("mcp", "list", "--json")
        assert (done.returncode, json.loads(done.stdout), daemon.info["pid"]) == (0, {"resources": []}, pid)
