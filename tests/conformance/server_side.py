"""The server scenarios: the reference directly, then through Coffer over each kind of pipe, then four at once.

Owns the order of the runs. Returns what was found; prints and asserts nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.compare import STDIO_ALLOWANCE, Verdict, judge
from tests.conformance.gateway import STDIO, gateway, reference
from tests.conformance.install import Suite
from tests.conformance.suite import REQUIREMENTS, Run, server

DIRECTLY = {"2025-11-25": 84, "2026-07-28": 153}
AT_ONCE = 4


@dataclass(frozen=True)
class Finding:
    """One run through Coffer: its title, and what was kept."""

    title: str
    verdict: Verdict

    def __str__(self) -> str:
        lines = [f"{self.title:<20} {self.verdict.line()}", *(f"    lost {key}" for key in self.verdict.lost)]
        return "\n".join(lines)


class Directly(AssertionError):
    """The reference itself does not pass what it should: nothing can be concluded."""


def direct_runs(suite: Suite, url: str, out: Path) -> dict[str, Run]:
    """The reference asked directly. Raises Directly where it passes fewer checks than it is known to."""
    runs = {wire: server(suite, url, wire, out / f"direct-{wire}") for wire in REQUIREMENTS}
    for wire, run in runs.items():
        if len(run.succeeded) != DIRECTLY[wire]:
            failed = sorted(run.failed)
            raise Directly(f"{wire}: the reference passes {len(run.succeeded)} checks, not {DIRECTLY[wire]}: {failed}")
    return runs


def through(
    suite: Suite, transport: str, url: str, *, direct: dict[str, Run], out: Path, rounds: Sequence[Sequence[str]]
) -> Iterator[Finding]:
    """One run at a time, then `rounds`: the wires of runs that go on at one time against the one endpoint."""
    allow = STDIO_ALLOWANCE if transport == "stdio" else frozenset()

    def run(title: str, wire: str) -> Finding:
        folder = out / f"{title}-{wire}".replace(" ", "-")
        return Finding(title, judge(direct[wire], server(suite, url, wire, folder), allow))

    for wire in REQUIREMENTS:
        yield run(transport, wire)
    for number, wires in enumerate(rounds):
        titles = [f"{transport} {number + 1}.{one} at once" for one, _ in enumerate(wires, 1)]
        with ThreadPoolExecutor(len(wires)) as pool:
            yield from pool.map(run, titles, wires)


def findings(
    suite: Suite,
    out: Path,
    transports: Collection[str] = ("stdio", "http"),
    *,
    direct: dict[str, Run] | None = None,
    short: bool = False,
) -> Iterator[Finding]:
    """All runs of the server side; each finding as soon as it is there. ``direct``: where the reference was asked
    directly before. ``short``: the four at once are two a wire."""
    rounds = [REQUIREMENTS * 2] if short else [(wire,) * AT_ONCE for wire in REQUIREMENTS]
    with reference() as url:
        direct = direct or direct_runs(suite, url, out)
        upstreams: dict[str, dict[str, Any]] = {"stdio": STDIO, "http": {"transport": "http", "url": url}}
        with gateway({name: upstreams[name] for name in transports}) as urls:
            for transport in transports:
                yield from through(suite, transport, urls[transport], direct=direct, out=out, rounds=rounds)
