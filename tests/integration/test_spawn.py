"""Starting, feeding and ending upstream processes, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import secrets
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from coffer_common import pidrecord
from coffer_common.pidrecord import COOKIE_VARIABLE
from coffer_worker.process.child import Child, ChildGone
from coffer_worker.process.environ import SpawnError
from coffer_worker.process.spawn import NICE, Launch, Spawner
from coffer_worker.process.tree import TreeReader
from tests.fixtures.worker_targets import MARK, Quiet
from tests.support.fork_supervisor import alive, carrying, marked
from tests.support.wait import BOUND, wait_for

# libuv opens a signal pipe with a process's first loop and keeps it: not a leak of any one test.
uvloop.new_event_loop().close()

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on either loop."""

    def go(work: Coroutine[Any, Any, None]) -> None:
        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(work, BOUND))

    return go


@contextlib.contextmanager
def descriptors_left(free: int) -> Iterator[None]:
    """This process may open so many files more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(fd) for fd in os.listdir("/proc/self/fd")) + 20, hard))
    taken: list[int] = []
    try:
        while True:
            try:
                taken.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                break
        for _ in range(free):
            os.close(taken.pop())
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def sh(script: str, **options: Any) -> Launch:
    return Launch("sh", ["-c", script], **options)


def test_bytes_go_in_and_come_out(run: Run, tmp_path: Path) -> None:
    """Both outputs are passed on to the last byte, and the exit code is told; the record lives as long as the
    process."""

    async def work() -> None:
        heard, spawner = Quiet(), Spawner("up", tmp_path)
        child = await spawner.spawn(sh("cat; echo bye >&2; exit 3"), heard)
        ((path, record),) = pidrecord.read_all(tmp_path)
        assert record is not None
        assert (record.pid, record.server, record.worker_pid) == (child.pid, "up", os.getpid())
        assert abs(record.create_time - psutil.Process(child.pid).create_time()) < 0.01
        assert record.cookie == child.cookie
        assert path.stat().st_mode & 0o777 == 0o600
        assert spawner.pids == [child.pid]
        child.write(b"hello ")
        child.write(b"there")
        child.close_stdin()
        assert await child.exited == 3
        await child.cleaned
        await asyncio.wait([child.stdout_closed])
        assert (heard.out, heard.err, heard.codes, heard.closed) == (b"hello there", b"bye\n", [3], True)
        assert spawner.pids == []
        assert list(pidrecord.read_all(tmp_path)) == []
        with pytest.raises(ChildGone, match="'up'"):
            child.write(b"more")

    run(work())


def test_megabytes_through_both_pipes_with_backpressure(run: Run, tmp_path: Path) -> None:
    """A process that does not read leaves its input queued and visible; `drained` tells when it has taken it. Its
    stderr is drained meanwhile, however much it writes there."""

    async def work() -> None:
        heard = Quiet()
        noise = "head -c 300000 /dev/zero >&2; read go; exec cat"
        child = await Spawner("up", tmp_path).spawn(sh(noise), heard)
        payload = secrets.token_bytes(3_000_000)
        child.write(payload)
        assert child.queued > 2_000_000
        child.write(b"")
        await wait_for(lambda: len(heard.err) == 300_000)
        await wait_for(lambda: heard.drains > 0 or child.queued == 0)
        child.close_stdin()
        assert await child.exited == 0
        await child.cleaned
        assert heard.out == payload[payload.index(b"\n") + 1 :]

    run(work())


def test_output_can_be_held_back(run: Run, tmp_path: Path) -> None:
    """While its output is paused a flooding process blocks instead of filling our memory."""

    async def work() -> None:
        heard = Quiet()
        child = await Spawner("up", tmp_path).spawn(sh("head -c 5000000 /dev/zero"), heard)
        child.pause_output()
        held = len(heard.out)
        reader = TreeReader()
        await wait_for(lambda: any("head" in row.command and row.state == "sleeping" for row in reader.read(child.pid)))
        assert len(heard.out) <= held + 65536
        child.resume_output()
        await child.exited
        await child.cleaned
        assert len(heard.out) == 5_000_000

    run(work())


@pytest.mark.parametrize(
    ("script", "how", "code"),
    [
        ("read line; exit 0", "ended at end of input", 0),
        ("exec sleep 600", "ended on SIGTERM", -15),
        ("trap '' TERM; while :; do sleep 600; done", "killed", -9),
        ("kill -STOP $$; exec sleep 600", "ended on SIGTERM", -15),
    ],
)
def test_stop_escalates(run: Run, tmp_path: Path, script: str, how: str, code: int) -> None:
    """P04. End of input, then SIGTERM, then SIGKILL; a stopped process is no exception. Two stops join."""

    async def work() -> None:
        heard, spawner = Quiet(), Spawner("up", tmp_path)
        child = await spawner.spawn(sh("echo up; " + script), heard)
        await heard.spoke.wait()
        assert await asyncio.gather(child.stop(0.5, "test"), child.stop(9, "test")) == [how, how]
        assert heard.codes == [code]
        assert not carrying(COOKIE_VARIABLE, child.cookie)
        assert await child.stop(0.5, "test") == how

    run(work())


def test_the_whole_tree_goes(run: Run, tmp_path: Path) -> None:
    """What the process started goes with it: by descent and by session, while the process lives and after."""

    async def work() -> None:
        for ending in ("exec sleep 602", "exit 1"):
            heard = Quiet()
            child = await Spawner("up", tmp_path).spawn(sh(f"sleep 600 & echo up; {ending}"), heard)
            await heard.spoke.wait()
            await child.stop(0.2, "test")
            assert not carrying(COOKIE_VARIABLE, child.cookie)

    run(work())


def test_stop_all_stops_at_the_same_time(run: Run, tmp_path: Path) -> None:
    """Many stubborn processes do not add up their graces."""

    async def work() -> None:
        spawner = Spawner("up", tmp_path)
        heard = [Quiet() for _ in range(5)]
        children = [await spawner.spawn(sh("trap '' TERM; echo up; while :; do sleep 600; done"), one) for one in heard]
        await asyncio.gather(*(one.spoke.wait() for one in heard))
        await spawner.stop_all(0.3, "test")
        assert spawner.pids == []
        assert not any(alive(child.pid) for child in children)

    run(work())


def test_closed_stdout_is_told_apart_from_the_end(run: Run, tmp_path: Path) -> None:
    """A process may close its standard output and live on."""

    async def work() -> None:
        heard = Quiet()
        child = await Spawner("up", tmp_path).spawn(sh("echo last; exec >&-; exec sleep 600"), heard)
        await child.stdout_closed
        assert (heard.out, heard.closed, child.exited.done()) == (b"last\n", True, False)
        await child.stop(0.2, "test")

    run(work())


def test_a_cancelled_stop_goes_on(run: Run, tmp_path: Path) -> None:
    """Whoever waits for a stop may give up; the process does not get away."""

    async def work() -> None:
        child = await Spawner("up", tmp_path).spawn(sh("exec sleep 600"), Quiet())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await child.stop(0.5, "test")
        await child.cleaned
        assert not alive(child.pid)

    run(work())


def test_a_session_an_environment_and_a_directory_of_its_own(run: Run, tmp_path: Path) -> None:
    """K03, P16, P17. A session of its own, only the allow-list and the server's own variables, home as directory."""

    async def work() -> None:
        os.environ["COFFER_TEST_SECRET"] = "marker"
        try:
            heard = Quiet()
            launch = sh("env; echo CWD=$(pwd); echo SID=$(ps -o sid= -p $$); echo PID=$$", env={"A": "", "B": "b=c"})
            child = await Spawner("up", tmp_path).spawn(launch, heard)
            await child.cleaned
        finally:
            del os.environ["COFFER_TEST_SECRET"]
        found = dict(line.split("=", 1) for line in heard.out.decode().splitlines())
        assert (found["A"], found["B"], found["HOME"]) == ("", "b=c", os.environ["HOME"])
        assert found["PATH"] == os.environ["PATH"]
        assert found["CWD"] == os.path.realpath(os.environ["HOME"])
        assert found[COOKIE_VARIABLE] == child.cookie
        assert found["SID"].strip() == found["PID"] == str(child.pid)
        assert not {"COFFER_TEST_SECRET", "COFFER_HOME"} & found.keys()
        assert "b=c" not in repr(launch)

    run(work())


def test_a_project_is_where_it_runs_not_where_its_command_is_looked_for(run: Run, tmp_path: Path) -> None:
    """P17: a relative command is the configured directory's, so that no project can put another in its place."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
        (folder / "tool").write_text(f"#!/bin/sh\necho {folder.name} $(pwd)\n")
        (folder / "tool").chmod(0o755)

    async def work() -> None:
        heard = Quiet()
        child = await Spawner("up", tmp_path).spawn(Launch("./tool", cwd=str(ours), project=str(theirs)), heard)
        await child.cleaned
        assert heard.out.decode().split() == ["ours", os.path.realpath(theirs)]

    run(work())


def test_it_comes_after_coffer_where_the_cpu_is_short(run: Run, tmp_path: Path) -> None:
    """The upstream and what it starts have a lower priority than the worker, between sessions too."""

    async def work() -> None:
        child = await Spawner("up", tmp_path).spawn(sh("sleep 600 & echo; wait"), Quiet())
        family = await wait_for(lambda: psutil.Process(child.pid).children())
        own = psutil.Process().nice()
        assert {psutil.Process(child.pid).nice(), family[0].nice()} == {min(19, own + NICE)}
        group = Path(f"/proc/{child.pid}/autogroup")
        if group.exists() and "nice" in group.read_text():
            await wait_for(lambda: group.read_text().split()[-1] == str(min(19, own + NICE)))
        await child.stop(0, "the test is over")

    run(work())


def test_what_cannot_be_started_says_why_and_leaves_nothing(run: Run, tmp_path: Path) -> None:
    """P09. Not found, not executable, no such directory, a missing interpreter, an argument that cannot be: each has
    its own words, and neither process, record nor descriptor is left."""
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    folder = tmp_path / "pids"
    folder.mkdir()

    async def work() -> None:
        spawner = Spawner("up", folder)
        for launch, reason in [
            (Launch("no-such-command"), "command_not_found"),
            (Launch("/etc/passwd"), "not_executable"),
            (Launch("sh", cwd="/no/such/directory"), "bad_cwd"),
            (Launch(str(broken)), "spawn_failed"),
            (Launch("sh", ["a\0b"]), "spawn_failed"),
        ]:
            with pytest.raises(SpawnError) as caught:
                await spawner.spawn(launch, Quiet())
            assert caught.value.reason == reason
        assert list(folder.iterdir()) == []

    run(work())


def test_no_record_is_no_reason_not_to_start(run: Run, tmp_path: Path) -> None:
    """The folder of records may be full or missing: the upstream starts all the same."""

    async def work() -> None:
        child = await Spawner("up", tmp_path / "missing").spawn(sh("exit 0"), Quiet())
        assert await child.exited == 0
        await child.cleaned

    run(work())


def test_descriptors_and_zombies_do_not_creep_up(run: Run, tmp_path: Path) -> None:
    """P05, P15. Thirty starts and crashes leave no descriptor and no defunct process."""

    async def work() -> None:
        spawner = Spawner("up", tmp_path)

        async def once() -> Child:
            child = await spawner.spawn(sh("exit 1"), Quiet())
            await child.cleaned
            return child

        await once()
        before = len(os.listdir("/proc/self/fd"))
        pids = [(await once()).pid for _ in range(30)]
        await wait_for(lambda: len(os.listdir("/proc/self/fd")) <= before)
        assert not [pid for pid in pids if psutil.pid_exists(pid)]

    run(work())


def test_the_tree_is_shown(run: Run, tmp_path: Path) -> None:
    """What `ps` shows of an upstream: parents before children, state, memory, CPU since the last look."""

    async def work() -> None:
        heard = Quiet()
        child = await Spawner("up", tmp_path).spawn(
            sh("sleep 600 & echo up; kill -STOP $!; while :; do :; done"), heard
        )
        await heard.spoke.wait()
        reader = TreeReader()
        await wait_for(lambda: [row.state for row in reader.read(child.pid)][1:] == ["stopped"])
        await wait_for(lambda: reader.read(child.pid)[0].cpu_percent > 1)
        root, below = reader.read(child.pid)
        assert (root.pid, root.depth, below.ppid, below.depth) == (child.pid, 0, child.pid, 1)
        assert root.rss > 0
        assert root.command.startswith("/") and "while" in root.command
        await child.stop(0, "test")
        assert reader.read(child.pid) == []

    run(work())


def test_a_cancelled_start_leaves_nothing(run: Run, tmp_path: Path) -> None:
    """Cancelled between the start of the process and the connection of its pipes."""

    async def work() -> None:
        spawner, mark = Spawner("up", tmp_path), secrets.token_hex(8)
        task = asyncio.ensure_future(spawner.spawn(sh("sleep 600 & exec sleep 601", env={MARK: mark}), Quiet()))
        await asyncio.sleep(0)
        assert len(spawner.pids) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert spawner.pids == []
        assert not marked(mark)
        assert list(pidrecord.read_all(tmp_path)) == []

    run(work())


def test_where_there_are_no_pidfds_a_thread_waits(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.delattr(os, "pidfd_open")

    async def work() -> None:
        heard, spawner = Quiet(), Spawner("up", tmp_path)
        child = await spawner.spawn(sh("sleep 600 & echo up; exec sleep 600"), heard)
        await heard.spoke.wait()
        assert await child.stop(0.2, "test") == "ended on SIGTERM"
        assert heard.codes == [-15]

    run(work())


def test_too_many_open_files_is_said_and_survived(run: Run, tmp_path: Path) -> None:
    """P15. At the limit of descriptors a start fails with the reason; the next one works again."""

    async def work() -> None:
        spawner = Spawner("up", tmp_path)
        failures: list[str] = []
        for free in range(12):
            with descriptors_left(free):
                try:
                    child = await spawner.spawn(sh("exec sleep 600"), Quiet())
                except SpawnError as error:
                    failures.append(str(error))
                else:
                    await child.stop(0.1, "test")
            await wait_for(lambda: not spawner.pids)
        assert list(pidrecord.read_all(tmp_path)) == []
        assert len(failures) < 12
        assert all("Too many open files" in text for text in failures)

    run(work())


def test_pipes_that_cannot_be_connected_leave_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop refuses: the process is killed, and the reason told."""

    async def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "epoll is full")

    async def work() -> None:
        spawner, mark = Spawner("up", tmp_path), secrets.token_hex(8)
        monkeypatch.setattr(Child, "attach", refuse)
        with pytest.raises(SpawnError, match="epoll is full"):
            await spawner.spawn(sh("sleep 600 & exec sleep 601", env={MARK: mark}), Quiet())
        assert not marked(mark)
        await wait_for(lambda: not spawner.pids)
        assert list(pidrecord.read_all(tmp_path)) == []

    run(work())
