"""The management API of a running daemon, over its socket and over TCP."""

from __future__ import annotations

import http.client
import json
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from coffer_common.api import ACTOR_HEADER, VERSION_HEADER
from coffer_common.version import VERSION
from tests.support import upstreams
from tests.support.daemon import ApiError, Daemon, UnixConnection

SHA = "a" * 64
QUIET = {"transport": "stdio", "command": "true"}


def over_tcp(daemon: Daemon, verb: str, path: str, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
    """Status and decoded body of one request to the TCP port."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=20)
    try:
        connection.request(verb, f"/api/v1{path}", headers=headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def refused(daemon: Daemon, verb: str, path: str, body: Any = None) -> ApiError:
    """The error of a request that must fail; its shape is checked by the way."""
    with pytest.raises(ApiError) as caught:
        daemon.api(verb, path, body)
    assert caught.value.code
    return caught.value


def test_over_tcp_only_the_status_is_open(daemon: Daemon) -> None:
    """Over TCP every request needs the daemon's token, but for its status; over the socket none does."""
    status, body = over_tcp(daemon, "GET", "/daemon/status", {})
    assert (status, body["pid"], body["port"]) == (200, daemon.info["pid"], daemon.port)
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        status, body = over_tcp(daemon, "GET", "/resources", headers)
        assert (status, body["error"]["code"]) == (401, "denied")
        assert "token" in body["error"]["message"]
    for headers in ({"Authorization": f"Bearer {daemon.token}"}, {"X-Coffer-Token": daemon.token}):
        assert over_tcp(daemon, "GET", "/resources", headers) == (200, {"resources": []})
    assert daemon.api("GET", "/resources") == {"resources": []}


def test_a_rotated_token_holds_at_once(daemon: Daemon) -> None:
    """The old token is worth nothing from then on."""
    old = daemon.token
    daemon.api("POST", "/daemon/rotate-token")
    assert over_tcp(daemon, "GET", "/ps", {"X-Coffer-Token": old})[0] == 401
    assert over_tcp(daemon, "GET", "/ps", {"X-Coffer-Token": daemon.token})[0] == 200


def test_every_error_has_the_one_shape(daemon: Daemon) -> None:
    """One error model, statuses that programs can tell apart, and words that name the next step."""
    assert refused(daemon, "GET", "/nothing").status == 404
    assert refused(daemon, "DELETE", "/ps").status == 405
    assert refused(daemon, "POST", "/resources", {"kind": "mcp_server"}).status == 400
    assert refused(daemon, "POST", "/resources", ["no object"]).status == 400
    assert refused(daemon, "GET", "/resources/mcp_server/absent").status == 404
    assert refused(daemon, "GET", "/resources/strange/absent").status == 404
    assert refused(daemon, "GET", "/resources?kind=strange").status == 400
    assert refused(daemon, "GET", "/audit?since=yesterday").status == 400
    assert refused(daemon, "GET", "/audit?limit=0").status == 400
    big = {"kind": "mcp_server", "name": "x", "config": {"pad": "x" * (1024 * 1024)}}
    assert refused(daemon, "POST", "/resources", big).status == 413
    assert refused(daemon, "POST", "/resources/mcp_server/absent/call", {"tool": "x"}).status == 404


def test_answers_carry_the_version_and_actors_are_audited(daemon: Daemon) -> None:
    """X-Coffer-Version on every answer, refusals too; X-Coffer-Actor goes into the audit log."""
    connection = UnixConnection(str(daemon.run_dir / "api.sock"), 20)
    try:
        for actor, days in (("ui", 10), ("system", 11), ("nonsense", 12)):
            body = json.dumps({"days": days})
            connection.request("PATCH", "/api/v1/retention/policies/audit_log", body, {ACTOR_HEADER: actor})
            response = connection.getresponse()
            assert response.status == 200
            assert response.getheader(VERSION_HEADER) == VERSION
            response.read()
        connection.request("GET", "/api/v1/nothing")
        response = connection.getresponse()
        assert response.getheader(VERSION_HEADER) == VERSION
        response.read()
    finally:
        connection.close()
    rows = daemon.api("GET", "/audit?event=retention.changed")["audit"]
    assert [row["actor"] for row in rows] == ["api", "api", "ui"]  # nobody but the daemon itself is `system`


def test_every_kind_goes_through_one_path(daemon: Daemon) -> None:
    """Create, read, update, switch and delete, the same for all kinds."""
    made = daemon.api("POST", "/resources", {"kind": "client", "name": "cursor", "config": {"token_sha256": SHA}})
    assert made["ref"] == "client:cursor"
    assert SHA not in json.dumps(made)
    group = {"kind": "group", "name": "office", "config": {"servers": ["files"]}, "description": "at work"}
    unknown = refused(daemon, "POST", "/resources", group)
    assert unknown.code == "unknown_server"
    assert "files" in str(unknown)
    for name in ("files", "git"):
        server = {"kind": "mcp_server", "name": name, "config": {"transport": "stdio", "command": "true"}}
        daemon.api("POST", "/resources", {**server, "enabled": False})
    daemon.api("POST", "/resources", group)
    assert refused(daemon, "POST", "/resources", group).status == 409
    assert refused(daemon, "POST", "/resources", {**group, "name": "bad name"}).status == 400
    changed = daemon.api("PATCH", "/resources/group/office", {"config": {"servers": ["files", "git"]}})
    assert changed["config"]["servers"] == ["files", "git"]
    assert changed["description"] == "at work"
    assert daemon.api("POST", "/resources/group/office/disable")["enabled"] is False
    assert daemon.api("POST", "/resources/group/office/enable")["enabled"] is True
    refs = [one["ref"] for one in daemon.api("GET", "/resources")["resources"]]
    assert refs == ["client:cursor", "group:office", "mcp_server:files", "mcp_server:git"]
    assert daemon.api("DELETE", "/resources/group/office") == {"removed": "group:office"}
    assert refused(daemon, "DELETE", "/resources/group/office").status == 404
    credential = {"kind": "credential", "name": "x", "config": {"backend": "file", "updated_at": ""}}
    assert refused(daemon, "POST", "/resources", credential).code == "use_credentials"
    events = [(row["event"], row["kind"], row["name"]) for row in daemon.api("GET", "/audit")["audit"]]
    assert ("resource.deleted", "group", "office") in events
    assert ("resource.created", "client", "cursor") in events


def test_an_invalid_change_leaves_everything_as_it_was(daemon: Daemon) -> None:
    """Invalid: a clear error and nothing written."""
    daemon.add_server("files", upstreams.fake("--tools", "echo"))
    before = daemon.api("GET", "/resources/mcp_server/files")
    for patch in (
        {"config": {"args": "no list"}},
        {"config": {"limits": {"start_seconds": 601}}},
        {"config": {"colour": "red"}},
        {"config": {"env": {"API_KEY": "q9X2mB7vL4tR8wZ1nK5c"}}},
        {"description": "x" * 3000},
        {"unknown": 1},
    ):
        assert refused(daemon, "PATCH", "/resources/mcp_server/files", patch).status == 400
    no_keychain = refused(daemon, "PATCH", "/resources/mcp_server/files", {"config": {"env": {"TOKEN": "${absent}"}}})
    assert no_keychain.status == 503
    assert "${absent}" in str(no_keychain)
    after = daemon.api("GET", "/resources/mcp_server/files")
    assert (after["config"], after["updated_at"]) == (before["config"], before["updated_at"])
    daemon.api("PATCH", "/resources/mcp_server/files", {"config": {"limits": {"total_seconds": None}}})
    assert daemon.api("GET", "/resources/mcp_server/files")["config"]["limits"] == {"total_seconds": None}
    allowed = {"config": {"env": {"API_KEY": "q9X2mB7vL4tR8wZ1nK5c"}}, "allow_plaintext": True}
    assert daemon.api("PATCH", "/resources/mcp_server/files", allowed)["config"]["env"]["API_KEY"]


def test_what_no_process_can_be_given_is_refused_at_once(daemon: Daemon) -> None:
    """Else the server would be registered, and fail at each start; a change is checked like a registration."""
    daemon.api("POST", "/resources", {"kind": "mcp_server", "name": "good", "config": QUIET, "enabled": False})
    for member, said in (
        ({"command": "a\x00b"}, "command: it holds a NUL"),
        ({"env": {"A=B": "hidden"}}, "the name 'A=B' holds a '='"),
    ):
        body = {"kind": "mcp_server", "name": "x", "config": {**QUIET, **member}}
        for error in (
            refused(daemon, "POST", "/resources", body),
            refused(daemon, "PATCH", "/resources/mcp_server/good", {"config": member}),
        ):
            assert (error.status, error.code) == (400, "invalid_config")
            assert said in str(error) and "hidden" not in str(error)
    assert [one["config"]["command"] for one in daemon.api("GET", "/resources")["resources"]] == ["true"]


def test_figures_of_calls(daemon: Daemon) -> None:
    """Calls, errors and durations by capability; the same numbers beside the server."""
    daemon.add_server("files", upstreams.fake("--tools", "echo", "fail"))
    daemon.wait_state("files")
    for tool in ("echo", "echo", "fail"):
        body = {"tool": tool, "arguments": {"text": "x"}}
        assert daemon.api("POST", "/resources/mcp_server/files/call", body)["ok"] is True
    rows = {row["key"]: row for row in daemon.api("GET", "/stats?since=1h")["stats"]}
    assert (rows["echo"]["calls"], rows["echo"]["errors"]) == (2, 0)
    assert (rows["fail"]["calls"], rows["fail"]["errors"]) == (1, 1)
    assert 0 < rows["echo"]["p50_seconds"] <= rows["echo"]["p95_seconds"]
    assert daemon.api("GET", "/resources?kind=mcp_server")["resources"][0]["status"]["calls_24h"] == 3
    with closing(sqlite3.connect(daemon.home / "coffer.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        daemon.api("POST", "/resources/mcp_server/files/call", {"tool": "echo", "arguments": {"text": "x"}})
        assert len(daemon.api("GET", "/invocations")["invocations"]) == 3, "what is stored is shown though none can be"
        assert sum(row["calls"] for row in daemon.api("GET", "/stats?since=1h")["stats"]) == 3
        other.execute("ROLLBACK")
    bad = refused(daemon, "POST", "/resources/mcp_server/files/call", {"tool": "echo", "arguments": [1]})
    assert bad.code == "invalid_arguments"


def test_a_call_that_takes_too_long_for_its_caller(daemon: Daemon) -> None:
    """`timeout` bounds the call; the server is told, and the answer names it."""
    daemon.add_server("slow", upstreams.fake("--tools", "hang"))
    daemon.wait_state("slow")
    outcome = daemon.api("POST", "/resources/mcp_server/slow/call", {"tool": "hang", "timeout": 0.2})
    assert outcome["ok"] is False
    assert outcome["error"]["data"]["server"] == "slow"
    assert daemon.api("GET", "/ps/slow")["calls"] == []


def test_a_disabled_server_is_not_started(daemon: Daemon) -> None:
    """What needs a running server is in conflict with one that is switched off."""
    config = upstreams.fake("--tools", "echo").config()
    daemon.api("POST", "/resources", {"kind": "mcp_server", "name": "off", "config": config, "enabled": False})
    assert daemon.api("GET", "/resources/mcp_server/off")["status"]["state"] == "disabled"
    for verb in ("restart", "refresh", "test"):
        assert refused(daemon, "POST", f"/resources/mcp_server/off/{verb}", {}).status == 409
    assert daemon.server("off")["worker_pid"] is None
    assert daemon.api("POST", "/resources/mcp_server/off/enable")["enabled"] is True
    daemon.wait_state("off")
    assert refused(daemon, "GET", "/resources/mcp_server/off/capabilities?type=strange").status == 404
    assert refused(daemon, "POST", "/resources/mcp_server/off/capabilities/tool/disable", {"keys": ["x"]}).status == 404


def test_the_shutdown_is_answered_before_it_happens(daemon: Daemon) -> None:
    """The caller learns that the daemon leaves; then it does, with exit code 0."""
    assert daemon.api("POST", "/daemon/shutdown", {"reason": "stopped"})["stopping"] is True
    assert daemon.process is not None
    assert daemon.process.wait(20) == 0
