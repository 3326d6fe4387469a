"""The shim's decisions as transcripts: an event and the time in, effects out."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coffer_cli import shim_core
from coffer_cli.shim_core import DRAIN_SECONDS, RETRY_SECONDS, WAIT_SECONDS, Core
from coffer_cli.shim_effects import Attach, Detach, Effect, Exit, Log, ToClient, ToDaemon
from coffer_common.version import VERSION

ACK = "notifications/subscriptions/acknowledged"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
REOPEN = "coffer-shim/initialize"


def message(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


def request(mid: Any, method: str = "tools/call", **params: Any) -> bytes:
    return message(id=mid, method=method, params=params)


def notice(method: str, **params: Any) -> bytes:
    return message(method=method, params=params)


def result(mid: Any, **value: Any) -> bytes:
    return message(id=mid, result=value)


def to_client(effects: Sequence[Effect]) -> list[Any]:
    return [json.loads(effect.line) for effect in effects if isinstance(effect, ToClient)]


def to_daemon(effects: Sequence[Effect]) -> list[Any]:
    return [json.loads(effect.line) for effect in effects if isinstance(effect, ToDaemon)]


def rest(effects: Sequence[Effect]) -> list[Effect]:
    return [effect for effect in effects if not isinstance(effect, ToClient | ToDaemon | Log)]


def logs(effects: Sequence[Effect]) -> str:
    return " ".join(effect.text for effect in effects if isinstance(effect, Log))


def attached(**more: Any) -> Core:
    core = Core(**more)
    assert core.start() == [Attach("start")]
    assert core.attached(VERSION) == []
    return core


def legacy(revision: str = "2025-11-25", **more: Any) -> Core:
    """A core whose client has done its handshake."""
    core = attached(**more)
    core.client_line(request("init", "initialize", protocolVersion=revision), 0)
    capabilities = {kind: {"listChanged": True} for kind in ("tools", "resources")}
    core.daemon_line(result("init", protocolVersion=revision, capabilities=capabilities), 0)
    core.client_line(notice("notifications/initialized"), 0)
    return core


def lose(core: Core, goodbye: str = "", now: float = 1) -> list[Effect]:
    if goodbye:
        return core.daemon_line(json.dumps({"coffer": "goodbye", "reason": goodbye}).encode(), now)
    return core.daemon_lost(now)


def test_open_lines_pass_both_ways_byte_for_byte() -> None:
    core = attached()
    line = b'{"jsonrpc":"2.0" ,"id":7,"method":"x","params":{"n":1e2}}'
    assert core.client_line(line, 0) == [ToDaemon(line)]
    answer = b'{"id":7,"jsonrpc":"2.0","result":{"n":1E+2}}'
    assert core.daemon_line(answer, 0) == [ToClient(answer)]
    for other in (notice("notifications/progress"), b'{"jsonrpc":"2.0"}', request(None, "x"), result(99)):
        assert core.daemon_line(other, 0) == [ToClient(other)]
    other = notice("notifications/x")
    assert core.client_line(other, 0) == [ToDaemon(other)]


@pytest.mark.parametrize("core", [Core(), attached()])
def test_what_is_neither_request_nor_answer_is_refused_at_once(core: Core) -> None:
    """As over HTTP: with its id where that may be one, so that its sender does not wait; daemon or not."""
    for line, mid in (
        (b'{"jsonrpc":"2.0","id":9}', 9),
        (b'{"jsonrpc":"2.0","id":9,"result":{},"error":{}}', 9),
        (b'{"jsonrpc":"2.0"}', None),
        (request(None), None),
        (request(1.5), None),
        (b'{"jsonrpc":"2.0","id":"\\ud800","method":"x"}', None),
    ):
        (answer,) = to_client(core.client_line(line, 0))
        assert (answer["id"], answer["error"]["code"]) == (mid, -32600)
    assert rest(core.client_end(0)) == [Exit(0)]


def test_ids_are_compared_to_the_last_digit() -> None:
    """Not as a computer's fractions, which take neighbours beyond 2**53 for one."""
    core = attached()
    for mid in (2**64, 2**64 + 1):
        core.client_line(request(mid), 0)
    core.client_end(0)
    assert rest(core.daemon_line(result(2**64 + 1), 0)) == []
    assert [m["id"] for m in to_client(core.tick(DRAIN_SECONDS))] == [2**64]


def test_an_id_is_taken_once_while_its_request_is_open() -> None:
    """The second would be answered in the first one's place."""
    core = attached()
    core.client_line(request(1), 0)
    (refused,) = to_client(core.client_line(request(1, "ping"), 0))
    assert (refused["id"], refused["error"]["code"]) == (1, -32600)
    assert core.daemon_line(result(1), 0) == [ToClient(result(1))]
    assert len(to_daemon(core.client_line(request(1), 0))) == 1


def test_a_cancel_with_half_a_surrogate_pair_in_its_reason_is_one() -> None:
    core = attached()
    core.client_line(request(1), 0)
    notice_ = notice("notifications/cancelled", requestId=1, reason="cut \ud83d")
    assert core.client_line(notice_, 0) == [ToDaemon(notice_)]
    assert core.client_end(0) == [Exit(0)]


def test_bad_lines_of_the_client_are_answered_here() -> None:
    """F09, H13."""
    core = attached()
    for line, code in ((b"{oops", -32700), (b"7", -32600), (b"[1]", -32600), (b'{"coffer":"hello"}', -32600)):
        (answer,) = to_client(core.client_line(line, 0))
        assert (answer["id"], answer["error"]["code"]) == (None, code)
        reason = "parse_error" if code == -32700 else "invalid_request"
        assert answer["error"]["data"] == {"reason": reason, "retryable": False}
    assert to_client(core.client_oversize(5))[0]["error"]["code"] == -32600


def test_bad_lines_of_the_daemon_never_reach_the_client() -> None:
    core = attached()
    for line in (b"{oops", b"[]", b'{"coffer":"what"}', b'{"coffer":"welcome","version":1,"daemon_version":""}'):
        effects = core.daemon_line(line, 0)
        assert len(effects) == 1
        assert logs(effects)


def test_requests_wait_for_the_first_daemon_in_order() -> None:
    """H12."""
    core = Core()
    core.start()
    lines = [request(1, "initialize"), notice("notifications/initialized"), request(2)]
    assert [core.client_line(line, 0) for line in lines] == [[], [], []]
    assert core.attached(VERSION) == [ToDaemon(line) for line in lines]


def test_a_request_waits_so_long_and_then_fails() -> None:
    core = Core()
    core.client_line(request(1), 5)
    assert core.deadline == 5 + WAIT_SECONDS
    assert core.tick(5 + WAIT_SECONDS - 1) == []
    effects = core.tick(5 + WAIT_SECONDS)
    assert to_client(effects)[0]["error"]["data"]["reason"] == "daemon_absent"
    assert core.deadline is None
    assert core.attached(VERSION) == []


def test_waiting_bytes_stop_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim_core, "QUEUE_BYTES", 100)
    core = Core()
    assert core.reads_client
    core.client_line(request(1, text="x" * 100), 0)
    assert not core.reads_client
    core.attached(VERSION)
    assert core.reads_client


def test_lost_calls_get_an_error_and_a_crash_looks_for_another_daemon() -> None:
    core = attached()
    for mid in (1, "1"):
        core.client_line(request(mid), 0)
    effects = lose(core)
    assert effects[0] == Detach()
    assert [(m["id"], m["error"]["data"]["reason"]) for m in to_client(effects)] == [
        (1, "daemon_lost"),
        ("1", "daemon_lost"),
    ]
    assert "tools/call" in to_client(effects)[0]["error"]["message"]
    assert rest(effects) == [Detach(), Attach("start")]
    assert core.client_line(request(2), 2) == []
    assert to_daemon(core.attached(VERSION)) == [json.loads(request(2))]


def test_a_restart_is_waited_for() -> None:
    core = attached()
    assert rest(lose(core, "restarting")) == [Detach(), Attach("restart")]


def test_a_deliberate_stop_fails_calls_and_starts_nothing() -> None:
    core = attached()
    core.client_line(request(1), 0)
    effects = lose(core, "stopped")
    assert rest(effects) == [Detach(), Attach("watch")]
    assert core.client_line(request(2), 1000) == [Attach("look")]
    effects = core.attach_failed("no Coffer daemon runs", 1000)
    (answer,) = to_client(effects)
    assert answer["error"]["data"] == {"reason": "daemon_absent", "retryable": True}
    assert "coffer daemon start" in answer["error"]["message"]
    assert rest(effects) == [Attach("watch")]
    assert core.client_line(notice("notifications/x"), 1000) == []
    assert core.attached(VERSION) == []
    assert to_daemon(core.client_line(request(3), 1001))


def test_a_call_after_a_stop_finds_the_daemon_that_was_started_since() -> None:
    core = attached()
    lose(core, "stopped")
    assert core.client_line(request(2), 10) == [Attach("look")]
    assert core.client_line(request(3), 10) == []
    assert len(to_daemon(core.attached(VERSION))) == 2


def test_without_spawn_every_end_is_like_a_stop() -> None:
    core = attached(spawn=False)
    effects = lose(core)
    assert rest(effects) == [Detach(), Attach("watch")]
    assert "--no-spawn" in logs(effects)
    assert core.client_line(request(1), 1e6) == [Attach("look")]
    assert to_client(core.attach_failed("none", 1e6))[0]["error"]["data"]["reason"] == "daemon_absent"


def test_no_daemon_and_no_spawn_at_the_start_is_exit_three() -> None:
    core = Core(spawn=False)
    assert rest(core.attach_failed("none runs", 0, "not_running")) == [Exit(3)]


def test_a_failed_start_is_told_and_tried_again_by_a_later_request() -> None:
    core = Core()
    core.client_line(request(1), 0)
    core.client_line(notice("notifications/x"), 0)
    effects = core.attach_failed("no port is free", 1)
    assert to_client(effects)[0]["error"]["message"] == "no port is free"
    assert rest(effects) == [Attach("watch")]
    assert to_client(core.client_line(request(2), 1 + RETRY_SECONDS - 1))
    assert core.client_line(request(3), 1 + RETRY_SECONDS) == [Attach("start")]
    assert core.client_line(request(4), 1 + RETRY_SECONDS) == []


def test_the_session_is_opened_anew_with_the_client_s_own_handshake() -> None:
    """H03."""
    core = legacy()
    lose(core)
    core.client_line(request(1), 2)
    (again,) = to_daemon(core.attached(VERSION))
    assert (again["id"], again["method"]) == (REOPEN, "initialize")
    assert again["params"] == {"protocolVersion": "2025-11-25"}
    assert core.client_line(request(2), 3) == []
    effects = core.daemon_line(result(REOPEN, capabilities={}), 3)
    assert [m["method"] for m in to_daemon(effects)] == ["notifications/initialized", "tools/call", "tools/call"]
    assert [m["method"] for m in to_client(effects)] == [
        "notifications/tools/list_changed",
        "notifications/resources/list_changed",
    ]


def test_a_refused_handshake_is_logged_and_requests_go_on() -> None:
    core = legacy()
    lose(core)
    core.client_line(request(1), 2)
    core.attached(VERSION)
    effects = core.daemon_line(message(id=REOPEN, error={"code": 1, "message": ""}), 2)
    assert "refused" in logs(effects)
    assert [m["id"] for m in to_daemon(effects)] == [1]
    assert to_client(effects) == []


def test_answers_to_what_the_shim_repeated_stay_here() -> None:
    core = legacy()
    core.client_line(request(1, "logging/setLevel", level="info"), 0)
    core.daemon_line(result(1), 0)
    lose(core)
    core.attached(VERSION)
    effects = core.daemon_line(result(REOPEN), 1)
    repeated = to_daemon(effects)[1]
    assert repeated["method"] == "logging/setLevel"
    assert core.daemon_line(result(repeated["id"]), 1) == []


def test_initialized_that_comes_between_two_daemons_is_part_of_the_next_handshake() -> None:
    core = attached()
    core.client_line(request("init", "initialize"), 0)
    core.daemon_line(result("init", capabilities={"tools": {"listChanged": True}}), 0)
    lose(core)
    assert core.client_line(notice("notifications/initialized"), 1) == []
    core.attached(VERSION)
    effects = core.daemon_line(result(REOPEN), 1)
    assert [m["method"] for m in to_daemon(effects)] == ["notifications/initialized"]


def test_without_initialized_no_list_change_is_sent() -> None:
    core = attached()
    core.client_line(request("init", "initialize"), 0)
    core.daemon_line(result("init", capabilities={"tools": {"listChanged": True}}), 0)
    lose(core)
    core.attached(VERSION)
    assert core.daemon_line(result(REOPEN), 1) == []


def test_an_unanswered_initialize_is_asked_again() -> None:
    core = attached()
    core.client_line(request(1, "initialize"), 0)
    core.client_line(request(2), 0)
    assert [m["id"] for m in to_client(lose(core))] == [2]
    assert to_daemon(core.attached(VERSION)) == [json.loads(request(1, "initialize"))]
    assert to_client(lose(core, "stopped"))[0]["id"] == 1


def listening(core: Core, mid: Any = 7) -> bytes:
    line = request(mid, "subscriptions/listen", notifications={"toolsListChanged": True})
    core.client_line(line, 0)
    return line


def ack(mid: Any = 7) -> bytes:
    return notice(ACK, notifications={"toolsListChanged": True}, _meta={SUBSCRIPTION: mid})


@pytest.mark.parametrize("goodbye", ["", "restarting", "stopped"])
def test_listen_streams_are_carried_over(goodbye: str) -> None:
    core = attached()
    line = listening(core)
    assert core.daemon_line(ack(), 0) == [ToClient(ack())]
    assert to_client(lose(core, goodbye)) == []
    assert core.attached(VERSION) == [ToDaemon(line)]
    (told,) = to_client(core.daemon_line(ack(), 1))
    assert told["method"] == "notifications/tools/list_changed"
    assert told["params"]["_meta"] == {SUBSCRIPTION: 7}


def test_a_first_acknowledgement_passes_also_from_the_second_daemon() -> None:
    core = attached()
    listening(core)
    lose(core)
    core.attached(VERSION)
    assert core.daemon_line(ack(), 1) == [ToClient(ack())]
    stranger = notice(ACK, notifications={}, _meta={SUBSCRIPTION: 8})
    nameless = notice(ACK, notifications={})
    for line in (stranger, nameless):
        assert core.daemon_line(line, 1) == [ToClient(line)]


@pytest.mark.parametrize("end", ["result", "daemon cancels", "client cancels"])
def test_a_listen_stream_that_ended_is_not_sent_again(end: str) -> None:
    core = attached()
    listening(core)
    if end == "result":
        core.daemon_line(result(7), 0)
    elif end == "daemon cancels":
        core.daemon_line(notice("notifications/cancelled", requestId=7), 0)
    else:
        assert to_daemon(core.client_line(notice("notifications/cancelled", requestId=7), 0))
    lose(core)
    assert core.attached(VERSION) == []


def test_cancelled_requests_are_forgotten() -> None:
    core = attached()
    core.client_line(request(1), 0)
    line = notice("notifications/cancelled", requestId=1)
    assert core.client_line(line, 0) == [ToDaemon(line)]
    assert to_client(lose(core)) == []
    core.client_line(request(0), 0)
    core.client_line(request(2), 0)
    assert core.client_line(notice("notifications/cancelled", requestId=2), 0) == []
    assert core.client_line(notice("notifications/cancelled", requestId=3), 0) == []
    assert core.client_line(notice("notifications/cancelled"), 0) == []
    assert [m["id"] for m in to_daemon(core.attached(VERSION))] == [0]


def test_questions_of_a_dead_daemon_are_withdrawn_and_late_answers_dropped() -> None:
    core = attached()
    core.daemon_line(request("q", "roots/list"), 0)
    core.daemon_line(request("r", "roots/list"), 0)
    core.daemon_line(request("s", "roots/list"), 0)
    core.daemon_line(notice("notifications/cancelled", requestId="s"), 0)
    core.daemon_line(notice("notifications/cancelled"), 0)
    assert to_daemon(core.client_line(result("r"), 0))
    (withdrawn,) = to_client(lose(core))
    assert (withdrawn["method"], withdrawn["params"]["requestId"]) == ("notifications/cancelled", "q")
    for mid in ("q", None):
        assert logs(core.client_line(result(mid), 0))


def test_batches_belong_to_one_revision() -> None:
    """H13."""
    line = b'[{"id":1,"method":"a"}]'
    for core in (attached(), legacy("2025-06-18")):
        assert to_client(core.client_line(line, 0))[0]["error"]["code"] == -32600


def test_a_batch_is_sent_one_by_one_and_answered_together() -> None:
    core = legacy("2025-03-26")
    items = [request(1), request(2), notice("n")]
    assert core.client_line(b"[" + b",\n".join(items) + b"]", 0) == [ToDaemon(item) for item in items]
    assert core.daemon_line(result(2), 0) == []
    assert core.daemon_line(result(1), 0) == [ToClient(b"[" + result(2) + b"," + result(1) + b"]")]


def test_each_message_of_a_batch_that_wants_an_answer_has_one_in_the_array() -> None:
    """As over HTTP: an id that is taken, an id that is none, and what is no message are refused beside the rest."""
    core = legacy("2025-03-26")
    items = [request(1, "ping"), request(1, "ping"), request(1.5), message(id=3), notice("n")]
    assert core.client_line(b"[" + b",".join(items) + b"]", 0) == [ToDaemon(items[0]), ToDaemon(items[4])]
    ((*refused, answered),) = to_client(core.daemon_line(result(1), 0))
    assert [(a["id"], a["error"]["code"]) for a in refused] == [(1, -32600), (None, -32600), (3, -32600)]
    assert answered == json.loads(result(1))
    (all_refused,) = to_client(core.client_line(b"[" + message(id=3) + b"]", 0))
    assert [a["id"] for a in all_refused] == [3]


def test_a_batch_with_a_cancelled_request_is_answered_by_the_rest() -> None:
    core = legacy("2025-03-26")
    core.client_line(b"[" + request(1) + b"," + request(2) + b"," + request(3) + b"]", 0)
    core.client_line(notice("notifications/cancelled", requestId=1), 0)
    core.daemon_line(result(2), 0)
    effects = core.client_line(notice("notifications/cancelled", requestId=3), 0)
    assert to_client(effects) == [[json.loads(result(2))]]


def test_a_batch_that_is_lost_is_answered_together() -> None:
    core = legacy("2025-03-26")
    core.client_line(b"[" + request(1) + b"," + request(2) + b"]", 0)
    core.daemon_line(result(1), 0)
    (answers,) = to_client(lose(core))
    assert [a["id"] for a in answers] == [1, 2]


def test_the_end_of_input_waits_for_answers_in_flight() -> None:
    """F13."""
    core = attached()
    core.client_line(request(1), 0)
    assert core.client_end(0) == []
    assert core.deadline == DRAIN_SECONDS
    assert core.tick(DRAIN_SECONDS - 1) == []
    assert core.daemon_line(result(1), 1) == [ToClient(result(1)), Exit(0)]


def test_the_drain_is_bounded_and_each_call_gets_an_error() -> None:
    core = attached()
    core.client_line(request(1), 0)
    listening(core)
    core.client_end(0)
    effects = core.tick(DRAIN_SECONDS)
    assert [(m["id"], m["error"]["data"]["reason"]) for m in to_client(effects)] == [(1, "cancelled")]
    assert rest(effects) == [Exit(0)]


def test_with_nothing_in_flight_the_end_of_input_is_the_end() -> None:
    core = attached()
    listening(core)
    assert core.client_end(0) == [Exit(0)]
    assert Core().client_end(0) == [Exit(0)]


def test_the_end_of_input_waits_for_the_daemon_too() -> None:
    core = Core()
    core.client_line(request(1), 0)
    core.client_line(notice("n"), 0)
    assert core.client_end(0) == []
    assert len(to_daemon(core.attached(VERSION))) == 2
    assert core.daemon_line(result(1), 1)[-1] == Exit(0)


def test_a_last_notification_is_delivered_before_the_end() -> None:
    core = Core()
    core.client_line(notice("n"), 0)
    assert core.client_end(0) == []
    assert core.attached(VERSION) == [ToDaemon(notice("n")), Exit(0)]


def test_where_no_daemon_was_ever_reached_the_exit_code_says_so() -> None:
    core = Core()
    core.client_line(request(1), 0)
    core.client_end(0)
    assert rest(core.attach_failed("no", 1)) == [Attach("watch"), Exit(3)]
    late = Core()
    late.client_line(request(1), 0)
    late.client_end(0)
    effects = late.tick(DRAIN_SECONDS)
    assert to_client(effects)[0]["error"]["data"]["reason"] == "daemon_absent"
    assert rest(effects) == [Exit(3)]


def test_an_initialized_that_came_too_early_counts_all_the_same() -> None:
    """A client that does not wait for our answer is a full session with the next daemon too."""
    core = Core()
    core.client_line(request(1, "initialize", protocolVersion="2025-11-25"), 0)
    core.client_line(notice("notifications/initialized"), 0)
    assert [one["method"] for one in to_daemon(core.attached(VERSION))] == ["initialize", "notifications/initialized"]
    answer = result(1, protocolVersion="2025-11-25", capabilities={"tools": {"listChanged": True}})
    core.daemon_line(answer, 0)
    lose(core, "restarting")
    assert [one["method"] for one in to_daemon(core.attached(VERSION))] == ["initialize"]
    effects = core.daemon_line(result(REOPEN, protocolVersion="2025-11-25", capabilities={}), 1)
    assert [one["method"] for one in to_daemon(effects)] == ["notifications/initialized"]
    assert [one["method"] for one in to_client(effects)] == ["notifications/tools/list_changed"]


def test_a_refused_group_is_no_absent_daemon() -> None:
    """Its requests are answered with what is wrong, and not to be tried again; the group may come into being later."""
    core = Core()
    core.client_line(request(1), 0)
    effects = core.attach_failed("there is no group named x", 0, "no_group")
    (answer,) = to_client(effects)
    assert answer["error"]["data"] == {"reason": "unknown_group", "retryable": False}
    assert "no group named x" in answer["error"]["message"]
    assert rest(effects) == [Attach("watch")]
    assert to_client(core.client_line(request(2), 1))[0]["error"]["data"]["reason"] == "unknown_group"
    assert core.client_line(request(3), RETRY_SECONDS + 1) == [Attach("start")]
    assert rest(core.client_end(RETRY_SECONDS + 1)) == []
    effects = core.attach_failed("there is no group named x", RETRY_SECONDS + 1, "no_group")
    assert rest(effects) == [Attach("watch"), Exit(4)]


def test_a_group_that_is_gone_after_a_restart_is_said() -> None:
    core = attached(spawn=False)
    lose(core)
    assert core.client_line(request(1), 0) == [Attach("look")]
    effects = core.attach_failed("there is no group named x", 0, "no_group")
    assert to_client(effects)[0]["error"]["data"]["reason"] == "unknown_group"
    assert core.client_line(request(2), 1) == [Attach("look")]
    core.attached(VERSION)
    lose(core)
    core.client_line(request(3), 2)
    assert to_client(core.attach_failed("none", 2))[0]["error"]["data"]["reason"] == "daemon_absent"


def test_a_daemon_lost_while_draining_ends_the_shim() -> None:
    core = attached()
    core.client_line(request(1), 0)
    core.client_end(0)
    effects = lose(core)
    assert to_client(effects)[0]["error"]["data"]["reason"] == "daemon_lost"
    assert rest(effects)[-1] == Exit(0)


@pytest.mark.parametrize(("theirs", "word"), [("0.0.1", "coffer daemon restart"), ("99.0.0", "restart the MCP client")])
def test_another_release_is_named(theirs: str, word: str) -> None:
    """D04."""
    assert word in logs(Core().attached(theirs))


@given(st.data())
def test_whatever_happens_each_request_is_answered_at_most_once_and_in_the_end_exactly_once(
    data: st.DataObject,
) -> None:
    core = Core()
    effects: list[Effect] = list(core.start())
    now, asked, open_at_daemon = 0.0, 0, set[int]()
    for _ in range(data.draw(st.integers(0, 30))):
        now += data.draw(st.sampled_from([0.0, 1.0, 20.0]))
        step = data.draw(st.sampled_from(["ask", "answer", "attach", "lose", "stop", "restart", "fail", "tick"]))
        connected = core.link in ("open", "reopening")
        new: list[Effect] = []
        if step == "ask":
            asked += 1
            new = core.client_line(request(asked), now)
        elif step == "answer" and open_at_daemon and connected:
            new = core.daemon_line(result(open_at_daemon.pop()), now)
        elif step == "attach" and not connected:
            new = core.attached(VERSION)
        elif step in ("lose", "stop", "restart") and connected:
            open_at_daemon.clear()
            new = lose(core, {"lose": "", "stop": "stopped", "restart": "restarting"}[step], now)
        elif step == "fail" and not connected:
            new = core.attach_failed("no", now)
        elif step == "tick":
            new = core.tick(now)
        open_at_daemon |= {m["id"] for m in to_daemon(new)}
        effects += new
    effects += core.client_end(now)
    effects += core.tick(now + DRAIN_SECONDS)
    answered = sorted(m["id"] for m in to_client(effects))
    assert answered == list(range(1, asked + 1))
    assert any(isinstance(effect, Exit) for effect in effects)
