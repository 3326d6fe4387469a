"""What an upstream's processes take of the machine, all they started included.

Owns the measuring alone. Blocks for some milliseconds (``/proc``): call it in a thread.
"""

import os
from collections.abc import Mapping

import psutil

from coffer_common.pidrecord import COOKIE_VARIABLE
from coffer_common.proctree import environment_value, snapshot
from coffer_worker.core.caps import Usage
from coffer_worker.process.family import family


def measure(pids: Mapping[int, int]) -> list[Usage]:
    """``pids``: connection number -> its own process. One that has ended takes nothing."""
    procs = snapshot()
    found = []
    for number, pid in pids.items():
        cookie = environment_value(pid, COOKIE_VARIABLE)
        others = [other for other in pids.values() if other != pid]

        def marked(orphan: int, cookie: str | None = cookie) -> bool:
            return bool(cookie) and environment_value(orphan, COOKIE_VARIABLE) == cookie

        living = [proc.pid for proc in family(os.getpid(), pid, others, procs, marked) if not proc.dead]
        found.append(Usage(number, len(living), sum(map(_rss, living))))
    return found


def _rss(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except (psutil.Error, OSError):
        return 0
