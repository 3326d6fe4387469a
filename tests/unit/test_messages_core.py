"""Message logs: numbering, bounds, replay."""

import pytest

from coffer_supervisor.core import messages
from coffer_supervisor.core.messages import MAX_BYTES, MAX_LOGS, MAX_MESSAGES, MessageLog, ReplayLogs


def test_a_log_ends_with_its_answers() -> None:
    """A stream carries any number of messages and ends with the last answer expected on it."""
    log = MessageLog(expected=2)
    assert log.last == 0
    assert log.append(b"n")
    assert log.append(b"1", answer=True)
    assert not log.ended
    assert log.append(b"2", answer=True)
    assert log.ended
    assert not log.append(b"late")
    assert log.after(0) == [(1, b"n"), (2, b"1"), (3, b"2")]
    assert log.after(2) == [(3, b"2")]
    assert (log.last, log.size, len(log)) == (3, 3, 3)


def test_a_standing_log_ends_only_when_told() -> None:
    """A GET stream has no answer that would end it."""
    log = MessageLog(expected=0)
    log.append(b"x", answer=True)
    assert not log.ended
    log.end()
    assert log.ended


def test_notifications_give_way_and_answers_do_not() -> None:
    """A client that does not read costs bounded memory, and still finds its answer."""
    log = MessageLog()
    for _ in range(MAX_MESSAGES + 3):
        log.append(b"n")
    assert (len(log), log.dropped) == (MAX_MESSAGES, 3)
    assert log.append(b"answer", answer=True)
    heavy = MessageLog()
    heavy.append(b"x" * MAX_BYTES)
    assert not heavy.append(b"n")
    assert heavy.append(b"answer", answer=True)


def test_written_messages_go_but_for_the_newest() -> None:
    """What was written may be replayed, within bounds."""
    log = MessageLog(expected=0)
    for n in range(10):
        log.append(b"%d" % n)
    log.release(8, keep=3, keep_bytes=100)
    assert [n for n, _ in log.after(0)] == [6, 7, 8, 9, 10]
    log.release(8, keep=3, keep_bytes=3)
    assert [n for n, _ in log.after(0)] == [8, 9, 10]
    log.release(10)
    assert log.after(0) == []
    assert log.last == 10


def test_an_event_id_finds_its_own_stream_only() -> None:
    """K12: replay is limited to the session's own streams; a made-up id finds nothing."""
    logs: ReplayLogs[MessageLog] = ReplayLogs()
    log = MessageLog()
    name = logs.add(log)
    assert logs.find(f"{name}-3") == (name, log, 3)
    for made_up in ("", "-", name, f"{name}-", f"{name}-x", "9-1", f"{name}-²", f"{name}-{'1' * 13}"):
        assert logs.find(made_up) is None
    logs.drop(name)
    logs.drop(name)
    assert logs.find(f"{name}-0") is None


def test_finished_streams_go_beyond_the_bounds_and_open_ones_stay() -> None:
    """Streams kept for replay are bounded in number; the longest untouched goes first."""
    logs: ReplayLogs[MessageLog] = ReplayLogs()
    standing = logs.add(MessageLog(expected=0))
    names = []
    for _ in range(MAX_LOGS + 2):
        log = MessageLog()
        names.append(logs.add(log))
        log.append(b"a", answer=True)
    assert logs.find(f"{standing}-0") is not None
    assert logs.find(f"{names[0]}-0") is None
    assert logs.find(f"{names[-1]}-0") is not None


def test_finished_streams_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dropped stream with a big answer is kept until others need the room."""
    monkeypatch.setattr(messages, "MAX_KEPT_BYTES", 10)
    logs: ReplayLogs[MessageLog] = ReplayLogs()
    big = MessageLog()
    name = logs.add(big)
    big.append(b"x" * 11, answer=True)
    logs.trim()
    assert logs.find(f"{name}-0") is None
