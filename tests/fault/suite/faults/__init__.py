"""The cases, by what they break. `CASES` is all of them, in the order of the report."""

from __future__ import annotations

from tests.fault.suite.case import Case
from tests.fault.suite.faults import clients, coffer, dying, hanging, machine, noisy

CASES: list[Case] = [*hanging.CASES, *noisy.CASES, *dying.CASES, *coffer.CASES, *clients.CASES, *machine.CASES]
