"""The server scenarios: the reference directly, then through Coffer over each kind of pipe, then four at once.

Owns the order of the runs. Returns what was found; prints and asserts nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
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
        lines = [f"{self.title:<16} {self.verdict.line()}", *(f"    lost {key}" for key in self.verdict.lost)]
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
    suite: Suite, urls: dict[str, str], direct: dict[str, Run], out: Path, transports: Collection[str]
) -> Iterator[Finding]:
    """Each kind of pipe alone, then `AT_ONCE` runs against one endpoint at one time."""
    for transport in transports:
        allow = STDIO_ALLOWANCE if transport == "stdio" else frozenset()
        for wire in REQUIREMENTS:
            run = server(suite, urls[transport], wire, out / f"{transport}-{wire}")
            yield Finding(transport, judge(direct[wire], run, allow))
    for transport in transports:
        allow = STDIO_ALLOWANCE if transport == "stdio" else frozenset()
        for wire in REQUIREMENTS:

            def one(number: int, wire: str = wire, transport: str = transport) -> Run:
                return server(suite, urls[transport], wire, out / f"{transport}-{wire}-{number}")

            with ThreadPoolExecutor(AT_ONCE) as pool:
                for number, run in enumerate(pool.map(one, range(1, AT_ONCE + 1)), 1):
                    yield Finding(f"{transport} {number} of {AT_ONCE}", judge(direct[wire], run, allow))


def findings(suite: Suite, out: Path, transports: Collection[str] = ("stdio", "http")) -> Iterator[Finding]:
    """All runs of the server side; each finding as soon as it is there."""
    with reference() as url:
        direct = direct_runs(suite, url, out)
        upstreams: dict[str, dict[str, Any]] = {"stdio": STDIO, "http": {"transport": "http", "url": url}}
        # Four runs at once hold four sessions open, and each is its own connection.
        limits = {"limits": {"max_connections": 64}}
        wanted = {name: {**upstreams[name], **limits} for name in transports}
        with gateway(wanted) as urls:
            yield from through(suite, urls, direct, out, transports)
