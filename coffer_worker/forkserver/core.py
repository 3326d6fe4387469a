"""Which of the fork server's children are workers, and what follows from an exit.

Owns the roster of living workers and the rule that any other child is an orphan of a dead one. Never
forks, reaps or signals.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from coffer_common.forkproto import Exited
from coffer_common.proctree import Proc, children, descendants


@dataclass(frozen=True, slots=True)
class Worker:
    """A living worker's name and incarnation."""

    name: str
    incarnation: int


class Roster:
    """The living workers by PID."""

    def __init__(self) -> None:
        self._workers: dict[int, Worker] = {}

    def __len__(self) -> int:
        return len(self._workers)

    def born(self, pid: int, name: str, incarnation: int) -> None:
        """A fork succeeded."""
        self._workers[pid] = Worker(name, incarnation)

    def died(self, pid: int, wait_status: int) -> Exited | None:
        """A child was reaped with that status (as ``os.waitpid`` gives it). None: it was no worker."""
        worker = self._workers.pop(pid, None)
        if worker is None:
            return None
        killed = wait_status & 0x7F
        status = 0 if killed else (wait_status >> 8) & 0xFF
        return Exited(pid, worker.name, worker.incarnation, status, killed)

    def may_kill(self, pid: int, incarnation: int) -> bool:
        """Whether that PID is still that incarnation (its PID cannot be reused before it is reaped)."""
        worker = self._workers.get(pid)
        return worker is not None and worker.incarnation == incarnation

    def orphans(self, me: int, procs: Mapping[int, Proc]) -> list[Proc]:
        """Children that are no living worker, each with all below it: left over from dead workers."""
        strays = [proc for proc in children(me, procs) if proc.pid not in self._workers]
        found: list[Proc] = []
        for stray in strays:
            found.append(stray)
            found.extend(descendants(stray.pid, procs, spare=self._workers))
        return found
