"""`/api/v1/events` and `coffer top`: the present state first, then what changes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Generator
from contextlib import closing
from typing import Any

import msgspec
import pytest

from coffer_cli.commands.top import Board
from coffer_common.api import Process, PsRow
from tests.support.daemon import Daemon, UnixConnection
from tests.support.upstreams import raw


def events(daemon: Daemon, path: str = "/events") -> Generator[tuple[str, Any], None, None]:
    """The events as they come."""
    with closing(UnixConnection(str(daemon.run_dir / "api.sock"), 20)) as connection:
        connection.request("GET", f"/api/v1{path}")
        response = connection.getresponse()
        assert response.headers["Content-Type"] == "text/event-stream"
        name = ""
        while line := response.readline():
            key, _, value = line.decode().rstrip("\n").partition(": ")
            if key == "event":
                name = value
            elif key == "data":
                yield name, json.loads(value)


def test_the_present_state_comes_first_then_what_changes(daemon: Daemon) -> None:
    """A server that is added, dies and is removed is told of as it happens."""
    daemon.add_server("one", raw())
    daemon.wait_state("one")
    with closing(events(daemon)) as seen:
        name, state = next(seen)
        assert (name, [row["name"] for row in state["workers"]]) == ("state", ["one"])
        daemon.add_server("two", raw())
        found = next(row for name, row in seen if name == "server" and row["name"] == "two" and row["state"] == "ready")
        os.kill(found["worker_pid"], signal.SIGKILL)
        again = next(row for name, row in seen if name == "server" and row["name"] == "two" and row["restarts"])
        assert "signal 9" in again["last_error"]
        daemon.api("DELETE", "/resources/mcp_server/two")
        assert next(row for name, row in seen if name == "removed") == {"name": "two"}
        assert daemon.stop() == 0
        assert all(name == "server" for name, _ in seen), "the stream ends with the daemon"


def test_new_rows_of_the_logs_are_told_where_wished(daemon: Daemon) -> None:
    """Calls and changes that come after the beginning, each once and in their order; none without the wish."""
    daemon.add_server("one", raw())
    daemon.wait_state("one")
    call = {"tool": "echo", "arguments": {}}
    daemon.api("POST", "/resources/mcp_server/one/call", call)
    with closing(events(daemon, "/events?logs=all")) as seen:
        assert next(seen)[0] == "state"
        for _ in range(2):
            daemon.api("POST", "/resources/mcp_server/one/call", call)
        daemon.api("PATCH", "/resources/mcp_server/one", {"description": "mine"})
        found: list[tuple[str, Any]] = []
        while not found or found[-1][0] != "audit":
            found += [event for event in [next(seen)] if event[0] in ("invocation", "audit")]
    calls = [row for name, row in found if name == "invocation"]
    assert [(row["server"], row["key"]) for row in calls] == [("one", "echo")] * 2
    assert calls[0]["id"] < calls[1]["id"]
    assert found[-1][1]["name"] == "one"
    with pytest.raises(Exception, match="400"):
        daemon.api("GET", "/events?logs=nonsense")


def test_top_prints_once_where_nobody_looks(daemon: Daemon) -> None:
    daemon.add_server("one", raw())
    daemon.wait_state("one")
    shown = daemon.cli("top")
    assert shown.returncode == 0, shown.stderr
    assert "SERVER" in shown.stdout and "one" in shown.stdout and "ready" in shown.stdout
    assert json.loads(daemon.cli("top", "--once", "--json").stdout)["workers"][0]["name"] == "one"


def test_the_board_puts_what_hangs_first_and_counts_cpu() -> None:
    board = Board()

    def row(name: str, cpu: float, oldest: float | None = None) -> bytes:
        process = Process(pid=len(name), ppid=1, state="S", command="x", rss=1, cpu_seconds=cpu, depth=0)
        return msgspec.json.encode(
            PsRow(name=name, state="ready", upstreams=[process], oldest_seconds=oldest, oldest_key="query")
        )

    board.take("server", row("a", 1.0), 10.0)
    board.take("server", row("bb", 1.0), 10.0)
    board.take("server", row("bb", 1.5), 11.0)
    board.take("server", row("ccc", 0.0, oldest=41.0), 11.0)
    board.take("something new", b"?", 11.0)
    lines = board.lines()
    assert [line[0] for line in lines] == ["ccc", "bb", "a"]
    assert "query  41" in lines[0][5]
    assert lines[1][6] == "50 %"
    board.take("removed", b'{"name":"a"}', 12.0)
    assert "2 servers" in board.heading()


@pytest.mark.parametrize("verb", ["POST", "DELETE"])
def test_events_are_only_read(daemon: Daemon, verb: str) -> None:
    with pytest.raises(Exception, match="405"):
        daemon.api(verb, "/events")
