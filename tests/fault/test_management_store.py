"""The management API while the database is in trouble: it says what is wrong, and calls go on."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from coffer_common import exits
from tests.support import upstreams
from tests.support.daemon import Daemon

pytestmark = [pytest.mark.fault, pytest.mark.e2e]


def test_a_locked_database_is_named_and_holds_up_no_call(daemon: Daemon) -> None:
    """D06: while another process holds the write lock, changes fail in words; calls, lists and ps work."""
    daemon.add_server("files", upstreams.fake("--tools", "echo"))
    daemon.wait_state("files")
    with closing(sqlite3.connect(daemon.home / "coffer.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        called = daemon.cli("mcp", "call", "files", "echo", "--arg", "text=on")
        assert json.loads(called.stdout) == {"text": "on"}, called
        assert daemon.cli("ps").returncode == exits.OK
        assert "files" in daemon.cli("mcp", "list").stdout
        refused = daemon.cli("mcp", "disable", "files")
        assert refused.returncode == exits.FAILURE
        assert "locked by another process" in refused.stderr
        assert "then try again" in refused.stderr
        other.execute("ROLLBACK")
    assert daemon.cli("mcp", "disable", "files").returncode == exits.OK


def test_an_unreadable_row_hides_no_other(daemon: Daemon) -> None:
    """A configuration that does not fit its schema is named, can be removed, and the rest is shown as ever."""
    daemon.add_server("good", upstreams.fake("--tools", "echo"))
    daemon.add_server("odd", upstreams.fake("--tools", "echo"))
    with closing(sqlite3.connect(daemon.home / "coffer.db", isolation_level=None)) as other:
        other.execute("UPDATE resource SET config = '{\"transport\": \"carrier pigeon\"}' WHERE name = 'odd'")
    listed = daemon.cli("mcp", "list")
    assert "good" in listed.stdout
    assert "odd cannot be read" in listed.stderr
    found = json.loads(daemon.cli("mcp", "list", "--json").stdout)
    assert [one["name"] for one in found["resources"]] == ["good"]
    assert found["unreadable"][0]["name"] == "odd"
    assert daemon.cli("doctor").returncode == exits.FAILURE
    assert daemon.cli("mcp", "remove", "odd", "--yes").returncode == exits.OK
    assert "unreadable" not in json.loads(daemon.cli("mcp", "list", "--json").stdout)
