"""The client scenarios, one at a time: the mock is Coffer's upstream, and its checks are the judge.

Owns which scenarios count and how many checks each must bring: a scenario with fewer has not reached its end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.install import Suite
from tests.conformance.suite import Run, client
from tests.support.upstreams import ROOT

SECONDS = 60.0
LEGACY, MODERN = "2025-11-25", "2026-07-28"
# (scenario, wire) -> checks that must succeed; the same that a known-good client brings without a gateway.
SCENARIOS = {
    ("initialize", LEGACY): 1,
    ("tools_call", LEGACY): 2,
    ("tools_call", MODERN): 2,
    ("elicitation-sep1034-client-defaults", LEGACY): 5,
    ("sse-retry", LEGACY): 3,
    ("json-schema-2020-12-preservation", LEGACY): 9,
    ("json-schema-2020-12-preservation", MODERN): 9,
    ("request-metadata", MODERN): 8,
    ("sep-2322-client-request-state", MODERN): 5,
    ("http-standard-headers", MODERN): 9,
    ("http-custom-headers", MODERN): 18,
    ("http-invalid-tool-headers", MODERN): 12,
    ("json-schema-ref-no-deref", MODERN): 1,
}


@dataclass(frozen=True)
class Outcome:
    """One scenario's checks."""

    scenario: str
    run: Run
    wanted: int

    @property
    def ok(self) -> int:
        """How many checks succeeded; of several with one id each counts."""
        return self.run.counts.get("SUCCESS", 0)

    @property
    def good(self) -> bool:
        """Nothing failed, and as much was checked as can be."""
        return not self.run.failed and self.ok >= self.wanted

    def __str__(self) -> str:
        line = f"{'ok ' if self.good else 'BAD'} {self.scenario} {self.run.requirements}: {self.ok} of {self.wanted}"
        why = [f"    {key}: {status} {self.run.why.get(key, '')}" for key, status in self.run.checks.items()]
        return line if self.good else "\n".join([line, *(text for text in why if ": SUCCESS" not in text)])


def outcome(suite: Suite, scenario: str, wire: str, out: Path) -> Outcome:
    """Run one scenario through Coffer."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = f"{sys.executable} -m tests.conformance.driver"
    folder = out / f"client-{scenario}-{wire}"
    run = client(suite, command, scenario, wire, folder, timeout=SECONDS, env=env)
    return Outcome(scenario, run, SCENARIOS[scenario, wire])


def outcomes(suite: Suite, out: Path) -> Iterator[Outcome]:
    """All scenarios, one after the other."""
    for scenario, wire in SCENARIOS:
        yield outcome(suite, scenario, wire, out)
