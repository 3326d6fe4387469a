"""`coffer stats`, and the logs of calls and changes: filtered, and followed as they grow."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from coffer_common import exits
from tests.support.daemon import COFFER, Daemon
from tests.support.upstreams import fake

pytestmark = pytest.mark.e2e


@pytest.fixture
def busy(daemon: Daemon) -> Daemon:
    """Two servers, and some calls of which one fails."""
    for name in ("files", "other"):
        daemon.add_server(name, fake("--tools", "echo", "fail"))
        daemon.wait_state(name)
    for tool in ("echo", "echo", "echo", "fail"):
        call(daemon, "files", tool)
    call(daemon, "other", "echo")
    return daemon


def call(daemon: Daemon, server: str, tool: str) -> None:
    """One call, whatever comes of it."""
    daemon.api("POST", f"/resources/mcp_server/{server}/call", {"tool": tool, "arguments": {}})


def printed(daemon: Daemon, *words: str) -> Any:
    """What a command prints with --json."""
    done = daemon.cli(*words, "--json")
    assert done.returncode == exits.OK, done
    return json.loads(done.stdout)


@contextmanager
def followed(daemon: Daemon, *words: str) -> Iterator[Iterator[str]]:
    """The lines of a command that goes on until it is ended."""
    command = [COFFER, *words, "--follow"]
    process = subprocess.Popen(command, env=daemon.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    try:
        yield iter(process.stdout.readline, "")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def test_stats_count_calls_errors_and_durations(busy: Daemon) -> None:
    """Calls, errors, p50 and p95 for each tool, with bars, the busiest first; the same facts as JSON."""
    done = busy.cli("stats")
    assert done.returncode == exits.OK, done
    heading, first, *_, last = done.stdout.splitlines()
    assert heading.split() == ["SERVER", "TYPE", "KEY", "CALLS", "ERRORS", "P50", "P95"]
    assert first.split()[:5] == ["files", "tool", "echo", "3", "█" * 12]
    assert last.startswith("5 calls, 1 error since ")
    found = printed(busy, "stats", "--since", "1h", "--server", "files")
    assert {(row["key"], row["calls"], row["errors"]) for row in found["stats"]} == {("echo", 3, 0), ("fail", 1, 1)}
    assert all(0 < row["p50_seconds"] <= row["p95_seconds"] for row in found["stats"])
    assert busy.cli("stats", "-q", "--server", "other").stdout == "other echo\n"
    assert busy.cli("stats", "--server", "absent").stdout.startswith("no calls since ")
    assert busy.cli("stats", "--since", "yesterday").returncode == exits.USAGE


def test_invocations_are_filtered(busy: Daemon) -> None:
    """By server, client, outcome, key and time, together."""

    def rows(*words: str) -> list[tuple[str, str]]:
        found = printed(busy, "mcp", "invocations", *words)["invocations"]
        return [(row["server"], row["key"]) for row in found]

    assert rows("files", "--status", "error") == [("files", "fail")]
    assert rows("--server", "other") == [("other", "echo")]
    assert len(rows("--client", "api", "--since", "1h")) == 5
    assert rows("--client", "somebody") == []
    assert len(rows("--key", "echo", "--type", "tool")) == 4
    assert busy.cli("mcp", "invocations", "--status", "odd").returncode == exits.USAGE


def test_invocations_are_followed(busy: Daemon) -> None:
    """What there is comes first, the oldest before the newest; then each new one, and only those that fit."""
    with followed(busy, "mcp", "invocations", "files", "--status", "error", "--json") as lines:
        assert json.loads(next(lines))["key"] == "fail"
        for tool in ("echo", "fail"):
            call(busy, "files", tool)
        assert json.loads(next(lines))["key"] == "fail"
    with followed(busy, "mcp", "invocations", "--limit", "1") as lines:
        assert "files  tool  fail" in next(lines)
        call(busy, "other", "echo")
        assert "other  tool  echo" in next(lines)


def test_the_audit_log_is_filtered_and_followed(busy: Daemon) -> None:
    """By server or client; a change shows as it happens."""
    busy.api("POST", "/clients", {"name": "cursor"})
    found = printed(busy, "audit", "list", "--client", "cursor")["audit"]
    assert [(row["kind"], row["name"]) for row in found] == [("client", "cursor")]
    assert busy.cli("audit", "list", "--client", "cursor", "--server", "files").returncode == exits.USAGE
    with followed(busy, "audit", "list", "--server", "files", "--event", "resource.disabled") as lines:
        for name in ("other", "files"):
            busy.api("POST", f"/resources/mcp_server/{name}/disable")
        assert "mcp_server:files" in next(lines)
