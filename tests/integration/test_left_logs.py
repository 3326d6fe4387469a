"""Log files of servers that are gone: kept for a while, then removed."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

from coffer_common import clock, exits
from coffer_supervisor.leftlogs import sweep
from tests.support.daemon import Daemon
from tests.support.upstreams import raw
from tests.support.wait import wait_until

DAY = 86_400


def aged(path: Path, days: float) -> Path:
    """A file that was last written so many days ago."""
    path.write_text("x\n", encoding="utf-8")
    os.utime(path, (time.time() - days * DAY,) * 2)
    return path


def test_only_old_logs_of_servers_that_are_gone_are_removed(tmp_path: Path) -> None:
    """Rotated ones too; never a registered server's, a fresh one, or another file."""
    gone = {aged(tmp_path / name, 40) for name in ("upstream-old.log", "upstream-old.log.1", "upstream-a.b.log")}
    kept = {aged(tmp_path / name, 40) for name in ("upstream-here.log", "daemon.log", "upstream-x.txt")}
    kept.add(aged(tmp_path / "upstream-fresh.log", 1))
    (tmp_path / "upstream-folder.log").mkdir()
    os.utime(tmp_path / "upstream-folder.log", (0, 0))
    assert sweep(tmp_path, {"here"}, clock.now() - timedelta(days=30)) == len(gone)
    assert set(tmp_path.iterdir()) == kept | {tmp_path / "upstream-folder.log"}
    assert sweep(tmp_path / "nowhere", set(), clock.now()) == 0


def test_the_daemon_removes_them_as_it_prunes(daemon: Daemon) -> None:
    """By the policy of the calls: at a start and when asked; kept for ever where calls are."""
    daemon.add_server("here", raw())
    daemon.wait_state("here")
    logs = daemon.home / "logs"
    here = aged(logs / "upstream-here.log", 40)
    old = aged(logs / "upstream-old.log", 40)
    daemon.api("PATCH", "/retention/policies/mcp_invocations", {"days": None})
    assert daemon.api("POST", "/retention/prune")["pruned"]["server_logs"] == 0
    daemon.api("PATCH", "/retention/policies/mcp_invocations", {"days": 30})
    assert daemon.api("POST", "/retention/prune")["pruned"]["server_logs"] == 1
    assert not old.exists() and here.exists()
    aged(old, 40)
    assert daemon.stop() == 0
    daemon.start()
    wait_until(lambda: not old.exists())


def test_the_log_of_a_removed_server_can_be_read(daemon: Daemon) -> None:
    """Whoever asks why it failed still finds it; no other file can be asked for by such a name."""
    daemon.add_server("gone", raw("--stderr-at-start", "last words"))
    daemon.wait_state("gone")
    wait_until(lambda: "last words" in daemon.cli("mcp", "logs", "gone").stdout)
    assert daemon.cli("mcp", "remove", "gone", "--yes").returncode == 0
    assert "last words" in daemon.cli("mcp", "logs", "gone").stdout
    assert daemon.cli("mcp", "logs", "never").returncode == exits.NOT_FOUND
    (daemon.home / "logs" / "upstream-..log").write_text("x\n", encoding="utf-8")
    assert daemon.cli("mcp", "logs", ".").returncode == exits.NOT_FOUND
