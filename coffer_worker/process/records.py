"""The worker's side of PID records: written around each start, removed when all of it is gone.

Owns what goes into a record. Never fails an upstream's start: without a record only the sweep after a
crash of everything is poorer, which is worth a warning and no more.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import psutil

from coffer_common import pidrecord
from coffer_common.pidrecord import PidRecord

log = logging.getLogger(__name__)


class Record:
    """The record of one upstream process, from just before its start to its end."""

    def __init__(self, folder: Path, server: str, cookie: str, cmdline: Sequence[str]) -> None:
        me = os.getpid()
        self._folder = folder
        self._value = PidRecord(
            server=server,
            cookie=cookie,
            cmdline=tuple(cmdline),
            worker_pid=me,
            worker_create_time=_create_time(me),
        )
        self._path = pidrecord.path_of(folder, self._value)
        # Before the start: should everything be killed in between, the cookie finds the process.
        self._write(self._value)

    def started(self, pid: int) -> None:
        """The process runs under that PID."""
        value = self._value
        self._write(
            PidRecord(
                server=value.server,
                cookie=value.cookie,
                pid=pid,
                create_time=_create_time(pid),
                cmdline=value.cmdline,
                worker_pid=value.worker_pid,
                worker_create_time=value.worker_create_time,
            )
        )

    def ended(self) -> None:
        """Nothing of it lives any more."""
        pidrecord.remove(self._path)

    def _write(self, value: PidRecord) -> None:
        try:
            pidrecord.write(self._folder, value)
        except OSError as error:
            log.warning("cannot write the PID record of '%s': %s", value.server, error)


def _create_time(pid: int) -> float:
    try:
        return float(psutil.Process(pid).create_time())
    except (psutil.Error, OSError):
        return 0.0
