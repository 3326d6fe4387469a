"""docs/limits.md says of each limit what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coffer_cli import options
from coffer_common import errors, log, restart, shimproto
from coffer_common.resources import Limits
from coffer_supervisor import app, bodies, credentials, daemon, lists, supervision, workers
from coffer_supervisor.core import batch, instructions, liveness, messages, session, subscriptions
from coffer_supervisor.endpoint import http, served, shim_socket
from coffer_worker import asking, logins
from coffer_worker import lists as worker_lists
from coffer_worker import log as worker_log
from coffer_worker.core import intake

PAGE = (Path(__file__).parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]
UNITS = {"MiB": 1 << 20, "KiB": 1 << 10}

FIXED = [
    ("questions of one connection", asking.MAX_ASKS),
    ("pages of one list", worker_lists.MAX_PAGES),
    ("starts that fail", restart.Policy().attempts),
    ("silence of its worker", liveness.MISSED_BEATS * liveness.BEAT_SECONDS),
    ("event loop that stands still", liveness.STUCK_SECONDS),
    ("nobody waits for", intake.RATE),
    ("writes on stderr", worker_log.LINES_A_SECOND),
    ("a message over the shim", http.MAX_BODY),
    ("a message over the shim", shimproto.MAX_LINE),
    ("a request's header", served._MAX_HEADER),
    ("the end of its header", served.REQUEST_SECONDS),
    ("a body that brings nothing", bodies.PIECE_SECONDS),
    ("without its hello", shim_socket.HELLO_SECONDS),
    ("HTTP connections at one time", served.MAX_CONNECTIONS),
    ("shims at one time", shim_socket.MAX_CONNECTIONS),
    ("messages of one batch", batch.MAX_ITEMS),
    ("sessions over HTTP", session.MAX_SESSIONS),
    ("without requests and streams", session.IDLE_SECONDS),
    ("listen stream subscribes", subscriptions.MAX_URIS),
    ("a stream that its client does not read", messages.MAX_MESSAGES),
    ("a shim that does not read", shim_socket.MAX_UNREAD),
    ("a list waits for a slow server", lists.DISCOVERY_SECONDS),
    ("wait to be accepted", daemon.BACKLOG),
    ("servers that start at one time", workers.STARTING_AT_ONCE),
    ("the daemon is told to stop", app.DRAIN_SECONDS),
    ("`daemon.log`", log.MAX_BYTES),
    ("a secret", credentials.MAX_SECRET),
    ("an answer of the keychain", credentials.KEYCHAIN_SECONDS),
    ("in the browser", logins.PERSON_SECONDS),
    ("tells a model", instructions.LIMIT),
]


def _first(text: str) -> float:
    """The first number of a cell in its unit."""
    found = re.match(r"([\d,]+) ?(MiB|KiB)?", text)
    assert found is not None, text
    return int(found[1].replace(",", "")) * UNITS.get(found[2], 1)


@pytest.mark.parametrize(("what", "value"), FIXED)
def test_what_no_setting_changes(what: str, value: float) -> None:
    """Each fixed limit has one row, with the number that holds."""
    (row,) = [row for row in ROWS if row[0][0].isdigit() and what in row[1]]
    assert _first(row[0]) == value


def test_the_limits_of_a_server_with_their_defaults() -> None:
    """Every limit that can be set is listed under the name that sets it, with its default and a reason that exists."""
    listed = {row[0].strip("`"): row for row in ROWS if row[0].startswith("`")}
    assert set(listed) == set(options._LIMITS) - {"max-calls"}
    for name, row in listed.items():
        default = getattr(Limits(), options._LIMITS[name])
        assert (row[1] == "none") if default is None else (_first(row[1]) == default), row
    for reason in re.findall(r"`(\w+_\w+)`", PAGE):
        assert reason in errors.REASONS, reason


def test_more_numbers_in_one_row() -> None:
    """The second number of those rows that have two."""
    assert f"{int(restart.Policy().attempts)} in {restart.Policy().window:g} s" in PAGE
    assert f"{worker_log.FILE_BYTES >> 20} MiB, {worker_log.KEPT + 1} files" in PAGE
    assert f"{log.MAX_BYTES >> 20} MiB, {log.FILES_KEPT + 1} files" in PAGE
    assert f"{messages.MAX_MESSAGES} messages, {messages.MAX_BYTES >> 20} MiB" in PAGE
    assert f"{supervision.FIRST_DISCOVERY_SECONDS:g} s while the daemon's first discovery runs" in PAGE
