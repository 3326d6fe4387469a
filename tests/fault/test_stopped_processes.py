"""Coffer's own processes stopped (SIGSTOP) when something is asked of them: nobody waits out a limit for that."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from coffer_common.proctree import is_stopped
from coffer_supervisor.forks import FORKSERVER_LOST
from tests.support import procs
from tests.support.daemon import Daemon
from tests.support.fork_supervisor import ForkSupervisor
from tests.support.heart import Beating, beating, text
from tests.support.upstreams import raw
from tests.support.wait import wait_for

pytestmark = pytest.mark.fault


@pytest_asyncio.fixture
async def heart() -> AsyncIterator[Beating]:
    async with beating() as found:
        yield found


async def _stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    await wait_for(lambda: is_stopped(pid))


def _fork_server() -> int:
    """The one that this process, as the supervisor, has started last."""
    found = [child for child in psutil.Process().children() if child.cmdline()[:1] == ["coffer-forkserver"]]
    return found[-1].pid


async def test_a_worker_that_ends_under_a_stopped_fork_server_is_noticed(heart: Beating, tmp_path: Path) -> None:
    """Its death is reported by nobody: it is seen all the same, its call fails with the reason, and the next one works
    after the fork server has been replaced."""
    one = raw(log=tmp_path / "log")
    await heart.add("one", one)
    _, sink = heart.tool("one__echo", delay=60)
    await wait_for(lambda: one.messages("tools/call"))
    worker, fork_server = heart.view("one").worker_pid, _fork_server()
    await _stop(fork_server)
    os.kill(worker, signal.SIGKILL)
    kind, error = await asyncio.wait_for(sink.done, 30)
    assert (kind, error["data"]["reason"]) == ("fail", "worker_lost")
    assert FORKSERVER_LOST in error["message"], "not because its beats were missed for 10 s"
    assert text(await heart.call("one__echo", n=1)) == {"n": 1}
    assert _fork_server() != fork_server


async def test_a_start_does_not_wait_for_a_stopped_fork_server(heart: Beating) -> None:
    """A server is added while the fork server is stopped: another takes its place at once, and the server starts."""
    fork_server = _fork_server()
    await _stop(fork_server)
    await heart.add("one", raw(), wait=False)
    view = await heart.reach("one", "ready")
    assert "the fork server was lost while starting 'one'" in view.last_error, "not after the 10 s that a fork may take"
    assert _fork_server() != fork_server


@pytest.mark.parametrize("wish", ["restart", "disable", "remove"])
async def test_a_stopped_worker_is_given_no_grace(heart: Beating, wish: str, caplog: pytest.LogCaptureFixture) -> None:
    """A stopped worker cannot end in good order: asked to, it is killed at once, and the wish is fulfilled."""
    await heart.add("one", raw())
    worker = heart.view("one").worker_pid
    await _stop(worker)
    if wish == "restart":
        await heart.supervision.restart("one")
        await heart.reach("one", "ready")
        assert heart.view("one").worker_pid != worker
    elif wish == "disable":
        await heart.store.resources.disable("mcp_server", "one", actor="cli")
        await heart.supervision.apply("one")
        await heart.reach("one", "disabled")
    else:
        await heart.store.resources.delete("mcp_server", "one", actor="cli")
        await heart.supervision.apply("one")
        await wait_for(lambda: heart.supervision.view("one") is None)
    await wait_for(lambda: not procs.alive(worker))
    assert "it is stopped (SIGSTOP), and cannot end in good order" in caplog.text, "not after its beats were missed"


async def test_a_fork_server_that_is_only_slow_is_waited_for(tmp_path: Path) -> None:
    """Only one that is stopped is given up early: one that goes on in time loses nothing."""
    supervisor = await ForkSupervisor.start(tmp_path, stopped=5.0, ping=20.0)
    try:
        await supervisor.next("ready")
        supervisor.do(do="look")
        fork_server = (await supervisor.next("look"))["pid"]
        await _stop(fork_server)
        supervisor.do(do="fork", name="up", incarnation=1, target="idle", opaque="")
        os.kill(fork_server, signal.SIGCONT)
        await supervisor.next("forked", name="up")
        supervisor.do(do="look")
        assert (await supervisor.next("look"))["pid"] == fork_server
    finally:
        await supervisor.close()


async def test_a_stopped_fork_server_fails_what_it_was_asked(tmp_path: Path) -> None:
    """Its own deadline is short while it is stopped, however long it would be otherwise."""
    supervisor = await ForkSupervisor.start(tmp_path, stopped=0.2, ping=60.0, fork=60.0, ping_every=60.0)
    try:
        await supervisor.next("ready")
        supervisor.do(do="look")
        fork_server = (await supervisor.next("look"))["pid"]
        await _stop(fork_server)
        supervisor.do(do="fork", name="up", incarnation=1, target="idle", opaque="")
        assert "lost while starting 'up'" in (await supervisor.next("failed", name="up"))["message"]
        await supervisor.fork("up", incarnation=2)
    finally:
        await supervisor.close()


async def test_clients_of_a_stopped_daemon_wait_in_line(daemon: Daemon) -> None:
    """Clients that come while the daemon is stopped (a laptop sleeps) are connected at once and served when it goes on:
    one that finds the line full is tried again by its system after seconds only."""
    status = (
        f"GET /api/v1/daemon/status HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\nConnection: close\r\n\r\n".encode()
    )
    pid = int(daemon.info["pid"])
    await _stop(pid)
    try:
        async with asyncio.timeout(20):
            waiting = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", daemon.port) for _ in range(300)))
        for _, writer in waiting:
            writer.write(status)
    finally:
        os.kill(pid, signal.SIGCONT)
    for reader, writer in waiting:
        assert (await asyncio.wait_for(reader.read(), 20)).startswith(b"HTTP/1.1 200 ")
        writer.close()
        await writer.wait_closed()
