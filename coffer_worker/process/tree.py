"""An upstream's process tree as an operator sees it: state, CPU, memory.

Owns reading it with psutil. Never signals anything. The command lines are the processes' own: whoever
shows them masks what may be secret.
"""

import time
from typing import Any, Final

import msgspec
import psutil

_FIELDS: Final = ("pid", "ppid", "status", "create_time", "cpu_times", "memory_info", "cmdline", "name")


class TreeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One process. ``depth`` 0 is the upstream's own; children follow their parent.

    ``state`` as psutil names it (``running``, ``sleeping``, ``stopped``, ``zombie``, ...); ``cpu_percent``
    since the last look, or since its start at the first (100 is one core); ``rss`` in bytes; ``seconds``
    since its start.
    """

    pid: int
    ppid: int
    depth: int
    state: str
    cpu_percent: float
    rss: int
    seconds: float
    command: str


class TreeReader:
    """Reads trees; remembers CPU times between two looks. Blocks briefly (``/proc``)."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, float], tuple[float, float]] = {}

    def read(self, pid: int) -> list[TreeRow]:
        """The tree below and with ``pid``; empty when it is gone."""
        try:
            root = psutil.Process(pid)
            below = root.children(recursive=True)
        except (psutil.Error, OSError):
            return []
        now = time.time()
        facts = {process.pid: found for process in (root, *below) if (found := _facts(process))}
        rows: list[TreeRow] = []
        queue = [(pid, 0)]
        while queue:
            current, depth = queue.pop()
            found = facts.pop(current, None)
            if found is None:
                continue
            rows.append(self._row(found, depth, now))
            queue += [(child, depth + 1) for child, other in facts.items() if other["ppid"] == current]
        return rows

    def _row(self, found: dict[str, Any], depth: int, now: float) -> TreeRow:
        pid, created = found["pid"], found["create_time"]
        times, memory = found["cpu_times"], found["memory_info"]
        used = times.user + times.system if times else 0.0
        before, since = self._last.get((pid, created), (0.0, created))
        self._last[(pid, created)] = (used, now)
        return TreeRow(
            pid=pid,
            ppid=found["ppid"],
            depth=depth,
            state=found["status"],
            cpu_percent=round(100 * max(0.0, used - before) / max(now - since, 0.001), 1),
            rss=memory.rss if memory else 0,
            seconds=max(0.0, now - created),
            command=" ".join(found["cmdline"] or ()) or found["name"],
        )


def _facts(process: psutil.Process) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = process.as_dict(_FIELDS)
    except (psutil.Error, OSError):
        return None
    return found
