"""Cursors, deadlines, liveness, gates, templates and instructions: the small decisions."""

import ast
import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coffer_common import errors, frames
from coffer_supervisor import core
from coffer_supervisor.core import cursors, uritemplate
from coffer_supervisor.core import lifecycle_words as w
from coffer_supervisor.core.calls import CallError, CallRequest, Nobody, Principal, Scope, failure, passed_failure
from coffer_supervisor.core.cursors import Position
from coffer_supervisor.core.deadlines import Deadlines
from coffer_supervisor.core.gate import gate
from coffer_supervisor.core.instructions import LIMIT, instructions
from coffer_supervisor.core.lifecycle import Lifecycle
from coffer_supervisor.core.liveness import Liveness, Verdict

# ---- cursors


@given(st.text(), st.integers(0, 10**6), st.text())
def test_a_cursor_comes_back_as_the_position_it_was_made_of(server: str, place: int, key: str) -> None:
    position = Position(server, place, key)
    assert cursors.decode("tool", cursors.encode("tool", position).decode()) == position


@pytest.mark.parametrize("made_up", ["", "abc", "MTIz", "é", "====", "page-2", "A" * 40])
def test_a_made_up_cursor_names_nothing(made_up: str) -> None:
    """Q02: an unknown cursor is refused, never answered with page one."""
    assert cursors.decode("tool", made_up) is None


def test_a_cursor_that_holds_no_text_names_nothing() -> None:
    forged = bytes(6) + b"\x92\xa4tool\x93\xa1\xff\x01\xa1b"
    assert cursors.decode("tool", base64.urlsafe_b64encode(forged).decode()) is None


def test_a_cursor_of_another_list_or_with_a_changed_letter_names_nothing() -> None:
    cursor = cursors.encode("tool", Position("a", 1, "b")).decode()
    assert cursors.decode("prompt", cursor) is None
    swapped = "B" if cursor[0] != "B" else "C"
    assert cursors.decode("tool", swapped + cursor[1:]) is None


def test_positions_are_ordered_by_server_then_place() -> None:
    assert cursors.before(Position("a", 9, "z"), Position("b", 0, "a"))
    assert not cursors.before(Position("a", 1, ""), Position("a", 1, ""))


# ---- deadlines


def test_deadlines_come_due_in_order_and_leave_nothing_behind() -> None:
    wheel = Deadlines()
    assert wheel.next() is None
    for number, when in ((1, 5.2), (2, 3.0), (3, 5.9), (4, 60.0)):
        wheel.set(number, when)
    wheel.drop(3)
    wheel.drop(99)
    assert (wheel.next(), len(wheel)) == (3.0, 3)
    assert wheel.due(2.9) == []
    assert wheel.due(6.0) == [2, 1]
    wheel.set(4, 7.0)
    assert wheel.due(100.0) == [4]
    assert (len(wheel), wheel.next()) == (0, None)


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 50))), st.floats(0, 60))
def test_nothing_is_due_early_and_nothing_more_than_a_second_late(sets: list[tuple[int, float]], now: float) -> None:
    wheel, last = Deadlines(), dict(sets)
    for number, when in sets:
        wheel.set(number, when)
    due = set(wheel.due(now))
    assert all(last[number] <= now for number in due)
    assert all(number in due for number, when in last.items() if when <= now - 1.0)


# ---- liveness


def _beating(liveness: Liveness[str], until: float, *, lag: float = 0.0, cpu: float = 0.0) -> list[Verdict[str]]:
    for second in range(1, int(until) + 1):
        liveness.beat("w", float(second), loop_lag=max(0.0, second - 1.0) if lag else 0.0, cpu_seconds=cpu * second)
        if found := liveness.check(float(second)):
            return found
    return []


def test_ten_missed_beats_are_one_too_many() -> None:
    liveness: Liveness[str] = Liveness()
    liveness.watch("w", 0.0)
    assert not any(liveness.check(float(second)) for second in range(11))
    (verdict,) = liveness.check(11.0)
    assert (verdict.who, "11 heartbeats" in verdict.reason) == ("w", True)
    assert liveness.check(12.0) == [], "said once"


def test_a_gap_in_our_own_clock_is_forgiven() -> None:
    """A supervisor that notices a gap in its own clock (sleep, suspend) forgives."""
    liveness: Liveness[str] = Liveness()
    liveness.watch("w", 0.0)
    liveness.check(1.0)
    assert liveness.check(60.0) == []
    assert [n for n in range(1, 12) if liveness.check(60.0 + n)] == [9]


def test_a_loop_that_stands_still_without_using_the_cpu_is_replaced_after_thirty_seconds() -> None:
    liveness: Liveness[str] = Liveness()
    liveness.watch("w", 0.0)
    found = _beating(liveness, 60, lag=1.0)
    assert found
    assert "has not turned" in found[0].reason


def test_a_loop_that_is_merely_busy_is_left_alone() -> None:
    """One that is merely busy is not killed."""
    liveness: Liveness[str] = Liveness()
    liveness.watch("w", 0.0)
    assert _beating(liveness, 120, lag=1.0, cpu=0.9) == []


def test_a_gap_also_counts_for_one_that_stands_still() -> None:
    liveness: Liveness[str] = Liveness()
    liveness.watch("w", 10.0)
    liveness.check(19.0)
    liveness.beat("w", 20.0, loop_lag=20.0, cpu_seconds=0.0)
    assert liveness.check(20.0) == []
    assert liveness.check(50.0) == []


def test_a_late_beat_is_worth_a_look() -> None:
    """Whether a worker that has gone silent still lives is asked long before it would be replaced."""
    liveness: Liveness[str] = Liveness()
    liveness.watch("w", 0.0)
    assert liveness.silent(1.0) == []
    assert liveness.silent(2.0) == ["w"]
    liveness.beat("w", 2.0, loop_lag=0.0, cpu_seconds=0.0)
    assert liveness.silent(3.0) == []


def test_beats_of_the_forgotten_are_nothing() -> None:
    liveness: Liveness[str] = Liveness()
    liveness.watch("w", 0.0)
    liveness.forget("w")
    liveness.beat("w", 1.0, loop_lag=0.0, cpu_seconds=0.0)
    assert liveness.check(100.0) == []


# ---- gates


def _life(*events: w.Event) -> Lifecycle:
    life = Lifecycle("files")
    for event in events:
        life.handle(event, 0.0)
    return life


_RUNNING = (w.Enable(), w.Granted(), w.Greeted(1, 7))


@pytest.mark.parametrize(
    ("events", "way"),
    [
        ((), "refuse"),
        ((w.Enable(),), "hold"),
        ((w.Enable(), w.Granted()), "hold"),
        (_RUNNING, "open"),
        ((*_RUNNING, w.Restart()), "hold"),
        ((*_RUNNING, w.Disable()), "refuse"),
        ((*_RUNNING, w.Exited(1, "crashed")), "hold"),
        ((*_RUNNING, w.Unresponsive(1, "silent")), "hold"),
        ((w.Enable(), w.Granted(), w.Unconfigurable(1, "no credential x")), "refuse"),
    ],
)
def test_what_a_call_meets(events: tuple[w.Event, ...], way: str) -> None:
    assert gate(_life(*events), None).way == way


@pytest.mark.parametrize("state", ["starting", "ready", "backoff", "stopping"])
def test_the_worker_itself_holds_calls_while_its_upstream_comes_back(state: frames.UpstreamState) -> None:
    assert gate(_life(*_RUNNING), frames.State(state)).way == "open"


def test_who_waits_for_a_first_catalogue_is_told_why_there_is_none_yet() -> None:
    facts = frames.State("backoff", message="Upstream 'files' exited with code 3", stderr=("bad key",), retry_in=1.5)
    found = gate(_life(*_RUNNING), facts)
    assert found.reason is errors.UPSTREAM_BACKOFF
    assert found.message == (
        "server 'files' is not there: exited with code 3; its last output: bad key; the next try is in 1.5 s"
    )


def test_failed_is_told_at_once_with_cause_and_last_words() -> None:
    """Calls of a failed upstream fail at once, naming the cause, with the last lines of its stderr."""
    facts = frames.State("failed", message="exited with code 3", stderr=("one", " ", "two"))
    found = gate(_life(*_RUNNING), facts)
    assert found.reason is errors.UPSTREAM_FAILED
    assert "exited with code 3; its last output: one | two; try again with: coffer mcp restart files" in found.message
    assert "no reason given" in gate(_life(*_RUNNING), frames.State("failed")).message
    said = "Upstream 'files' exited with code 3. The last lines of its stderr: one | two"
    quoted = gate(_life(*_RUNNING), frames.State("failed", message=said, stderr=("one", "two")))
    assert quoted.message == (
        "server 'files' failed: exited with code 3. The last lines of its stderr: one | two; "
        "try again with: coffer mcp restart files"
    )


def test_a_login_that_is_needed_and_a_credential_that_is_missing_are_told() -> None:
    found = gate(_life(*_RUNNING), frames.State("needs_login", message="see the browser"))
    assert (found.reason, "see the browser" in found.message) == (errors.NEEDS_LOGIN, True)
    given_up = gate(_life(w.Enable(), w.Granted(), w.Unconfigurable(1, "no credential x")), None)
    assert "no credential x" in given_up.message


# ---- templates


@pytest.mark.parametrize(
    ("template", "uri", "fits"),
    [
        ("memo://notes/{id}", "memo://notes/7", True),
        ("memo://notes/{id}", "memo://notes/7/x", False),
        ("memo://notes/{+path}", "memo://notes/7/x", True),
        ("file:///{dir}/{name}.txt", "file:///a/b.txt", True),
        ("db://t{?limit,offset}", "db://t?limit=1", True),
        ("db://t{?limit}", "db://t", True),
        ("db://t?a=1{&b}", "db://t?a=1&b=2", True),
        ("x://a{/rest}", "x://a/b/c", True),
        ("x://a{.ext}", "x://a.md", True),
        ("x://a{;v}", "x://a;v=1", True),
        ("x://a{#part}", "x://a#top", True),
        ("x://{a}{b}", "x://anything", True),
        ("x://{a}{+b}", "x://any/thing", True),
        ("x://{+a}{b}", "x://any/thing", True),
        ("x://{a}{?b}", "x://any?b=1", True),
        ("x://plain", "x://plain", True),
        ("x://(.*)", "x://anything", False),
        ("x://{a}", "x://" + "y" * 5000, False),
    ],
)
def test_whether_a_uri_may_come_from_a_template(template: str, uri: str, fits: bool) -> None:
    assert uritemplate.matches(template, uri) is fits


# ---- instructions


def test_instructions_carry_the_upstreams_own_under_their_names_within_the_limit() -> None:
    text = instructions({"b": "Use b.", "a": "Use a.", "silent": "  "})
    assert text.index("## a\nUse a.") < text.index("## b\nUse b.")
    assert "silent" not in text
    long = instructions({f"s{n}": "word " * 1000 for n in range(60)})
    assert len(long) <= LIMIT
    assert "[cut]" in long


# ---- the words of the seam


def test_scopes_name_and_errors_carry_their_data() -> None:
    assert (Scope("/mcp").naming, Scope("/servers/a/mcp", server="a").naming) == ("prefixed", "raw")
    found = failure(errors.UNKNOWN_RESOURCE, "no such", "legacy", server="a", data={"uri": "x://y"})
    assert (found.code, json.loads(found.error)["data"]["uri"]) == (-32002, "x://y")
    assert failure(errors.UNKNOWN_RESOURCE, "no such", "modern").code == -32602
    assert str(CallError(found)) == "no such"


@pytest.mark.parametrize(
    ("principal", "said", "shown"),
    [("client:laptop", "cursor", "laptop"), ("daemon", "cursor", "cursor"), ("local", "", "local user")],
)
def test_a_caller_is_shown_by_its_identity_else_by_what_it_calls_itself(principal: str, said: str, shown: str) -> None:
    """A name that a client gives itself never hides the identity that it came with."""
    caller = frames.Caller("s", principal, "/mcp", "prefixed", "2025-11-25", "http")
    name = principal.removeprefix("client:") if principal.startswith("client:") else "local user"
    request = CallRequest(caller, Principal(principal, name), Scope("/mcp"), "tools/call", b"{}", client_name=said)
    assert request.shown_client == shown


def test_an_upstreams_own_error_passes_as_it_is() -> None:
    """S09: code, message and data are not replaced."""
    own = b'{"code":-1,"message":"m","data":{"big":12345678901234567890}}'
    assert passed_failure(-1, own, "m", "", 200).error == own
    assert json.loads(passed_failure(7, b"", "only words", "", 200).error) == {"code": 7, "message": "only words"}


# ---- what no core may do


def test_no_core_imports_a_loop_a_socket_a_clock_or_a_logger() -> None:
    """Decisions are sans-I/O: time is passed in, effects are returned."""
    refused = {"asyncio", "socket", "time", "datetime", "logging", "threading", "random", "zmq", "aiohttp"}
    for path in Path(core.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        plain = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
        found = {alias.name.partition(".")[0] for node in plain for alias in node.names}
        found |= {(node.module or "").partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not found & refused, f"{path.name} imports {found & refused}"


def test_nobody_hears_and_nobody_can_be_asked() -> None:
    nobody = Nobody()
    nobody.lists_changed("s", frozenset({"tools"}))
    nobody.resource_updated("s", (), "x:1")
    nobody.session_notice("s", (), "notifications/message", b"{}")
    nobody.session_withdraw("s1", 1)
    assert not nobody.session_ask("s1", 1, "roots/list", b"{}")
