"""The client scenarios, one at a time: the mock is Coffer's upstream, and its checks are the judge.

Owns which scenarios count and how many checks each must bring: a scenario with fewer has not reached its end. And
which of the `auth/*` ones ask for what Coffer does not offer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
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

# The same where the mock wants a login: distinct checks, at 2025-11-25 and at 2026-07-28.
BOTH_ERAS = {
    "auth/metadata-default": (15, 16),
    "auth/metadata-var1": (15, 16),
    "auth/metadata-var2": (15, 16),
    "auth/metadata-var3": (15, 16),
    "auth/basic-cimd": (10, 10),
    "auth/scope-from-www-authenticate": (11, 12),
    "auth/scope-from-scopes-supported": (11, 12),
    "auth/scope-omitted-when-undefined": (11, 12),
    "auth/scope-step-up": (12, 14),
    "auth/scope-retry-limit": (10, 11),
    "auth/token-endpoint-auth-basic": (16, 17),
    "auth/token-endpoint-auth-post": (16, 17),
    "auth/token-endpoint-auth-none": (16, 17),
    "auth/pre-registration": (10, 10),
}
MODERN_ALONE = {
    "auth/resource-mismatch": 2,
    "auth/offline-access-scope": 10,
    "auth/offline-access-not-supported": 12,
    "auth/authorization-server-migration": 14,
    "auth/iss-supported": 12,
    "auth/iss-not-advertised": 12,
    "auth/iss-supported-missing": 8,
    "auth/iss-wrong-issuer": 8,
    "auth/iss-unexpected": 8,
    "auth/iss-normalized": 8,
    "auth/metadata-issuer-mismatch": 3,
}
LOGINS = {
    **{(scenario, LEGACY): checks for scenario, (checks, _) in BOTH_ERAS.items()},
    **{(scenario, MODERN): checks for scenario, (_, checks) in BOTH_ERAS.items()},
    **{(scenario, MODERN): checks for scenario, checks in MODERN_ALONE.items()},
}
# One for each thing that Coffer itself decides; the rest is the SDK's flow, which `make conformance` runs in full.
FEW_LOGINS = (
    ("auth/pre-registration", MODERN),
    ("auth/basic-cimd", LEGACY),
    ("auth/token-endpoint-auth-post", LEGACY),
    ("auth/scope-step-up", MODERN),
    ("auth/authorization-server-migration", MODERN),
    ("auth/iss-wrong-issuer", MODERN),
)
AT_ONCE = 3
# Extensions of the protocol's authorization, scored by neither requirement set.
NOT_APPLICABLE = {
    "auth/client-credentials-*": "nobody logs in there",
    "auth/enterprise-managed-authorization": "an identity provider logs in for the person",
    "auth/dpop*": "tokens bound to a key",
    "auth/wif-jwt-bearer": "a workload's own token instead of a person",
}


@dataclass(frozen=True)
class Outcome:
    """One scenario's checks."""

    scenario: str
    run: Run
    wanted: int

    @property
    def ok(self) -> int:
        """How many checks succeeded; of several with one id each counts, except where a login is made: how often a
        token is shown there says nothing."""
        return len(self.run.succeeded) if self.scenario.startswith("auth/") else self.run.counts.get("SUCCESS", 0)

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
    folder = out / f"client-{scenario}-{wire}".replace("/", "-")
    run = client(suite, command, scenario, wire, folder, timeout=SECONDS, env=env)
    return Outcome(scenario, run, (SCENARIOS | LOGINS)[scenario, wire])


def outcomes(suite: Suite, out: Path) -> Iterator[Outcome]:
    """All scenarios, one after the other; those with a login, where most is waiting, several at once."""
    for scenario, wire in SCENARIOS:
        yield outcome(suite, scenario, wire, out)
    yield from logins(suite, out, LOGINS)


def logins(suite: Suite, out: Path, wanted: Iterable[tuple[str, str]]) -> Iterator[Outcome]:
    """Scenarios with a login, in the order that was given."""

    def run(one: tuple[str, str]) -> Outcome:
        scenario, wire = one
        return outcome(suite, scenario, wire, out)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(run, wanted)


def left_out() -> str:
    """What is not run, and why, for people."""
    return "\n".join(f"n/a {scenario}: {why}; Coffer does not offer it" for scenario, why in NOT_APPLICABLE.items())
