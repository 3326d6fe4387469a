"""`coffer stats`, and the logs of calls and changes: filtered, and followed as they grow."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from coffer_cli import client, main
from coffer_cli.errors import CliError
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


def test_a_followed_log_asks_once_and_is_told_the_rest(busy: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first page nothing is asked for again: the daemon's events carry the rows; its end ends the command."""
    for key, value in busy.env.items():
        monkeypatch.setenv(key, value)
    asked: list[str] = []
    exchange = client.Client._exchange

    def exchanged(self: client.Client, method: str, target: str, *more: Any) -> Any:
        asked.append(target)
        if len(asked) == 1:
            threading.Thread(target=more_of_it).start()
        return exchange(self, method, target, *more)

    def more_of_it() -> None:
        call(busy, "files", "fail")
        call(busy, "other", "echo")
        assert busy.stop() == 0

    monkeypatch.setattr(client.Client, "_exchange", exchanged)
    done = CliRunner().invoke(main.app, ["mcp", "invocations", "--key", "fail", "--follow", "--json"])
    assert [json.loads(line)["key"] for line in done.stdout.splitlines()] == ["fail", "fail"]
    assert isinstance(done.exception, CliError) and done.exception.code == exits.UNREACHABLE
    assert len(asked) == 1


def test_a_servers_log_is_followed(busy: Daemon) -> None:
    """Its last lines, then what it writes; as JSON too."""
    log = busy.home / "logs" / "upstream-files.log"
    log.write_text("first\n", encoding="utf-8")

    def write(text: str) -> None:
        with log.open("a", encoding="utf-8") as file:
            file.write(text)

    with followed(busy, "mcp", "logs", "files") as lines:
        assert next(lines) == "first\n"
        write("half")
        write(" a line\nand another\n")
        assert [next(lines), next(lines)] == ["half a line\n", "and another\n"]
    with followed(busy, "mcp", "logs", "files", "--lines", "1", "--json") as lines:
        assert json.loads(next(lines))["lines"] == ["and another"]
        write("more\n")
        assert json.loads(next(lines))["lines"] == ["more"]
    with pytest.raises(Exception, match="404"):
        busy.api("GET", "/events?server_log=nobody")


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
