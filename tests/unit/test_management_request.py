"""Paths, queries and bodies of the management API, before any handler sees them."""

from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from coffer_common import clock
from coffer_common.api import SetRetention, Shutdown
from coffer_supervisor.credentials import CredentialError, MissingCredential
from coffer_supervisor.management import errors, http, register, routes, servers
from coffer_supervisor.management.errors import ApiError
from coffer_supervisor.management.request import Request
from coffer_supervisor.store.errors import Duplicate, Invalid, NotFound, StoreError


def request(query: dict[str, str] | None = None, body: bytes = b"", **params: str) -> Request:
    return Request(cast(Any, SimpleNamespace()), params, query or {}, "api", body)


def test_every_path_reaches_its_own_handler() -> None:
    """The servers' own paths are not taken for those of every kind."""
    route, params = http.match("POST", "/api/v1/resources/mcp_server/files/capabilities/tool/disable")
    assert route.handler is servers.disable_capability
    assert params == {"name": "files", "type": "tool"}
    route, params = http.match("GET", "/api/v1/resources/mcp_server/files")
    assert params == {"kind": "mcp_server", "name": "files"}


def test_an_unknown_path_and_a_wrong_method_are_told_apart() -> None:
    with pytest.raises(ApiError) as caught:
        http.match("GET", "/api/v1/nothing")
    assert caught.value.status == HTTPStatus.NOT_FOUND
    with pytest.raises(ApiError) as caught:
        http.match("PUT", "/api/v1/resources")
    assert caught.value.status == HTTPStatus.METHOD_NOT_ALLOWED
    assert "GET, POST" in caught.value.hint


def test_only_the_status_needs_no_token() -> None:
    """Over TCP the daemon's status alone is open."""
    assert frozenset({"/api/v1/daemon/status"}) == routes.OPEN_PATHS


@pytest.mark.parametrize("body", [b"{", b'{"reason": "whim"}', b'{"more": 1}', b"\xff"])
def test_a_body_that_does_not_fit_is_refused_in_words(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        request(body=body).decode(Shutdown)
    assert caught.value.status == HTTPStatus.BAD_REQUEST
    assert caught.value.message


def test_an_empty_body_is_an_empty_object() -> None:
    assert request().decode(Shutdown).reason == "stopped"
    with pytest.raises(ApiError):
        request().decode(SetRetention)


def test_an_unknown_kind_is_named() -> None:
    assert request(kind="group").kind == "group"
    with pytest.raises(ApiError) as caught:
        _ = request(kind="mcp").kind
    assert "mcp_server" in caught.value.hint


@pytest.mark.parametrize("text", ["x", "0", "1001", "-1", ""])
def test_numbers_of_a_query_have_bounds(text: str) -> None:
    with pytest.raises(ApiError):
        request({"limit": text}).number("limit", 100)


def test_times_of_a_query_are_moments_or_spans() -> None:
    assert request().moment("since") is None
    assert request().number("limit", 100) == 100
    assert request({"limit": "7"}).number("limit", 100) == 7
    moment = request({"since": "2026-05-20T12:00:00+02:00"}).moment("since")
    assert moment is not None
    assert clock.rfc3339(moment) == "2026-05-20T10:00:00Z"
    day = request({"since": "24h"}).moment("since")
    assert day is not None
    assert clock.now() - day >= timedelta(hours=24)
    for text in ("yesterday", "2026-05-20T12:00:00", "99999999999999d", ""):
        with pytest.raises(ApiError):
            request({"since": text}).moment("since")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Invalid("a", "b"), 400),
        (Invalid("unreadable_config", "b"), 500),
        (Duplicate("a", "b"), 409),
        (NotFound("a", "b"), 404),
        (StoreError("store_full", "b", "c"), 503),
    ],
)
def test_the_stores_verdicts_have_their_statuses(error: StoreError, status: int) -> None:
    assert errors.from_store(error).status == status


def test_a_missing_reference_is_the_requests_fault_and_a_locked_keychain_is_not() -> None:
    assert errors.from_credential(MissingCredential("x", "m", "h")).status == HTTPStatus.BAD_REQUEST
    assert errors.from_credential(CredentialError("keychain_locked", "m", "h")).status == HTTPStatus.SERVICE_UNAVAILABLE
    assert errors.missing("x").status == HTTPStatus.NOT_FOUND


def test_a_patch_merges_objects_and_null_takes_away() -> None:
    """RFC 7386's own rules."""
    before = {"a": 1, "env": {"A": "1", "B": "2"}, "args": ["x"]}
    patch = {"a": None, "env": {"B": None, "C": "3"}, "args": ["y"], "new": {"deep": None, "kept": 1}}
    assert register.merged(before, patch) == {"env": {"A": "1", "C": "3"}, "args": ["y"], "new": {"kept": 1}}
    assert register.merged(before, 3) == 3


def test_null_switches_a_call_limit_off() -> None:
    before = {"limits": {"start_seconds": 60.0, "rounds": 3}}
    patch = {"limits": {"total_seconds": None, "rounds": None, "idle_seconds": 5}}
    after = register.patched(before, patch)
    assert after == {"limits": {"start_seconds": 60.0, "total_seconds": None, "idle_seconds": 5}}
    assert register.patched({"a": 1}, {"a": 2}) == {"a": 2}


def test_the_end_of_a_log_is_read_in_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "upstream-x.log"
    assert servers.tail(log, 5) == ([], 0)
    log.write_bytes(b"one\ntwo\nthr")
    assert servers.tail(log, 5) == (["one", "two"], 8)
    assert servers.tail(log, 1) == (["two"], 8)
    with log.open("ab") as file:
        file.write(b"ee\n\xff\n")
    assert servers.tail(log, 5, 8) == (["three", "�"], 16)
    assert servers.tail(log, 5, 16) == ([], 16)
    log.write_bytes(b"new\n")  # rotated
    assert servers.tail(log, 5, 16) == (["new"], 4)


def test_of_a_big_log_only_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "upstream-x.log"
    line = b"x" * 99 + b"\n"
    log.write_bytes(line * 20_000)
    lines, end = servers.tail(log, 10_000_000)
    assert end == 2_000_000
    assert all(one == "x" * 99 for one in lines)
    assert len(lines) < 11_000


def test_shapes_name_no_secret() -> None:
    """K02: the one shape that carries a secret does not show it."""
    from coffer_common.api import SetCredential

    assert "hunter2" not in repr(SetCredential(value="hunter2"))
    assert msgspec.json.encode(SetCredential(value="x")) == b'{"value":"x"}'
