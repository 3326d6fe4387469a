"""Starts upstream processes and keeps the roster of those that live.

Owns how a process is started (own session, own environment, lower priority, three pipes, a cookie, a record) and the
reaping of orphans that come to this worker as their subreaper. Never decides when to start one.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from coffer_common.pidrecord import COOKIE_VARIABLE
from coffer_common.proctree import Proc, environment_block, snapshot
from coffer_common.subreaper import become_subreaper
from coffer_worker.process.child import Child, Listener
from coffer_worker.process.environ import (
    SpawnError,
    own_environment,
    resolve_command,
    upstream_environment,
    working_directory,
)
from coffer_worker.process.family import family
from coffer_worker.process.records import Record

log = logging.getLogger(__name__)

NICE: Final = 5
"""By how much an upstream, and all it starts, comes after Coffer's own processes where CPU is short."""
_PRIORITY_TRIES: Final = 20
_PRIORITY_PAUSE: Final = 0.15
_EXEC_LOOKS: Final = 20
_EXEC_PAUSE: Final = 0.002


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start an upstream. ``env`` has its secrets resolved already; ``repr`` leaves it out.

    ``path`` is the PATH to search and to hand on (None: this process's own); ``cwd`` may start with
    ``~`` and hold ``$NAME`` (None: the home directory). ``project``: the directory it runs in instead; a relative
    command is looked for in ``cwd`` all the same.
    """

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    path: str | None = None
    cwd: str | None = None
    project: str = ""


class Spawner:
    """The upstream processes of one worker.

    ``name`` is the upstream's; ``record_dir`` is ``upstream-pids/``.
    """

    def __init__(self, name: str, record_dir: Path) -> None:
        self._name = name
        self._record_dir = record_dir
        self._children: dict[int, Child] = {}

    @property
    def pids(self) -> list[int]:
        """The upstream processes that live, oldest first."""
        return list(self._children)

    async def spawn(self, launch: Launch, listener: Listener) -> Child:
        """Start one process; its output goes to ``listener`` from the first byte. Raises SpawnError."""
        cookie = secrets.token_hex(16)
        environment = upstream_environment(own_environment(), launch.path, launch.env, cookie)
        directory = working_directory(launch.cwd, environment)
        file = resolve_command(launch.command, environment["PATH"], directory, environment)
        record = Record(self._record_dir, self._name, cookie, (file, *launch.args))
        try:
            where = Path(launch.project) if launch.project else directory
            popen = self._popen([file, *launch.args], environment, where)
        except BaseException:
            record.ended()
            raise
        child = Child(popen, self._name, cookie, listener, lambda: self._kin(child))
        # On the roster before anything else runs: the reaping of orphans must know it as ours.
        self._children[child.pid] = child
        child.exited.add_done_callback(lambda _: self._forget(child))
        child.cleaned.add_done_callback(lambda _: record.ended())
        _give_way(child)
        record.started(popen.pid)
        try:
            child.watch()
            await self._attach(child)
        except OSError as error:
            child.abort()
            raise SpawnError("spawn_failed", f"cannot watch {file}: {error.strerror}") from error
        return child

    async def _attach(self, child: Child) -> None:
        attaching = asyncio.ensure_future(child.attach())
        try:
            await asyncio.shield(attaching)
        except asyncio.CancelledError:
            # Half a connection cannot be undone in order; a whole one can, and it takes a turn of the loop.
            await asyncio.wait([attaching])
            if attaching.exception() is None:
                await child.stop(0, "its start was cancelled")
            raise

    def adopt_orphans(self) -> None:
        """Become the subreaper of all below, where there is such a thing, and take every child's exit.

        For a worker's main thread only, once: any child that is not of this spawner is reaped too, so no
        other part of the process may start any.
        """
        loop = asyncio.get_running_loop()
        if not become_subreaper():
            return
        # Not the loop's own signal handling: uvloop keeps SIGCHLD to itself.
        signal.signal(signal.SIGCHLD, lambda *_: loop.call_soon_threadsafe(self._reap_all))
        self._reap_all()

    async def stop_all(self, grace: float, reason: str) -> None:
        """Stop every process at the same time; returns when all are gone."""
        await asyncio.gather(*(child.stop(grace, reason) for child in list(self._children.values())))

    def _popen(self, command: list[str], environment: dict[str, str], directory: Path) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=directory,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            # The file was there a moment ago: a script's interpreter is missing, or it is no program.
            raise SpawnError("spawn_failed", f"cannot execute {command[0]}: {error.strerror}") from None
        except ValueError as error:
            raise SpawnError("spawn_failed", f"cannot execute {command[0]}: {error}") from None

    def _kin(self, child: Child) -> list[Proc]:
        others = [pid for pid, other in list(self._children.items()) if other is not child]

        def is_marked(pid: int) -> bool:
            return _carries(pid, child.cookie)

        return family(os.getpid(), child.pid, others, snapshot(), is_marked)

    def _forget(self, child: Child) -> None:
        if self._children.get(child.pid) is child:
            del self._children[child.pid]

    def _reap_all(self) -> None:
        while True:
            try:
                # Look without taking: an exit of ours must go through its Child.
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            child = self._children.get(found.si_pid)
            if child is not None:
                child.reap()
            else:
                os.waitpid(found.si_pid, os.WNOHANG)


def _give_way(child: Child, tries: int = _PRIORITY_TRIES) -> None:
    """Let a process that was just started come after Coffer's own. Not by ``preexec_fn``, which costs a slow fork."""
    if child.exited.done():
        return
    nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICE)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpriority(os.PRIO_PGRP, child.pid, nice)
    try:
        # Where the kernel shares out by session, niceness counts within one only, and this is what counts between.
        with open(f"/proc/{child.pid}/autogroup", "w", encoding="ascii") as file:
            file.write(str(nice))
    except BlockingIOError:  # not so many changes at a time
        if tries:
            asyncio.get_running_loop().call_later(_PRIORITY_PAUSE, _give_way, child, tries - 1)
    except OSError:
        return


def _carries(pid: int, cookie: str) -> bool:
    """Whether that process has the cookie in its environment. One that is just executing another program
    shows none for a moment, so an empty one is looked at again. Blocks for some milliseconds: in a thread."""
    wanted = f"{COOKIE_VARIABLE}={cookie}".encode()
    for _ in range(_EXEC_LOOKS):
        block = environment_block(pid)
        if block is None:
            return False
        if block:
            return wanted in block.split(b"\0")
        time.sleep(_EXEC_PAUSE)
    return False
