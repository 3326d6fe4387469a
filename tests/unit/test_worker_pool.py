"""Which connection serves whom."""

from typing import Any

import msgspec

from coffer_common.frames import Caller
from coffer_common.resources import Limits
from coffer_worker.core.pool import SPARE, Join, Member, Open, Pool, Use
from coffer_worker.core.relay import Refusal


def pool(era: Any = "legacy", isolation: Any = "auto", **limits: Any) -> Pool:
    return Pool("up", isolation, msgspec.convert(limits, Limits), era=era)


def by(session: str = "s1", revision: str = "2025-11-25") -> Caller:
    return Caller(session, "local", "/mcp", "prefixed", revision, "http")


def opened(it: Pool, caller: Caller, number: int, now: float = 0.0) -> Member:
    found = it.find(caller)
    assert isinstance(found, Open), found
    it.opening[found.key] = None
    return it.opened(found.key, number, found.key.revision, now)


def spare(it: Pool, number: int = 1, era: Any = "legacy", agreed: str = "") -> Member:
    key = it.spare_key(era)
    return it.opened(key, number, agreed or key.revision, 0.0)


def test_each_legacy_session_has_its_own_connection() -> None:
    """I08: what a server keeps for one session no other sees."""
    it = pool()
    first, second = opened(it, by("a"), 1), opened(it, by("b"), 2)
    assert it.find(by("a")) == Use(first)
    assert it.find(by("b")) == Use(second)
    assert it.of_session("a") == [first]
    assert it.gone(1) is first
    assert it.gone(1) is None


def test_the_warm_connection_is_handed_to_the_first_session_that_it_fits() -> None:
    it = pool()
    warm = spare(it)
    assert isinstance(it.find(by("old", "2025-03-26")), Open)
    assert warm.key.session == SPARE
    assert it.find(by("a")) == Use(warm, handed_over=True)
    assert it.find(by("a")) == Use(warm)
    assert isinstance(it.find(by("b")), Open)


def test_what_counts_is_the_revision_that_was_agreed_on_or_asked_for() -> None:
    it = pool()
    warm = spare(it, agreed="2025-06-18")
    assert it.find(by("a", "2025-06-18")) == Use(warm, handed_over=True)
    it = pool()
    warm = spare(it, agreed="2025-06-18")
    assert it.find(by("a", "2025-11-25")) == Use(warm, handed_over=True)


def test_modern_callers_of_a_legacy_upstream_are_kept_apart_by_principal_and_endpoint() -> None:
    it = pool()
    first = opened(it, by("modern:local:/mcp", "2026-07-28"), 1)
    assert first.key.revision == "2025-11-25"
    assert isinstance(it.find(by("modern:client:x:/mcp", "2026-07-28")), Open)


def test_one_connection_for_all_where_the_upstream_is_modern_or_shared() -> None:
    """P06: any number of callers at once wait for one start."""
    for it in (pool("modern"), pool(isolation="shared")):
        found = it.find(by("a", "2026-07-28"))
        assert isinstance(found, Open)
        it.opening[found.key] = None
        assert it.find(by("b", "2026-07-28")) == Join(found.key)
        member = it.opened(found.key, 1, found.key.revision, 0.0)
        assert it.find(by("c", "2026-07-28")) == Use(member)
    assert pool(isolation="shared").find(by("a", "2025-03-26")).key.revision == "2025-11-25"  # type: ignore[union-attr]


def test_a_modern_upstream_that_keeps_state_all_the_same() -> None:
    it = pool("modern", "session")
    warm = spare(it, era="modern")
    assert it.find(by("a", "2026-07-28")) == Use(warm, handed_over=True)
    assert isinstance(it.find(by("b", "2026-07-28")), Open)


def test_a_dual_era_upstream_has_a_legacy_side_of_its_own() -> None:
    it = pool("modern")
    modern = spare(it, era="modern")
    found = it.find(by("a"))
    assert isinstance(found, Open)
    assert found.key.era == "legacy"
    it.legacy_side = False
    assert it.find(by("a")) == Use(modern)


def test_a_session_waits_for_the_warm_one_that_is_being_opened() -> None:
    """P06, P07: no second process where discovery is starting just the right one."""
    it = pool()
    it.opening[it.spare_key("legacy")] = None
    assert it.find(by("a")) == Join(it.spare_key("legacy"))
    assert isinstance(it.find(by("b", "2025-03-26")), Open)
    it.not_opened(it.spare_key("legacy"))
    assert isinstance(it.find(by("a")), Open)


def test_the_limit_names_itself_and_an_idle_warm_connection_gives_way() -> None:
    it = pool(max_connections=1)
    warm = spare(it)
    found = it.find(by("a", "2025-03-26"))
    assert found == Open(it.key_for(by("a", "2025-03-26")), warm)
    warm.calls = 1
    refused = it.find(by("a", "2025-03-26"))
    assert isinstance(refused, Refusal)
    assert refused.reason.name == "connection_limit"
    assert "1 connections" in refused.message


def test_idle_connections_are_closed_unless_something_depends_on_them() -> None:
    it = pool(idle_close_seconds=10)
    assert it.next_idle() is None
    member = opened(it, by("a"), 1, now=5.0)
    assert it.next_idle() == 15.0
    assert it.idle(14.0) == []
    assert it.idle(15.0) == [member]
    member.subscriptions = 1
    assert it.idle(15.0) == []
    assert it.next_idle() is None


def test_what_an_upstream_says_may_be_the_doing_of_a_call_that_runs_or_has_just_ended() -> None:
    it = pool()
    member = opened(it, by(), 1, now=10.0)
    assert not it.working(10.0)
    member.calls = 1
    assert it.working(10.0)
    member.calls, member.answered, member.last_used = 0, 1, 11.0
    assert it.working(11.5)
    assert not it.working(12.5)


def asked(session: str = "s1", revision: str = "2026-07-28") -> Caller:
    """A client that can be asked."""
    return Caller(session, "local", "/mcp", "prefixed", revision, "http", b'{"roots":{}}')


def test_a_call_that_may_be_asked_owns_its_connection() -> None:
    """A modern client's calls to a legacy server over a pipe: an ask there names no call, so each has its own."""
    it = pool()
    first = opened(it, asked(), 1)
    assert it.find(asked(), call=True) == Use(first)
    first.calls = 1
    assert isinstance(it.find(asked(), call=True), Open)
    assert it.find(asked()) == Use(first), "a subscription shares it"
    legacy = opened(it, asked("s2", "2025-11-25"), 2)
    legacy.calls = 1
    assert it.find(asked("s2", "2025-11-25"), call=True) == Use(legacy), "a session is one client anyway"


def test_who_need_not_own_a_connection() -> None:
    """Over HTTP the stream tells; a modern server asks in its answers; a shared connection declares nothing."""
    assert pool().exclusive(asked())
    assert not pool().exclusive(by(revision="2026-07-28"))
    assert not pool("modern").exclusive(asked())
    assert not pool(isolation="shared").exclusive(asked())
    over_http = pool()
    over_http.over_http = True
    assert not over_http.exclusive(asked())


def test_a_warm_connection_declares_what_the_client_seen_last_declared() -> None:
    it = pool()
    assert it.spare_key("legacy").declared == {"experimental": {}}
    it.find(asked())
    key = it.spare_key("legacy")
    assert key.declared == {"experimental": {}, "roots": {}}
    warm = it.opened(it.discovered(key, "legacy"), 1, key.revision, 0.0)
    assert it.find(asked("s9", "2025-11-25")) == Use(warm, handed_over=True)


def test_discovery_finds_another_era_than_it_guessed() -> None:
    it = pool("modern")
    it.seen = '{"roots":{}}'
    guess = it.spare_key("modern")
    assert it.discovered(guess, "legacy").declared == guess.declared, "what was declared, not what might have been"
    assert it.discovered(it.spare_key("legacy"), "modern") == guess


def at(cwd: str, session: str = "s1", revision: str = "2026-07-28") -> Caller:
    """A client whose shim runs in that directory."""
    return Caller(session, "local", "/mcp", "prefixed", revision, "shim", cwd=cwd)


def test_each_project_has_a_connection_of_its_own() -> None:
    """Clients in one directory share what clients of that kind share; the warm one runs nowhere special."""
    for it in (pool("modern"), pool(isolation="shared")):
        it.per_project = True
        warm = opened(it, at(""), 1)
        assert it.find(by("http", "2026-07-28")) == Use(warm)
        a, b = opened(it, at("/a"), 2), opened(it, at("/b"), 3)
        assert (a.key.project, b.key.project) == ("/a", "/b")
        assert it.find(at("/a", "s2")) == Use(a)
        assert it.find(at("/b", "s3")) == Use(b)
        assert (warm.key.whose, a.key.whose) == ("", "/a"), "a crash of one is none of the others"


def test_a_session_in_a_project_does_not_take_the_warm_connection() -> None:
    it = pool()
    it.per_project = True
    it.opening[it.spare_key("legacy")] = None
    assert isinstance(it.find(at("/a", "s1", "2025-11-25")), Open), "what discovery opens is started elsewhere"
    it.not_opened(it.spare_key("legacy"))
    warm = spare(it)
    mine = opened(it, at("/a", "s1", "2025-11-25"), 2)
    assert mine.key.whose == "s1"
    assert it.find(at("", "s2", "2025-11-25")) == Use(warm, handed_over=True)


def test_where_projects_do_not_count_the_directory_makes_no_difference() -> None:
    it = pool("modern")
    member = opened(it, at("/a"), 1)
    assert member.key.project == ""
    assert it.find(at("/b")) == Use(member)


def test_the_project_that_has_been_idle_for_longest_gives_way() -> None:
    it = pool("modern", max_connections=2)
    it.per_project = True
    older, newer = opened(it, at("/a"), 1, now=1.0), opened(it, at("/b"), 2, now=2.0)
    assert it.find(at("/c")) == Open(it.key_for(at("/c")), older)
    older.calls = 1
    assert it.find(at("/c")) == Open(it.key_for(at("/c")), newer)
    newer.subscriptions = 1
    assert isinstance(it.find(at("/c")), Refusal)


def test_the_projects_that_connections_are_open_for_are_told_once_each() -> None:
    it = pool(isolation="shared")
    it.per_project = True
    for number, (session, cwd) in enumerate((("a", "/w/b"), ("b", "/w/a"), ("c", "")), 1):
        opened(it, Caller(session, "local", "/mcp", "prefixed", "2025-11-25", "shim", cwd=cwd), number)
    assert it.projects() == ("/w/a", "/w/b")
