"""A run through Coffer held against a direct one, check by check. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.suite import SUCCESS, Run

FLOOR = Path(__file__).with_name("floor.json")
# A pipe has no stream that the upstream could close in mid-call.
STDIO_ALLOWANCE = frozenset({"server-sse-polling:server-sse-disconnect-resume"})


def floor(requirements: str) -> set[str]:
    """Checks that some server with nothing behind it passes too: they say nothing about a gateway."""
    found: dict[str, list[str]] = json.loads(FLOOR.read_text(encoding="utf-8"))
    return set(found[requirements])


@dataclass(frozen=True)
class Verdict:
    """What was kept of what succeeded directly; `lost` is without what is allowed."""

    requirements: str
    of: int
    kept: int
    telling_of: int
    telling: int
    lost: tuple[str, ...]
    allowed: tuple[str, ...]

    def line(self) -> str:
        """One line for people."""
        text = f"{self.requirements}: {self.kept} of {self.of} checks kept, {self.telling} of {self.telling_of} "
        return (
            text + f"above the floor, {len(self.lost)} lost" + (f" ({len(self.allowed)} allowed)" * bool(self.allowed))
        )


def judge(direct: Run, through: Run, allow: Collection[str] = ()) -> Verdict:
    """Hold `through` against `direct`: whatever succeeded directly and now does anything else is lost."""
    want, got, trivial = direct.succeeded, through.succeeded, floor(direct.requirements)
    lost = [
        f"{key}: {SUCCESS} -> {through.checks.get(key, 'absent')} {through.why.get(key, '')}".rstrip()
        for key in sorted(want - got)
        if key not in allow
    ]
    return Verdict(
        direct.requirements,
        len(want),
        len(want & got),
        len(want - trivial),
        len((want & got) - trivial),
        tuple(lost),
        tuple(sorted((want - got) & set(allow))),
    )
