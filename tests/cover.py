"""Whether each core is covered to 100 % of its lines and branches by its own test file: `python -m tests.cover`.

Decisions are pure, so nothing keeps a test from reaching every branch of them; what another file's tests happen to pass
through does not count. Prints what is missing, and ends with 1 then.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("coffer_supervisor/core", "coffer_worker/core")
SMALL = "test_core_small"
OWN = {
    "coffer_supervisor/core/batch.py": "test_batch_core",
    "coffer_supervisor/core/calls.py": SMALL,
    "coffer_supervisor/core/catalogue.py": "test_core_catalogue",
    "coffer_supervisor/core/cursors.py": SMALL,
    "coffer_supervisor/core/deadlines.py": SMALL,
    "coffer_supervisor/core/envelope.py": "test_envelope_core",
    "coffer_supervisor/core/gate.py": SMALL,
    "coffer_supervisor/core/identity.py": "test_core_identity",
    "coffer_supervisor/core/instructions.py": SMALL,
    "coffer_supervisor/core/lifecycle.py": "test_core_lifecycle",
    "coffer_supervisor/core/lifecycle_words.py": "test_core_lifecycle",
    "coffer_supervisor/core/liveness.py": SMALL,
    "coffer_supervisor/core/messages.py": "test_messages_core",
    "coffer_supervisor/core/pieces.py": "test_pieces_core",
    "coffer_supervisor/core/routing.py": "test_core_routing",
    "coffer_supervisor/core/session.py": "test_session_core",
    "coffer_supervisor/core/subscriptions.py": "test_subscriptions_core",
    "coffer_supervisor/core/tally.py": "test_tally_core",
    "coffer_supervisor/core/tracing.py": "test_tracing_core",
    "coffer_supervisor/core/uritemplate.py": SMALL,
    "coffer_worker/core/grant.py": "test_grant_core",
    "coffer_worker/core/registration.py": "test_registration_core",
    **{
        f"coffer_worker/core/{name}.py": f"test_worker_{name}"
        for name in (
            *(
                "asks",
                "bridge",
                "caps",
                "catalogue",
                "framing",
                "headers",
                "http_rules",
                "intake",
                "pace",
                "parked",
                "pool",
            ),
            *("relay", "sealed", "splice", "sse", "subscriptions", "translate", "trouble", "verbosity"),
        )
    },
}
"""Core -> the file under tests/unit that is its own."""


class Contexts:
    """Tells the measurement which test runs."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured = measured

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """What runs from here on belongs to that file."""
        self._measured.switch_context(item.path.stem)
        try:
            return (yield)
        finally:
            self._measured.switch_context("")


def cores() -> list[str]:
    """Every core there is."""
    found = [path for package in PACKAGES for path in sorted((ROOT / package).glob("*.py"))]
    return [path.relative_to(ROOT).as_posix() for path in found if path.stem != "__init__"]


def uncovered(measured: coverage.Coverage, core: str) -> str:
    """The report on one core where its own tests do not reach all of it; else empty."""
    text = io.StringIO()
    own = [r"^$", f"^{re.escape(OWN[core])}$"]
    share = measured.report(morfs=[str(ROOT / core)], contexts=own, show_missing=True, file=text, precision=1)
    if share == 100.0:
        return ""
    row = next(line for line in text.getvalue().splitlines() if line.lstrip("/").startswith(core) or core in line)
    return f"{core}: {row.split(core, 1)[1].strip()} (by tests/unit/{OWN[core]}.py)"


def main() -> int:
    """Run the tests of all cores, measured."""
    homeless = sorted(set(cores()) ^ set(OWN))
    if homeless:
        print(f"tests/cover.py names another test file, or none, for: {', '.join(homeless)}")
        return 1
    files = [f"{ROOT}/tests/unit/{name}.py" for name in sorted(set(OWN.values()))]
    measured = coverage.Coverage(data_file=None, branch=True, config_file=False, include=[f"{ROOT}/*/core/*"])
    measured.exclude("if TYPE_CHECKING:")
    measured.start()
    failed = pytest.main(["-q", "-p", "no:cacheprovider", *files], plugins=[Contexts(measured)])
    measured.stop()
    if failed:
        return int(failed)
    missing = [line for core in cores() if (line := uncovered(measured, core))]
    print("\n".join(missing) or f"{len(OWN)} cores, each covered to 100 % of its branches by its own test file")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
