"""Detect or spawn, with real daemons behind a scripted app: exactly one of them, whoever starts it and dies."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from coffer_common import discovery, flocks, spawn
from coffer_common.paths import Home
from coffer_common.ports import port_range
from tests.support import procs
from tests.support.daemon import DAEMON, Daemon
from tests.support.standin import StandIn
from tests.support.wait import wait_for, wait_until

START = (
    "import sys; from coffer_common import spawn; from coffer_common.paths import Home; "
    "print(spawn.detect_or_spawn(Home.from_env()).info.pid)"
)
HOLD = (
    "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); "
    "sys.stdin.read()"
)


@pytest.fixture
def standin(make_daemon: Callable[..., Daemon]) -> StandIn:
    return StandIn(make_daemon)


def home_of(standin: StandIn) -> Home:
    return Home.from_env(standin.env)


def starter(standin: StandIn) -> subprocess.Popen[str]:
    """A program that looks for the daemon as the CLI does; prints its pid."""
    command = [sys.executable, "-c", START]
    return subprocess.Popen(command, env=standin.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def daemons(standin: StandIn) -> list[psutil.Process]:
    return procs.titled(standin.home, "coffer-daemon")


def foreground(standin: StandIn, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([DAEMON, *flags], env=standin.env, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.fault
async def test_twenty_starters_at_once_end_with_one_daemon_and_all_are_answered(standin: StandIn) -> None:
    """D03: any number of starters at one instant; here ten shims and ten programs."""
    programs = [starter(standin) for _ in range(10)]

    async def shim() -> str:
        async with standin.shim() as one:
            return str((await one.initialize())["result"]["serverInfo"]["version"])

    answers = await asyncio.gather(*(shim() for _ in range(10)))
    outputs = [await asyncio.to_thread(p.communicate) for p in programs]
    assert [err for _, err in outputs] == [""] * 10
    assert {*answers, *(out.strip() for out, _ in outputs)} == {str(standin.pid)}
    assert len(daemons(standin)) == 1


@pytest.mark.fault
async def test_a_starter_killed_in_the_middle_leaves_one_daemon(standin: StandIn) -> None:
    """The daemon inherits the lock: the others wait for it, whoever started it."""
    standin.script(delay=1.0)
    first = starter(standin)
    await wait_for(lambda: daemons(standin), what="the daemon's title")
    others = [starter(standin) for _ in range(8)]
    first.kill()
    first.communicate()
    outputs = [await asyncio.to_thread(p.communicate) for p in others]
    assert {out.strip() for out, _ in outputs} == {str(standin.pid)}
    assert len(daemons(standin)) == 1


@pytest.mark.fault
async def test_a_starter_killed_before_it_starts_anything_blocks_nobody(standin: StandIn) -> None:
    """D01: a lock file without a holder is no lock."""
    home = home_of(standin)
    home.ensure()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(home.daemon_lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    waiting = starter(standin)
    holder.kill()
    holder.communicate()
    out, err = await asyncio.to_thread(waiting.communicate)
    assert (out.strip(), err) == (str(standin.pid), "")


async def test_the_daemon_outlives_its_starter_and_is_nobody_s_child(standin: StandIn) -> None:
    program = starter(standin)
    program.communicate()
    process = psutil.Process(standin.pid)
    assert process.ppid() != program.pid
    assert os.getsid(process.pid) != os.getsid(0)
    assert process.cwd() == str(standin.home)
    assert process.cmdline()[0] == "coffer-daemon"
    assert Path(f"/proc/{process.pid}/comm").read_text().strip() == "coffer-daemon"
    assert process.environ()["COFFER_HOME"] == str(standin.home)
    assert os.readlink(f"/proc/{process.pid}/fd/0") == "/dev/null"


async def test_files_are_private(standin: StandIn) -> None:
    starter(standin).communicate()
    home = home_of(standin)
    for folder in (home.root, home.run, home.logs, home.upstream_pids, home.backups):
        assert folder.stat().st_mode & 0o777 == 0o700, folder
    for file in (home.daemon_json, home.daemon_log, home.daemon_alive, home.daemon_lock, home.api_sock, home.mcp_sock):
        assert file.stat().st_mode & 0o777 == 0o600, file


@pytest.mark.fault
async def test_token_and_port_survive_a_stop_and_a_crash(standin: StandIn) -> None:
    home = home_of(standin)
    home.ensure()
    port = port_range()[7]
    last = {
        "version": 1,
        "pid": 2**22 + 1,
        "port": port,
        "token": "k" * 32,
        "started_at": "",
        "binary_path": "",
    }
    home.daemon_json.write_text(json.dumps(last))
    seen = {(port, "k" * 32)}
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
        starter(standin).communicate()
        info = standin.daemon.info
        seen.add((info["port"], info["token"]))
        os.kill(info["pid"], number)
        standin.wait_end(info["pid"])
    assert len(seen) == 1


async def test_a_successor_waits_for_a_daemon_that_is_still_shutting_down(standin: StandIn) -> None:
    """D03: also right while the last daemon is shutting down; the losers neither log errors nor exit."""
    standin.script(linger=1.0)
    starter(standin).communicate()
    first = standin.pid
    os.kill(first, signal.SIGTERM)
    await wait_for(lambda: not home_of(standin).mcp_sock.exists())
    programs = [starter(standin) for _ in range(4)]
    outputs = [await asyncio.to_thread(p.communicate) for p in programs]
    assert {out.strip() for out, _ in outputs} == {str(standin.pid)}
    assert standin.pid != first
    assert not procs.alive(first)


async def test_an_unreadable_daemon_json_is_kept_as_a_copy_and_the_start_succeeds(standin: StandIn) -> None:
    """D01: half-written JSON, stale sockets: the next start succeeds by itself and logs what it repaired."""
    home = home_of(standin)
    home.ensure()
    home.daemon_json.write_text('{"version": 1, "pid": 12')
    home.mcp_sock.touch()
    out, err = starter(standin).communicate()
    assert (out.strip(), err) == (str(standin.pid), "")
    assert (home.backups / "daemon.json.bad-0").read_text() == '{"version": 1, "pid": 12'
    logged = home.daemon_log.read_text()
    assert "written anew" in logged
    assert "replaced a socket" in logged


async def test_a_daemon_json_of_another_release_keeps_port_and_token(standin: StandIn) -> None:
    home = home_of(standin)
    home.ensure()
    token = "t" * 32
    home.daemon_json.write_text(
        json.dumps({"version": 2, "pid": {"new": "shape"}, "port": port_range()[9], "token": token})
    )
    starter(standin).communicate()
    assert (standin.daemon.info["version"], standin.daemon.token) == (1, token)


async def test_a_start_that_fails_says_why_and_where_to_look(standin: StandIn) -> None:
    standin.script(fail="the store is of next year")
    _, err = starter(standin).communicate()
    assert "the store is of next year" in err
    assert "daemon.log" in err
    await wait_for(lambda: not daemons(standin))
    standin.script()
    assert starter(standin).communicate()[0].strip() == str(standin.pid)


async def test_a_start_that_dies_without_a_word_shows_its_last_line(standin: StandIn) -> None:
    (standin.home / "user").mkdir(exist_ok=True)
    broken = standin.home / "broken" / "coffer_supervisor"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('half an upgrade')")
    standin.env["PYTHONPATH"] = str(broken.parent)
    assert "half an upgrade" in starter(standin).communicate()[1]


async def test_all_ports_taken_is_a_clear_error_and_a_non_zero_exit(standin: StandIn) -> None:
    import socket

    held = []
    ports = port_range()
    for port in ports:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what an earlier test left in TIME_WAIT is free
        try:
            sock.bind(("127.0.0.1", port))
            sock.listen()
        except OSError:  # somebody else holds it: taken all the same
            sock.close()
            continue
        held.append(sock)
    try:
        done = foreground(standin)
        assert done.returncode == 1
        assert f"{ports[0]} to {ports[-1]}" in done.stderr
        assert f"{ports[0]} to {ports[-1]}" in starter(standin).communicate()[1]
    finally:
        for sock in held:
            sock.close()


async def test_a_second_daemon_by_hand_is_refused_with_exit_code_five(standin: StandIn) -> None:
    starter(standin).communicate()
    done = foreground(standin, "--foreground")
    assert done.returncode == 5
    assert f"already running: pid {standin.pid}" in done.stderr
    assert len(daemons(standin)) == 1


async def test_a_daemon_by_hand_holds_the_start_lock_until_it_is_ready(standin: StandIn) -> None:
    standin.script(delay=0.5)
    process = subprocess.Popen([DAEMON], env=standin.env, stderr=subprocess.PIPE)
    standin.daemon.process = process
    await wait_for(home_of(standin).daemon_json.exists)
    assert flocks.try_lock(home_of(standin).daemon_lock) is None
    assert starter(standin).communicate()[0].strip() == str(process.pid)
    await wait_for(lambda: lock_is_free(home_of(standin).daemon_lock))
    assert standin.daemon.stop() == 0
    assert process.stderr is not None
    process.stderr.close()


def lock_is_free(path: Path) -> bool:
    held = flocks.try_lock(path)
    if held is None:
        return False
    held.release()
    return True


async def test_detect_names_the_step_that_failed(standin: StandIn) -> None:
    """The six steps, each with what makes it fail."""
    home = home_of(standin)
    assert discovery.detect(home) == discovery.NotFound("missing")
    starter(standin).communicate()
    info = discovery.read_info(home)
    assert isinstance(info, discovery.DaemonInfo)
    running = discovery.detect(home)
    assert isinstance(running, discovery.Running)
    assert running.home.mcp_sock == home.mcp_sock
    assert discovery.detect(home, ignore_pid=info.pid) == discovery.NotFound("pid_gone")

    def why(**changes: object) -> str:
        record = json.loads(home.daemon_json.read_text()) | changes
        other = Home(standin.home / "other", home.run)
        other.root.mkdir(exist_ok=True)
        other.daemon_json.write_text(json.dumps(record))
        found = discovery.detect(other)
        assert isinstance(found, discovery.NotFound)
        return found.why

    assert why(pid=os.getpid()) == "pid_reused"
    assert why(pid=2**22 + 1) == "pid_gone"
    assert why(pid=-1) == "invalid"
    assert why(version=9) == "other_version"
    assert why(port=1) == "refused"
    assert why(run_dir="/nonexistent") == "socket_gone"
    zombie = subprocess.Popen(["true"])
    wait_until(lambda: psutil.Process(zombie.pid).status() == psutil.STATUS_ZOMBIE)
    assert why(pid=zombie.pid) == "pid_gone"
    zombie.wait()


async def test_without_spawn_nothing_is_started_or_made(standin: StandIn) -> None:
    home = Home(standin.home / "none", standin.home / "none" / "run")
    with pytest.raises(discovery.NotRunning, match="coffer daemon start"):
        spawn.detect_or_spawn(home, spawn=False)
    assert not home.root.exists()


async def test_a_start_lock_that_is_never_released_ends_the_wait(standin: StandIn) -> None:
    home = home_of(standin)
    home.ensure()
    with flocks.lock(home.daemon_lock, 1), pytest.raises(discovery.DiscoveryError, match="does not end"):
        spawn.detect_or_spawn(home, timeout=0.2)
    await wait_for(lambda: lock_is_free(home.daemon_lock))  # the wait that was given up keeps nothing
