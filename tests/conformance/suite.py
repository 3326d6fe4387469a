"""One run of the suite, and the checks that it wrote, one status a check id.

Never decides what is good enough: `compare` does. The suite's own verdicts are not used, since it prints a tick for
a scenario that checked nothing.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conformance.install import Suite

REQUIREMENTS = ("2025-11-25", "2026-07-28")
SUCCESS = "SUCCESS"
RANK = {"FAILURE": 3, "WARNING": 2, SUCCESS: 1}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STARTED = re.compile(r"^=== Running scenario: (\S+) ===$", re.MULTILINE)


class DidNotFinish(AssertionError):
    """The suite ended without its summary."""


@dataclass
class Run:
    """`scenario:check` -> status, and why where the suite says so; how often each status came."""

    requirements: str
    checks: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def succeeded(self) -> set[str]:
        """The checks that succeeded."""
        return {key for key, status in self.checks.items() if status == SUCCESS}

    @property
    def failed(self) -> set[str]:
        """The checks that failed."""
        return {key for key, status in self.checks.items() if status == "FAILURE"}

    def add(self, scenario: str, checks: list[dict[str, Any]]) -> None:
        """Take up the checks of one scenario; of several with one id the worst counts."""
        for check in checks:
            key, status = f"{scenario}:{check['id']}", str(check["status"])
            self.counts[status] = self.counts.get(status, 0) + 1
            if RANK.get(status, 0) < RANK.get(self.checks.get(key, ""), 0):
                continue
            self.checks[key] = status
            details = check.get("details")
            note = details.get("note") or details.get("message") if isinstance(details, Mapping) else ""
            self.why[key] = str(check.get("errorMessage") or note or "")[:300]


def _read(folder: Path, scenario: str, side: str) -> list[dict[str, Any]]:
    # The folder's name ends with the time.
    found = sorted(folder.glob(f"{side}{scenario}-[0-9]*/checks.json"))
    if not found:
        return [{"id": scenario, "status": "FAILURE", "errorMessage": "the scenario threw; see run.log"}]
    checks: list[dict[str, Any]] = json.loads(found[-1].read_text(encoding="utf-8"))
    return checks


def server(suite: Suite, url: str, requirements: str, folder: Path, timeout: float = 120.0) -> Run:
    """Run the server scenarios against `url`; raises DidNotFinish with the end of what was printed."""
    folder.mkdir(parents=True, exist_ok=True)
    command = suite.command("server", "--url", url, "--requirements", requirements, "-o", str(folder))
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    log = _COLOUR.sub("", done.stdout + done.stderr)
    (folder / "run.log").write_text(log, encoding="utf-8")
    if "=== SUMMARY ===" not in log:
        raise DidNotFinish(f"the suite did not finish against its server ({done.returncode}): {log[-2000:]}")
    run = Run(requirements)
    for scenario in _STARTED.findall(log):
        run.add(scenario, _read(folder, scenario, "server-"))
    return run


def client(
    suite: Suite,
    command: str,
    scenario: str,
    requirements: str,
    folder: Path,
    *,
    timeout: float,
    env: Mapping[str, str],
) -> Run:
    """Run one client scenario with `command` as the client; the command's own exit code is not judged."""
    folder.mkdir(parents=True, exist_ok=True)
    args = ["client", "--command", command, "--scenario", scenario, "--spec-version", requirements]
    args += ["--timeout", str(int(timeout * 1000)), "-o", str(folder)]
    with open(folder / "run.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(
            suite.command(*args),
            stdout=log,
            stderr=log,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(timeout + 15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # the client and its daemon too
            raise DidNotFinish(f"the suite did not end after {timeout:g} s of {scenario}: see {log.name}") from None
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    run = Run(requirements)
    run.add(scenario, _read(folder, scenario, ""))
    return run
