"""Who hears of what: the hearers and their timer on a real loop."""

import asyncio
import json
from typing import Any

import pytest

from coffer_common import protocol
from coffer_common.resources import GroupConfig
from coffer_supervisor.core.calls import Principal, Scope
from coffer_supervisor.core.subscriptions import FIRST_SETTLE_SECONDS, KINDS, SETTLE_SECONDS
from coffer_supervisor.endpoint.notices import Hearer, Notices
from coffer_supervisor.scoping import Scoping
from tests.support.wait import wait_for

EVERYONE, NARROW = Principal("local", "local"), Principal("client:a", "a", frozenset({"a"}))
AGGREGATE, GROUP = Scope("/mcp"), Scope("/groups/g/mcp", group="g")
A, B = Scope("/servers/a/mcp", server="a"), Scope("/servers/b/mcp", server="b")


class Ear(Hearer):
    """A hearer that keeps what it is told."""

    def __init__(self, name: str, principal: Principal, scope: Scope, **more: Any) -> None:
        self.heard: list[Any] = []
        self.there = True
        kinds = more.pop("kinds", frozenset(KINDS))
        super().__init__(name, principal, scope, self.hear, lambda: self.there, kinds, **more)

    def hear(self, message: bytes) -> None:
        self.heard.append(json.loads(message))

    @property
    def methods(self) -> list[str]:
        return [message["method"] for message in self.heard]


@pytest.fixture
def notices() -> Any:
    scoping = Scoping()
    scoping.set_groups({"g": GroupConfig(servers=("b",)), "other": GroupConfig(servers=("a",))})
    made = Notices(lambda principal, scope, server: scoping.narrowing(principal, scope).server(server))
    yield made
    made.close()


async def test_a_change_is_told_to_those_it_concerns(notices: Notices) -> None:
    """C11, R07: hearers at other endpoints, or whose scope does not hold the server, see nothing of it."""
    ears = {
        name: Ear(name, principal, scope)
        for name, principal, scope in (
            ("all", EVERYONE, AGGREGATE),
            ("narrow", NARROW, AGGREGATE),
            ("group", EVERYONE, GROUP),
            ("other group", EVERYONE, Scope("/groups/other/mcp", group="other")),
            ("no group", EVERYONE, Scope("/groups/gone/mcp", group="gone")),
            ("a", EVERYONE, A),
            ("b", EVERYONE, B),
        )
    }
    for ear in ears.values():
        notices.add(ear)
    for _ in range(50):
        notices.lists_changed("b", frozenset({"tools", "prompts"}))
    await wait_for(lambda: len(ears["b"].heard) == 2)
    assert {name for name, ear in ears.items() if ear.heard} == {"all", "group", "b"}
    assert ears["all"].methods == ["notifications/prompts/list_changed", "notifications/tools/list_changed"]


async def test_a_change_that_one_session_alone_sees_is_told_to_it_alone(notices: Notices) -> None:
    """C11: a connection's own list is its session's business; a modern client's streams hear under its stand-in."""
    own, other = Ear("s-1", EVERYONE, AGGREGATE), Ear("s-2", EVERYONE, AGGREGATE)
    stream = Ear("listen-1", EVERYONE, AGGREGATE, stamp=b"7", session="modern:local:/mcp")
    for ear in (own, other, stream):
        notices.add(ear)
    notices.lists_changed("a", frozenset({"tools"}), "s-1")
    await wait_for(lambda: own.heard)
    notices.lists_changed("a", frozenset({"prompts"}), "modern:local:/mcp")
    await wait_for(lambda: stream.heard)
    assert (own.methods, other.methods) == (["notifications/tools/list_changed"], [])
    assert stream.methods == ["notifications/prompts/list_changed"]


async def test_a_listen_hears_its_kinds_in_its_form(notices: Notices) -> None:
    """A listen stream gets what it opted in to, stamped with its own id and type; never a log message."""
    ear = Ear("l", EVERYONE, A, kinds=frozenset({"tools"}), stamp=b"7", uris={"x:1"})
    notices.add(ear)
    notices.lists_changed("a", frozenset(KINDS))
    notices.resource_updated("a", ("l", "gone"), "x:1")
    notices.session_notice("a", (), "notifications/message", b"{}")
    await wait_for(lambda: len(ear.heard) == 2)
    stamp = {protocol.META_SUBSCRIPTION_ID: 7}
    assert [message["params"] for message in ear.heard] == [{"_meta": stamp}, {"_meta": stamp, "uri": "x:1"}]


async def test_updates_name_the_uri_as_the_endpoint_shows_it(notices: Notices) -> None:
    """The aggregate's URIs are namespaced, a pass-through endpoint's are the upstream's own."""
    ears = [Ear("all", EVERYONE, AGGREGATE, uris={"coffer://a/x:1"}), Ear("a", EVERYONE, A, uris={"x:1"})]
    ears.append(Ear("none", EVERYONE, AGGREGATE))
    for ear in ears:
        notices.add(ear)
    notices.resource_updated("a", (), "x:1")
    await wait_for(lambda: ears[0].heard and ears[1].heard)
    assert ears[0].heard[0]["params"] == {"uri": "coffer://a/x:1"}
    assert ears[1].heard[0]["params"] == {"uri": "x:1"}
    assert ears[2].heard == []


async def test_what_cannot_be_told_waits(notices: Notices) -> None:
    """A hearer without a stream is told when it has one, once; one that has gone is not."""
    ear, gone = Ear("e", EVERYONE, AGGREGATE), Ear("gone", EVERYONE, AGGREGATE)
    notices.add(ear)
    notices.add(gone)
    notices.lists_changed("a", frozenset({"tools"}))
    ear.there = False
    notices.remove("gone")
    other = Ear("other", EVERYONE, AGGREGATE)
    notices.add(other)
    notices.lists_changed("a", frozenset({"tools"}))
    await wait_for(lambda: other.heard)
    assert ear.heard == gone.heard == []
    ear.there = True
    notices.released("e")
    await wait_for(lambda: ear.heard)
    assert ear.methods == ["notifications/tools/list_changed"]


async def test_session_notices_go_to_their_sessions(notices: Notices) -> None:
    """Log messages are told on the pass-through endpoint of their server only, to the sessions named, or to all."""
    ears = [Ear("one", EVERYONE, A), Ear("two", EVERYONE, A), Ear("b", EVERYONE, B), Ear("all", EVERYONE, AGGREGATE)]
    for ear in ears:
        notices.add(ear)
    notices.session_notice("a", ("two", "all", "nobody"), "notifications/message", b'{"n":1}')
    notices.session_notice("a", (), "notifications/message", b'{"n":2}')
    assert [[m["params"]["n"] for m in ear.heard] for ear in ears] == [[2], [1, 2], [], []]


async def test_a_changed_group_is_told_at_its_endpoint_only(notices: Notices) -> None:
    """Those who listen at a group's endpoint hear when the group itself changes; nobody else does."""
    group, other = Ear("group", EVERYONE, GROUP), Ear("all", EVERYONE, AGGREGATE)
    notices.add(group)
    notices.add(other)
    notices.group_changed("g")
    await wait_for(lambda: len(group.heard) == 3)
    assert sorted(group.methods) == [f"notifications/{kind}/list_changed" for kind in ("prompts", "resources", "tools")]
    assert other.heard == []


async def test_a_session_is_asked_where_it_can_be(notices: Notices) -> None:
    """An upstream's request outside any call goes to its session alone, under an id of this run; a listen stream, or a
    session that nobody listens to, cannot be asked."""
    asks: dict[bytes, int] = {}
    ear, other = Ear("e", EVERYONE, AGGREGATE, asks=asks), Ear("other", EVERYONE, AGGREGATE, asks={})
    for hearer in (ear, other, Ear("l", EVERYONE, AGGREGATE, stamp=b"1")):
        notices.add(hearer)
    assert notices.session_ask("e", 7, "roots/list", b"{}")
    assert [(message["method"], message["params"]) for message in ear.heard] == [("roots/list", {})]
    assert list(asks.values()) == [7]
    assert json.loads(next(iter(asks))) == ear.heard[0]["id"]
    notices.session_withdraw("e", 7)
    notices.session_withdraw("e", 7)
    notices.session_withdraw("gone", 7)
    assert ear.heard[1:] == [
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": ear.heard[0]["id"]}}
    ]
    ear.there = False
    assert not any(notices.session_ask(name, 8, "roots/list", b"{}") for name in ("e", "l", "gone"))
    assert (asks, other.heard) == ({}, [])


async def test_a_link_is_reported_as_opened_on_the_aggregate_too(notices: Notices) -> None:
    ears = [Ear("one", EVERYONE, AGGREGATE), Ear("two", EVERYONE, AGGREGATE)]
    for ear in ears:
        notices.add(ear)
    notices.session_notice("a", ("one",), "notifications/elicitation/complete", b'{"elicitationId":"e"}')
    assert [len(ear.heard) for ear in ears] == [1, 0]


async def test_servers_that_come_one_after_the_other_are_told_of_once() -> None:
    """C10: after a restart of the daemon a client hears of all servers that are found in the first second together."""
    waits = [FIRST_SETTLE_SECONDS]
    notices = Notices(lambda *_: True, lambda: waits[0])
    try:
        ear = Ear("e", EVERYONE, AGGREGATE)
        notices.add(ear)
        for name in ("a", "b", "c"):
            notices.lists_changed(name, frozenset({"tools"}))
            await asyncio.sleep(0)
        waits[0] = SETTLE_SECONDS
        notices.lists_changed("d", frozenset({"tools"}))
        notices.resource_updated("a", ("e",), "x:1")
        await wait_for(lambda: len(ear.heard) == 2)
        assert ear.methods == ["notifications/resources/updated", "notifications/tools/list_changed"]
    finally:
        notices.close()
