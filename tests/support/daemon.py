"""The installed daemon in a COFFER_HOME of its own: start it, talk to its management API, stop it.

Everything goes through the installed commands and `run/api.sock`, as a user's would. The home has a short
path because socket paths end at 107 bytes.
"""

from __future__ import annotations

import asyncio
import functools
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support.procs import alive
from tests.support.upstreams import Upstream
from tests.support.wait import wait_until

BIN = Path(sys.executable).parent
COFFER, DAEMON, SHIM = (str(BIN / name) for name in ("coffer", "coffer-daemon", "coffer-shim"))
# What a user's shell would give; nothing of the test's own environment leaks in.
INHERITED = ("PATH", "COFFER_PORTS", "LANG", "LC_ALL", "TZ", "TMPDIR", "COVERAGE_PROCESS_START")


class ApiError(Exception):
    """The management API answered with an error: status, code, message and hint."""

    def __init__(self, status: int, body: Any) -> None:
        error = body.get("error", {}) if isinstance(body, dict) else {}
        self.status = status
        self.code = error.get("code", "")
        self.hint = error.get("hint", "")
        super().__init__(f"{status} {self.code}: {error.get('message', body)} {self.hint}".strip())


class UnixConnection(http.client.HTTPConnection):
    """HTTP/1.1 over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket instead of a host."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@functools.cache
def migrated_store() -> bytes:
    """A store as the migrations make it, made once a test process: a daemon takes longer for it than for its start."""
    with tempfile.TemporaryDirectory(prefix="cf-", dir="/tmp") as folder:
        path = Path(folder) / "coffer.db"
        command = [sys.executable, "-m", "coffer_supervisor.store.migrate", "--database", str(path)]
        subprocess.run(command, check=True, capture_output=True)
        return path.read_bytes()


def make_home() -> Path:
    """A fresh, short, private COFFER_HOME with an empty store."""
    home = Path(tempfile.mkdtemp(prefix="cf-", dir="/tmp"))
    store = home / "coffer.db"
    store.touch(0o600)
    store.write_bytes(migrated_store())
    return home


@dataclass
class Daemon:
    """One COFFER_HOME and, between `start` and `stop`, its daemon."""

    home: Path = field(default_factory=make_home)
    extra_env: dict[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    @property
    def env(self) -> dict[str, str]:
        """The environment of every command: nothing but what a user needs, and this home."""
        user = self.home / "user"
        user.mkdir(exist_ok=True)
        inherited = {key: os.environ[key] for key in INHERITED if key in os.environ}
        return {**inherited, "HOME": str(user), "COFFER_HOME": str(self.home), **self.extra_env}

    @property
    def info(self) -> dict[str, Any]:
        """daemon.json as it stands."""
        found: dict[str, Any] = json.loads((self.home / "daemon.json").read_text(encoding="utf-8"))
        return found

    @property
    def token(self) -> str:
        """The daemon's token."""
        return str(self.info["token"])

    @property
    def port(self) -> int:
        """The TCP port of this start."""
        return int(self.info["port"])

    def url(self, path: str = "/mcp") -> str:
        """An endpoint over TCP."""
        return f"http://127.0.0.1:{self.port}{path}"

    @property
    def run_dir(self) -> Path:
        """Where the sockets are."""
        return Path(self.info.get("run_dir") or self.home / "run")

    # -------------------------------------------------------------- life

    def start(self, bound: float = 20.0) -> Daemon:
        """Start `coffer-daemon` as our child and wait until its API answers."""
        out = open(self.home / "daemon.out", "ab")  # noqa: SIM115 (closed below)
        try:
            self.process = subprocess.Popen(
                [DAEMON, *self.flags], env=self.env, cwd="/", stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        finally:
            out.close()
        wait_until(self._answers, bound, self.story)
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"coffer-daemon ended with {self.process.returncode}: {self.story()}")
        try:
            return bool(self.api("GET", "/daemon/status", timeout=2))
        except (OSError, ValueError, KeyError, http.client.HTTPException, ApiError):
            return False

    def story(self) -> str:
        """What the daemon printed and logged last, for failure messages."""
        parts = []
        for name in ("daemon.out", "logs/daemon.stderr", "logs/daemon.log"):
            path = self.home / name
            if path.exists():
                parts.append(f"--- {name}\n{path.read_text(errors='replace')[-3000:]}")
        return "daemon\n" + "\n".join(parts)

    def stop(self, bound: float = 20.0) -> int:
        """SIGTERM and the exit code; after `bound` seconds it is killed and that is a failure."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(bound)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the daemon ignored SIGTERM for {bound:g} s: {self.story()}") from None

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End what still runs (a daemon that a command started too) and remove the home."""
        if self.process is not None and self.process.poll() is None:
            self.stop()
        try:
            pid = int(self.info["pid"])
            if os.getpgid(pid) and "coffer-daemon" in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGTERM)
                wait_until(lambda: not alive(pid), 15)
        except (OSError, ValueError, KeyError):
            pass
        shutil.rmtree(self.home, ignore_errors=True)

    # -------------------------------------------------------------- management

    def api(self, verb: str, path: str, body: Any = None, timeout: float = 60.0) -> Any:
        """One request to /api/v1 over the socket; the decoded JSON. Raises ApiError."""
        connection = UnixConnection(str(self.run_dir / "api.sock"), timeout)
        try:
            data = None if body is None else json.dumps(body).encode()
            headers = {"Content-Type": "application/json"} if data is not None else {}
            connection.request(verb, "/api/v1" + path, data, headers)
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        answer = json.loads(text) if text else None
        if response.status >= 400:
            raise ApiError(response.status, answer)
        return answer

    async def call(self, verb: str, path: str, body: Any = None, timeout: float = 60.0) -> Any:
        """`api` for tests with a loop."""
        return await asyncio.to_thread(self.api, verb, path, body, timeout)

    def add_server(self, name: str, upstream: Upstream | Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """Register an upstream; `more` goes into its configuration (limits, isolation, cwd ...)."""
        config = upstream.config(**more) if isinstance(upstream, Upstream) else {**upstream, **more}
        if config["transport"] == "stdio":
            config.setdefault("path", self.env.get("PATH"))
        body = {"kind": "mcp_server", "name": name, "config": config}
        added: dict[str, Any] = self.api("POST", "/resources", body)
        return added

    def server(self, name: str) -> dict[str, Any]:
        """The row of one upstream as `coffer ps` sees it."""
        for row in self.api("GET", "/ps")["workers"]:
            if row["name"] == name:
                return dict(row)
        return {}

    def wait_state(self, name: str, *states: str, bound: float = 20.0) -> dict[str, Any]:
        """Wait until the upstream is in one of these states (`ready` by default); its row."""
        wanted = states or ("ready",)
        return wait_until(
            lambda: row if (row := self.server(name)).get("state") in wanted else {},
            bound,
            lambda: f"{name} to be {' or '.join(wanted)}; it is {self.server(name)}; {self.story()}",
        )

    def invocations(self, name: str) -> list[dict[str, Any]]:
        """The logged calls of one upstream, newest first."""
        path = f"/resources/mcp_server/{quote(name)}/invocations"
        return list(self.api("GET", path)["invocations"])

    def cli(self, *args: str, timeout: float = 60.0, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run the installed `coffer` command in this home."""
        return subprocess.run(
            [COFFER, *args], env=self.env, capture_output=True, text=True, timeout=timeout, check=False, **more
        )
