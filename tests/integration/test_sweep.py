"""The sweep at the next start: what the records prove to be left over goes, everything else is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from coffer_common import pidrecord
from coffer_common.pidrecord import COOKIE_VARIABLE, PidRecord
from coffer_supervisor.sweep import Swept, sweep
from tests.support.fork_supervisor import alive, carrying
from tests.support.wait import wait_until

COOKIE = "5eed" * 8
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes that are killed afterwards."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*command: str, cookie: str | None = None) -> subprocess.Popen[bytes]:
        env = {"PATH": os.environ["PATH"]} | ({COOKIE_VARIABLE: cookie} if cookie else {})
        started.append(subprocess.Popen(command, env=env, start_new_session=True))
        wait_until(lambda: psutil.Process(started[-1].pid).cmdline() == list(command))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def record(process: subprocess.Popen[bytes], **changes: object) -> PidRecord:
    seen = psutil.Process(process.pid)
    facts = {"server": "up", "cookie": COOKIE, "pid": process.pid, "create_time": seen.create_time()}
    return PidRecord(**(facts | {"cmdline": tuple(seen.cmdline())} | changes))


def test_the_recorded_process_goes_with_its_tree(start: Start, tmp_path: Path) -> None:
    """A stopped upstream with a child: both are killed, the record is removed."""
    left = start("sh", "-c", "sleep 600 & wait", cookie=COOKIE)
    wait_until(lambda: len(carrying(COOKIE_VARIABLE, COOKIE)) == 2)
    os.kill(left.pid, signal.SIGSTOP)
    below = {proc.pid for proc in carrying(COOKIE_VARIABLE, COOKIE)}
    pidrecord.write(tmp_path, record(left))
    assert sweep(tmp_path) == [Swept("up", tuple(sorted(below)))]
    assert not any(alive(pid) for pid in below)
    assert list(tmp_path.iterdir()) == []


def test_a_reused_pid_is_left_alone(start: Start, tmp_path: Path) -> None:
    """Same PID, same command line, another creation time: not ours. The record goes, the process stays."""
    other = start("sleep", "600")
    pidrecord.write(tmp_path, record(other, create_time=psutil.Process(other.pid).create_time() - 60))
    assert sweep(tmp_path) == []
    assert alive(other.pid)
    assert list(tmp_path.iterdir()) == []


def test_the_creation_time_alone_does_not_suffice(start: Start, tmp_path: Path) -> None:
    """Started in the same second under a reused PID, but neither the cookie nor the command line."""
    other = start("sleep", "600", cookie="another")
    pidrecord.write(tmp_path, record(other, cmdline=("node", "server.js")))
    assert sweep(tmp_path) == []
    assert alive(other.pid)


def test_one_that_wiped_its_environment_is_known_by_its_command_line(start: Start, tmp_path: Path) -> None:
    left = start("sleep", "600")
    pidrecord.write(tmp_path, record(left))
    assert sweep(tmp_path) == [Swept("up", (left.pid,))]
    assert not alive(left.pid)


def test_a_grandchild_is_known_by_its_cookie_when_the_recorded_process_is_gone(start: Start, tmp_path: Path) -> None:
    """Also from a record written just before the start, whose PID was never known."""
    left = start("sleep", "600", cookie=COOKIE)
    pidrecord.write(tmp_path, PidRecord(server="up", cookie=COOKIE))
    assert sweep(tmp_path) == [Swept("up", (left.pid,))]


def test_a_stopped_worker_that_survived_goes_too(start: Start, tmp_path: Path) -> None:
    worker = start(sys.executable, "-c", "import time; time.sleep(600)  # coffer-worker: up")
    os.kill(worker.pid, signal.SIGSTOP)
    born = psutil.Process(worker.pid).create_time()
    pidrecord.write(tmp_path, PidRecord(server="up", cookie=COOKIE, worker_pid=worker.pid, worker_create_time=born))
    assert sweep(tmp_path) == [Swept("up", (worker.pid,))]
    assert not alive(worker.pid)


def test_a_process_that_is_no_worker_any_more_is_left_alone(start: Start, tmp_path: Path) -> None:
    other = start("sleep", "600")
    born = psutil.Process(other.pid).create_time()
    pidrecord.write(tmp_path, PidRecord(server="up", cookie=COOKIE, worker_pid=other.pid, worker_create_time=born))
    assert sweep(tmp_path) == []
    assert alive(other.pid)


def test_after_one_workers_end_only_its_records_are_looked_at(start: Start, tmp_path: Path) -> None:
    """While others live: neither their upstreams nor files that may just be written are touched."""
    left, others = start("sleep", "600", cookie=COOKIE), start("sleep", "601", cookie="other" * 6)
    ended = subprocess.Popen(["sleep", "0"])
    ended.wait()
    living = start(sys.executable, "-c", "import time; time.sleep(600)  # coffer-worker: on")
    born = psutil.Process(living.pid).create_time()
    pidrecord.write(tmp_path, record(left, worker_pid=ended.pid, worker_create_time=1.0))
    kept = pidrecord.write(tmp_path, record(others, cookie="other" * 6, worker_pid=living.pid, worker_create_time=born))
    (tmp_path / "half.json").write_bytes(b"{")
    assert sweep(tmp_path, worker=ended.pid) == [Swept("up", (left.pid,))]
    assert sweep(tmp_path, worker=living.pid) == [], "a PID that lives has been reused"
    assert alive(others.pid) and alive(living.pid)
    assert {path.name for path in tmp_path.iterdir()} == {kept.name, "half.json"}


def test_what_is_no_record_is_removed(tmp_path: Path) -> None:
    """An empty or half-written file stops nothing."""
    (tmp_path / "up.json").write_bytes(b'{"server":')
    assert sweep(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_record_of_what_is_long_gone_is_removed(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "0"])
    process.wait()
    pidrecord.write(tmp_path, PidRecord(server="up", cookie=COOKIE, pid=process.pid, create_time=1.0))
    assert sweep(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
