"""Ends what a crash of everything left behind, from the PID records, before anything is started.

Owns the proof that a process is the one recorded: a reused PID is left alone. Runs only while this
daemon holds the lock that makes it single, so that no record belongs to a living worker; later on only
for a worker that has ended without cleaning up. Blocks (reads ``/proc``, waits for exits): call it in a thread.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from coffer_common import pidrecord
from coffer_common.pidrecord import COOKIE_VARIABLE, PidRecord
from coffer_common.proctree import Proc, descendants, environment_value, kill_until_gone, snapshot

log = logging.getLogger(__name__)

_CREATE_TIME_SLACK: Final = 2.0
"""Seconds. psutil adds ticks since boot to the boot time, which a clock correction moves."""
_KILL_SECONDS: Final = 5.0
_WORKER_MARK: Final = "coffer-worker:"


@dataclass(frozen=True, slots=True)
class Swept:
    """One record dealt with: the upstream, and the PIDs that were killed for it."""

    server: str
    pids: tuple[int, ...]


def sweep(folder: Path, *, worker: int | None = None) -> list[Swept]:
    """Kill what the records of ``folder`` prove to be left over, with all below it; remove the records.

    ``worker``: only the records that a worker of that PID wrote, which has ended; for while others live. A record
    whose processes do not die in time is kept for the next start. A file that is no record is removed. Returns what
    was killed, a row for each record that had living processes.
    """
    swept: list[Swept] = []
    for path, record in pidrecord.read_all(folder):
        if worker is not None and (record is None or record.worker_pid != worker or _is_worker(record)):
            continue
        if record is None:
            log.warning("removing %s: it is no PID record", path)
            pidrecord.remove(path)
            continue
        killed: set[int] = set()

        def left_over(record: PidRecord = record, killed: set[int] = killed) -> list[Proc]:
            found = leftovers(record, snapshot())
            killed.update(proc.pid for proc in found if not proc.dead)
            return found

        alive = kill_until_gone(left_over, seconds=_KILL_SECONDS)
        if killed:
            log.warning("swept upstream '%s', left over from a crash: killed %s", record.server, sorted(killed))
            swept.append(Swept(record.server, tuple(sorted(killed))))
        if alive:
            log.error("processes of upstream '%s' do not die: %s", record.server, [proc.pid for proc in alive])
        else:
            pidrecord.remove(path)
    return swept


def leftovers(record: PidRecord, procs: Mapping[int, Proc]) -> list[Proc]:
    """The processes that ``record`` proves to be ours, with all below them; never this process itself."""
    roots = {pid for pid in procs if environment_value(pid, COOKIE_VARIABLE) == record.cookie}
    if _is_recorded(record.pid, record.create_time, record):
        roots.add(record.pid)
    if _is_worker(record):
        roots.add(record.worker_pid)
    me = os.getpid()
    found: dict[int, Proc] = {}
    for pid in roots - {me}:
        root = procs.get(pid)
        for proc in (*([root] if root else []), *descendants(pid, procs, spare=(me,))):
            found[proc.pid] = proc
    return list(found.values())


def _is_recorded(pid: int, create_time: float, record: PidRecord) -> bool:
    """Confirmed by creation time and, as the cookie is looked for anyway, the very command line."""
    process = _process_of(pid, create_time)
    if process is None:
        return False
    try:
        return tuple(process.cmdline()) == record.cmdline
    except (psutil.Error, OSError):
        return False


def _is_worker(record: PidRecord) -> bool:
    """Whether the recorded worker still lives (it was stopped when all else was killed)."""
    process = _process_of(record.worker_pid, record.worker_create_time)
    if process is None:
        return False
    try:
        return any(_WORKER_MARK in part for part in process.cmdline())
    except (psutil.Error, OSError):
        return False


def _process_of(pid: int, create_time: float) -> psutil.Process | None:
    if pid <= 0 or create_time <= 0:
        return None
    try:
        process = psutil.Process(pid)
        if abs(process.create_time() - create_time) <= _CREATE_TIME_SLACK:
            return process
    except (psutil.Error, OSError, ValueError):
        return None
    return None
