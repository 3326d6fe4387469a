"""What an upstream may take of the machine: a decision on figures.

Owns the comparison and its words. Never measures, never ends anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from coffer_common import errors
from coffer_common.errors import Reason
from coffer_common.resources import Limits


@dataclass(frozen=True, slots=True)
class Usage:
    """What one connection's process and all it started take: how many there are, and their resident bytes."""

    number: int
    processes: int
    rss: int


@dataclass(frozen=True, slots=True)
class Excess:
    """The connection ``number`` is to be ended, for ``reason``."""

    number: int
    reason: Reason
    message: str


def wanted(limits: Limits) -> bool:
    """Whether there is anything to watch."""
    return limits.max_rss_bytes is not None or limits.max_processes is not None


def excess(server: str, limits: Limits, usages: Sequence[Usage]) -> Excess | None:
    """Which connection is to be ended because all of them together take too much: the one that takes most."""
    rss = sum(usage.rss for usage in usages)
    if limits.max_rss_bytes is not None and rss > limits.max_rss_bytes:
        most = max(usages, key=lambda usage: usage.rss)
        what = f"took {_mb(rss)} MB of memory, over its limit max_rss_bytes ({_mb(limits.max_rss_bytes)} MB)"
        return Excess(most.number, errors.MEMORY_LIMIT, _words(server, what))
    processes = sum(usage.processes for usage in usages)
    if limits.max_processes is not None and processes > limits.max_processes:
        most = max(usages, key=lambda usage: usage.processes)
        what = f"had {processes} processes, over its limit max_processes ({limits.max_processes})"
        return Excess(most.number, errors.PROCESS_LIMIT, _words(server, what))
    return None


def _mb(size: int) -> int:
    return round(size / 1_000_000)


def _words(server: str, what: str) -> str:
    return f"Upstream {server!r} {what}; it was ended"
