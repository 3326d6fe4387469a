"""Processes as the kernel shows them: who descends from whom, and killing a set of them for certain.

Owns reading ``/proc`` (or ``ps`` where there is none) and the kill that cannot hit a reused PID. Never
decides which processes deserve it, never reaps: zombies are left to their parent.
"""

import errno
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

_DEAD_STATES: Final = frozenset("ZX")
_HAS_PROC: Final = sys.platform.startswith("linux")
_PS: Final = "/bin/ps"
_RESCAN_SECONDS: Final = 1.0


class Proc(NamedTuple):
    """One process. ``start`` (clock ticks since boot) and ``pid`` together are its identity.

    ``state`` is the kernel's letter (R, S, D, T stopped, Z zombie, ...). Where there is no ``/proc``,
    ``start`` is 0 and ``session`` is the process group.
    """

    pid: int
    ppid: int
    group: int
    session: int
    state: str
    start: int
    threads: int = 1

    @property
    def dead(self) -> bool:
        """Already exited, waiting for its parent (not one whose main thread alone has ended)."""
        return self.state in _DEAD_STATES and self.threads <= 1


def parse_stat(text: str) -> Proc:
    """One line of ``/proc/PID/stat``. The name in brackets may itself hold brackets and spaces."""
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    pid = int(head.split(" ", 1)[0])
    return Proc(pid, int(fields[1]), int(fields[2]), int(fields[3]), fields[0], int(fields[19]), int(fields[17]))


def parse_ps(text: str) -> dict[int, Proc]:
    """The output of ``ps -axo pid=,ppid=,pgid=,state=``, a line a process."""
    found: dict[int, Proc] = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) == 4:
            pid, ppid, group = (int(field) for field in fields[:3])
            found[pid] = Proc(pid, ppid, group, group, fields[3][0], 0)
    return found


def read_one(pid: int) -> Proc | None:
    """The process with that PID now, or None."""
    if not _HAS_PROC:
        return snapshot().get(pid)
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return parse_stat(file.read())
    except OSError:
        return None


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped (SIGSTOP, SIGTSTP): it will do nothing until it is continued."""
    found = read_one(pid)
    return found is not None and found.state == "T"


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits only for its parent to hear of it."""
    found = read_one(pid)
    return found is None or found.dead


def snapshot() -> dict[int, Proc]:
    """Every process by PID. A process that comes or goes meanwhile may be missing."""
    if not _HAS_PROC:
        command = [_PS, "-axo", "pid=,ppid=,pgid=,state="]
        return parse_ps(subprocess.run(command, check=False, capture_output=True, text=True).stdout)
    found: dict[int, Proc] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (proc := read_one(int(name))) is not None:
            found[proc.pid] = proc
    return found


def children(pid: int, procs: Mapping[int, Proc]) -> list[Proc]:
    """The direct children of one process, zombies included."""
    return [proc for proc in procs.values() if proc.ppid == pid]


def descendants(root: int, procs: Mapping[int, Proc], *, spare: Collection[int] = ()) -> list[Proc]:
    """All below ``root``, parents before children, zombies included, without ``root`` itself.

    A PID in ``spare`` is left out with everything below it.
    """
    below: dict[int, list[Proc]] = {}
    for proc in procs.values():
        below.setdefault(proc.ppid, []).append(proc)
    found: list[Proc] = []
    seen = {root, *spare}
    queue = [root]
    while queue:
        for proc in below.get(queue.pop(0), ()):
            if proc.pid not in seen:
                seen.add(proc.pid)
                found.append(proc)
                queue.append(proc.pid)
    return found


def environment_block(pid: int) -> bytes | None:
    """A process's environment as it was at its start, ``NAME=value`` ended by NUL each; None where
    unreadable. Empty for a moment while the process executes another program."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return None


def environment_value(pid: int, name: str) -> str | None:
    """One variable of a process's environment as it was at its start; None where absent or unreadable."""
    block = environment_block(pid)
    if not block:
        return None
    prefix = os.fsencode(name) + b"="
    for item in block.split(b"\0"):
        if item.startswith(prefix):
            return os.fsdecode(item[len(prefix) :])
    return None


def send(proc: Proc, number: int) -> int | None:
    """Signal exactly that process, never a later one with its PID.

    Returns a pidfd that becomes readable when it has exited (the caller closes it), or None when the
    process is gone already or the system has no pidfds.
    """
    if not hasattr(os, "pidfd_open"):
        _plain_kill(proc.pid, number)
        return None
    try:
        fd = os.pidfd_open(proc.pid)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            # Out of descriptors: better a kill without proof of identity than a process that escapes.
            _plain_kill(proc.pid, number)
        return None
    now = read_one(proc.pid)
    if now is None or now.start != proc.start or now.dead:
        os.close(fd)
        return None
    try:
        signal.pidfd_send_signal(fd, number)
    except OSError:
        os.close(fd)
        return None
    return fd


def kill_until_gone(
    find: Callable[[], Iterable[Proc]],
    *,
    seconds: float,
    between: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Proc]:
    """SIGKILL what ``find`` returns, again and again, until it twice returns nothing that lives.

    A process may fork between being found and being killed, and its orphans move to another parent: so
    each round looks anew; and a look can miss a process whose parent ends while it is taken, so one empty
    look proves nothing. ``between`` runs before each round (a parent reaps there). Blocks for at
    most ``seconds``; returns those still alive then.
    """
    deadline = clock() + seconds
    empty_looks = 0
    while True:
        between()
        alive = [proc for proc in find() if not proc.dead]
        left = deadline - clock()
        empty_looks = 0 if alive else empty_looks + 1
        if empty_looks == 2 or left <= 0:
            return alive
        if not alive:
            continue
        waiting = [fd for proc in alive if (fd := send(proc, signal.SIGKILL)) is not None]
        try:
            _wait_exits(waiting, min(left, _RESCAN_SECONDS))
        finally:
            for fd in waiting:
                os.close(fd)


def _wait_exits(fds: list[int], seconds: float) -> None:
    if not fds:
        # All were gone at a second look, or the system has no pidfds: let the kernel settle.
        time.sleep(min(seconds, 0.02))
        return
    deadline = time.monotonic() + seconds
    for fd in fds:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        poller.poll(max(0.0, deadline - time.monotonic()) * 1000)


def _plain_kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return
