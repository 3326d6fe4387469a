"""The fixture servers as upstreams: command, arguments and environment, and their logs read back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"


@dataclass(frozen=True)
class Upstream:
    """How to start one server. `config()` is the shape that registration takes."""

    command: str
    args: list[str]
    env: dict[str, str] = field(default_factory=dict)
    log_file: Path | None = None

    @property
    def argv(self) -> list[str]:
        """Command and arguments together."""
        return [self.command, *self.args]

    def config(self, **more: Any) -> dict[str, Any]:
        """A registration's configuration of a stdio server."""
        return {"transport": "stdio", "command": self.command, "args": self.args, "env": self.env, **more}

    def log(self) -> list[dict[str, Any]]:
        """What reached the server so far, in order."""
        if self.log_file is None or not self.log_file.exists():
            return []
        complete = self.log_file.read_text(encoding="utf-8").rpartition("\n")[0]
        return [json.loads(line) for line in complete.splitlines()]

    def messages(self, method: str) -> list[dict[str, Any]]:
        """Requests and notifications of one method that reached the server."""
        found = []
        for entry in self.log():
            message = entry.get("message") if entry["event"] == "received" else entry
            if isinstance(message, dict) and message.get("method") == method and entry["event"] != "interrupted":
                found.append(message)
        return found

    def popen(self, **more: Any) -> subprocess.Popen[bytes]:
        """The process, with pipes for stdin and stdout; whoever asks ends it."""
        environment = {**os.environ, **self.env}
        return subprocess.Popen(self.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, **more)


def fake(*flags: str, log: Path | None = None) -> Upstream:
    """The server on the official SDK (see tests/fixtures/fake_mcp_server.py)."""
    extra = ["--log", str(log)] if log else []
    args = ["-m", "tests.fixtures.fake_mcp_server", *flags, *extra]
    return Upstream(sys.executable, args, {"PYTHONPATH": str(ROOT)}, log)


def raw(
    *flags: str, log: Path | None = None, script: Mapping[str, Any] | None = None, at: Path | None = None
) -> Upstream:
    """The misbehaving server; `script` is written to a file under `at`."""
    extra = ["--log", str(log)] if log else []
    if script is not None:
        assert at is not None, "a script needs a folder to stand in"
        path = at / f"script-{len(list(at.glob('script-*')))}.json"
        path.write_text(json.dumps(script), encoding="utf-8")
        extra += ["--script", str(path)]
    return Upstream(sys.executable, ["-S", str(FIXTURES / "raw_server.py"), *flags, *extra], {}, log)
