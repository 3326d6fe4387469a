"""The rules of legacy sessions: bound, bounded, ended when idle; ids keep their type."""

import pytest

from coffer_supervisor.core.calls import Principal, Scope
from coffer_supervisor.core.session import Session, SessionTable, id_key

A, B = Principal("client:a", "a"), Principal("client:b", "b")
AGGREGATE, FILES = Scope("/mcp"), Scope("/servers/files/mcp", server="files")


def opened(table: SessionTable, session_id: str, now: float, principal: Principal = A) -> Session:
    return table.open(session_id, principal, AGGREGATE, now)[0]


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (b"1", b'"1"', False),
        (b"0", b'""', False),
        (b'"\\u00e9"', '"é"'.encode(), True),
        (b'"a\\/b"', b'"a/b"', True),
        (b"9007199254740993", b"9007199254740992", False),
        (b'"\\ud800"', b'"\\ud800"', True),
    ],
)
def test_ids_keep_type_and_value(one: bytes, other: bytes, equal: bool) -> None:
    """I03: 1 and "1" are never confused, an escaped spelling is the same id, big integers stay exact."""
    assert (id_key(one) == id_key(other)) is equal


def test_a_session_serves_its_own_principal_at_its_own_endpoint_only() -> None:
    """K12: client B replays A's session id and is told that there is no such session."""
    table = SessionTable()
    session = opened(table, "s", 0.0)
    assert table.use("s", A, AGGREGATE, 1.0) is session
    assert session.last_used == 1.0
    assert table.use("s", B, AGGREGATE, 2.0) == "foreign"
    assert table.use("s", A, FILES, 2.0) == "foreign"
    assert table.use("other", A, AGGREGATE, 2.0) == "unknown"
    assert session.last_used == 1.0


def test_the_first_initialize_fixes_the_session() -> None:
    """E08: the client's revision if it is known; a second initialize changes nothing."""
    session = Session("s", A, FILES, "http", 0.0)
    assert session.revision == ""
    caller = session.initialize("2025-03-26", b'{"roots":{}}', b'{"name":"x"}', "x")
    assert (caller.revision, caller.naming, caller.endpoint) == ("2025-03-26", "raw", "/servers/files/mcp")
    assert session.initialize("2025-06-18", b"{}", b"{}", "y") is caller
    assert (session.revision, session.client_name, caller.cwd) == ("2025-03-26", "x", "")


def test_a_session_of_a_shim_tells_where_it_runs() -> None:
    session = Session("s", A, AGGREGATE, "shim", 0.0, cwd="/p")
    assert session.initialize("2025-11-25", b"{}", b"{}", "x").cwd == "/p"


@pytest.mark.parametrize("asked", ["2099-01-01", "2026-07-28", None, 7])
def test_an_unknown_revision_is_answered_with_the_newest_handshake(asked: object) -> None:
    """E08: a version that has no handshake is never the answer to one."""
    assert Session("s", A, AGGREGATE, "http", 0.0).initialize(asked, b"{}", b"{}", "").revision == "2025-11-25"


def test_idle_sessions_expire_but_not_busy_ones() -> None:
    """H06: sessions never used again end; one with a live stream or an open call does not."""
    table = SessionTable(idle_seconds=10)
    idle, streaming, calling = opened(table, "a", 0.0), opened(table, "b", 0.0), opened(table, "c", 0.0)
    streaming.streams = 1
    calling.calls[b"1"] = 7
    assert table.expire(9.0) == []
    assert table.expire(10.0) == [idle]
    assert table.all() == [streaming, calling]
    assert table.get("a") is None


def test_the_longest_unused_session_gives_way() -> None:
    """H06: the number of sessions is bounded, and a busy one is the last to go."""
    table = SessionTable(limit=2)
    first, second = opened(table, "a", 0.0), opened(table, "b", 1.0)
    first.streams = 1
    assert table.open("c", A, AGGREGATE, 2.0)[1] == [second]
    table.get("c").streams = 1  # type: ignore[union-attr]
    assert table.open("d", A, AGGREGATE, 3.0)[1] == [first]
    assert len(table) == 2


def test_close_happens_once() -> None:
    """H05: success, then unknown."""
    table = SessionTable()
    session = opened(table, "a", 0.0)
    assert table.close("a") is session
    assert table.close("a") is None
