"""The parked call, event by event: what the client is shown, what the upstream gets, which retry is good."""

from hypothesis import given
from hypothesis import strategies as st

from coffer_worker.core.parked import Owner, Parked, Refused, Resumed

ME = Owner("local", "/mcp", "digest")
Call = Parked[str, str]


def asked(*names: str, rounds: int = 10) -> Call:
    """A call whose client was shown these asks at 0, to be answered within 10 s."""
    it = Call(ME, rounds)
    for name in names:
        it.asked(name)
    it.show(0.0, 10.0)
    return it


def test_an_ask_answers_the_open_request() -> None:
    """running, U asks -> asked; several at once are one map."""
    it = Call(ME, 10)
    assert it.asked("a") == ("ask-1", True)
    assert it.asked("b") == ("ask-2", True)
    assert it.show(0.0, 10.0) == {"ask-1": "a", "ask-2": "b"}
    assert (it.stage, it.round) == ("asked", 1)


def test_an_ask_meanwhile_is_kept_for_the_next_round() -> None:
    it = asked("a")
    assert it.asked("late") == ("ask-2", False)
    assert it.retry(1, ME, {"ask-1": b"1"}, 1.0) == Resumed((("a", b"1"),))
    assert it.unanswered
    assert it.show(1.0, 10.0) == {"ask-2": "late"}


def test_all_answers_resume_the_call_and_its_reply_goes_at_once() -> None:
    it = asked("a")
    assert it.retry(1, ME, {"ask-1": b"1", "extra": b"2"}, 1.0) == Resumed((("a", b"1"),))
    assert (it.stage, it.unanswered) == ("resumed", False)
    assert it.replied("done")
    assert it.stage == "done"
    assert it.end() == ()


def test_missing_answers_are_asked_for_again_under_the_same_key() -> None:
    """Keys missing: what was given goes to the upstream, the rest is shown in a new round."""
    it = asked("a", "b")
    assert it.retry(1, ME, {"ask-2": b"2"}, 1.0) == Resumed((("b", b"2"),))
    assert it.show(1.0, 10.0) == {"ask-1": "a"}
    assert it.retry(1, ME, {"ask-1": b"1"}, 1.0) == Refused("it was used already")
    assert it.retry(2, ME, {"ask-1": b"1"}, 1.0) == Resumed((("a", b"1"),))


def test_a_reply_meanwhile_is_kept_for_the_retry() -> None:
    it = asked("a")
    assert not it.replied("result")
    assert it.outcome == "result"


def test_an_ask_that_the_upstream_took_back_is_not_answered() -> None:
    it = asked("a", "b")
    it.asked("c")
    it.withdrawn("ask-1")
    it.withdrawn("ask-3")
    it.withdrawn("nothing")
    assert it.retry(1, ME, {"ask-1": b"1", "ask-2": b"2"}, 1.0) == Resumed((("b", b"2"),))
    assert not it.unanswered


def test_what_is_no_good_retry_leaves_the_call_as_it_was() -> None:
    """Another principal, endpoint or arguments, a used state, an expired one: refused, nothing consumed."""
    it = asked("a")
    answers = {"ask-1": b"1"}
    for owner in (Owner("client:x", "/mcp", "digest"), Owner("local", "/groups/g/mcp", "digest")):
        assert it.retry(1, owner, answers, 1.0) == Refused("it belongs to another client")
    assert isinstance(it.retry(1, Owner("local", "/mcp", "other"), answers, 1.0), Refused)
    assert isinstance(it.retry(2, ME, answers, 1.0), Refused)
    assert it.retry(1, ME, answers, 10.0) == Refused("it has expired")
    assert it.retry(1, ME, answers, 9.9) == Resumed((("a", b"1"),))
    assert isinstance(it.retry(1, ME, answers, 9.9), Refused), "a state is used once"


def test_rounds_are_bounded() -> None:
    it = asked("a", rounds=1)
    it.retry(1, ME, {"ask-1": b"1"}, 1.0)
    it.asked("b")
    assert it.show(1.0, 10.0) is None


def test_what_nobody_answered_is_named_at_the_end() -> None:
    it = asked("a")
    it.asked("b")
    assert it.end() == ("a", "b")
    assert (it.stage, it.end()) == ("done", ())


@given(st.lists(st.sampled_from(["ask", "show", "retry", "part", "stale", "withdraw", "reply"]), max_size=40))
def test_each_ask_is_answered_at_most_once_and_each_state_used_at_most_once(events: list[str]) -> None:
    it, number, given_to, used = Call(ME, 100), 0, [], set()
    for event in events:
        if event == "ask" and it.stage != "done":
            number += 1
            it.asked(f"a{number}")
        elif event == "show" and it.stage in ("running", "resumed") and it.unanswered:
            it.show(0.0, 10.0)
        elif event == "withdraw" and it.shown:
            it.withdrawn(next(iter(it.shown)))
        elif event == "reply" and it.outcome is None and it.stage != "done":
            it.replied("r")
        elif event in ("retry", "part", "stale"):
            keys = list(it.shown)[: 1 if event == "part" else None]
            round = it.round - (event == "stale")
            found = it.retry(round, ME, dict.fromkeys(keys, b"x"), 1.0)
            if isinstance(found, Resumed):
                assert round not in used
                used.add(round)
                given_to += [ask for ask, _ in found.given]
    assert len(given_to) == len(set(given_to))
