"""What a newcomer's first minutes rest on: the demo script, and what the installed processes have loaded."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import procs, upstreams
from tests.support.daemon import BIN, Daemon
from tests.support.upstreams import ROOT

pytestmark = pytest.mark.e2e
TOOLS = ("sh", "git", "dirname", "cat", "env", "sed", "uname")


def narrow_path(folder: Path) -> str:
    """A PATH with little more than git and the shell: no npx, so that nothing is downloaded."""
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        if found:
            (folder / tool).symlink_to(found)
    return str(folder)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.skipif(not (BIN / "mcp-server-time").exists(), reason="the demo servers are not installed")
def test_the_demo_works_twice_and_after_a_kill(make_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    """`make run` registers real servers and calls a tool through the gateway; again; and after `kill -9`."""
    home = make_daemon(extra_env={"PATH": narrow_path(tmp_path / "bin")})

    def demo() -> str:
        done = subprocess.run(
            ["sh", str(ROOT / "scripts" / "demo.sh"), str(BIN)],
            env=home.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr + home.story()
        assert '"timezone": "UTC"' in done.stdout
        assert "coffer-shim" in done.stdout
        return done.stdout

    demo()
    pid = home.info["pid"]
    assert "time is registered already" in demo()
    assert home.info["pid"] == pid
    os.kill(pid, signal.SIGKILL)
    procs.all_gone([pid])
    demo()
    assert home.info["pid"] != pid


def test_what_the_demo_prints_can_be_pasted_whatever_its_paths_hold(tmp_path: Path) -> None:
    """Blanks and quotes in a folder's name: one word for a shell, one text in JSON."""
    folder = tmp_path / 'a b\'s "bin"'
    folder.mkdir()
    (folder / "coffer").write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    (folder / "coffer").chmod(0o700)
    home = str(tmp_path / "my 'home' \\ \"x\"")
    done = subprocess.run(
        ["sh", str(ROOT / "scripts" / "demo.sh"), str(folder)],
        env={**os.environ, "COFFER_HOME": home, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    lines = [line.strip() for line in done.stdout.splitlines()]
    words = shlex.split(next(line for line in lines if line.startswith("claude mcp add")))
    shim = str(folder / "coffer-shim")
    assert words == ["claude", "mcp", "add", "coffer", "--env", f"COFFER_HOME={home}", "--", shim]
    entries = [json.loads(line) for line in lines if line.startswith("{")]
    for entry in (entries[0]["mcpServers"]["coffer"], entries[1]["servers"]["coffer"]):
        assert (entry["command"], entry["env"]) == (shim, {"COFFER_HOME": home})


def libraries(pid: int) -> set[str]:
    """The packages whose compiled parts a process has mapped."""
    found = set()
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        _, mark, rest = line.partition("/site-packages/")
        if mark:
            found.add(rest.split("/")[0].split(".")[0])
    return found


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")
def test_a_worker_has_no_store_and_the_supervisor_no_sdk(daemon: Daemon) -> None:
    """A worker started by the installed daemon has not loaded SQLAlchemy; the supervisor has not loaded the SDK."""
    daemon.add_server("fake", upstreams.fake())
    row = daemon.wait_state("fake")
    worker, supervisor = libraries(row["worker_pid"]), libraries(daemon.info["pid"])
    assert "sqlalchemy" in supervisor, "the check itself no longer sees what is loaded"
    assert not {"sqlalchemy", "greenlet", "aiohttp"} & worker
    assert not {"pydantic_core", "rpds"} & supervisor
