"""Lists, identities, subscriptions and changes of them, with real workers and real upstreams."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from coffer_supervisor import workers
from coffer_supervisor.app import Heart
from coffer_supervisor.core.calls import CallError, Principal, Scope
from tests.support.heart import AGGREGATE, LOCAL, Beating, beating, text
from tests.support.upstreams import fake, raw
from tests.support.wait import wait_for

ONE = Scope("/servers/one/mcp", server="one")


@pytest_asyncio.fixture
async def heart() -> AsyncIterator[Beating]:
    async with beating() as found:
        yield found


async def test_lists_are_joined_by_server_name_and_say_so_in_both_eras(heart: Beating) -> None:
    """N06, C07: one order whoever answered first; a second upstream takes nothing away."""
    await asyncio.gather(
        heart.add("two", fake("--tools", "x", "--resources", "--prompts")),
        heart.add("one", fake("--tools", "b", "a", "--resources", "r://1", "--prompts", "p")),
    )
    assert await heart.names() == ["one__b", "one__a", "two__x"]
    modern = await heart.page(modern=True)
    assert (modern["resultType"], modern["cacheScope"]) == ("complete", "private")
    assert modern["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "coffer"
    assert [p["name"] for p in (await heart.page("prompt"))["prompts"]] == ["one__p"]
    assert [r["uri"] for r in (await heart.page("resource"))["resources"]] == ["coffer://one/r://1"]


async def test_lists_that_nobody_offers_are_empty(heart: Beating) -> None:
    """C06: several clients drop a server that answers -32601 to a probe."""
    assert await heart.page("prompt") == {"prompts": []}
    assert await heart.page("template") == {"resourceTemplates": []}


async def test_a_made_up_cursor_is_refused_in_the_clients_era(heart: Beating) -> None:
    """Q02: -32602, not page one."""
    for modern in (False, True):
        with pytest.raises(CallError) as caught:
            await heart.router.list_page(heart.caller(modern=modern), LOCAL, AGGREGATE, "tool", "made-up")
        assert (caught.value.failure.code, caught.value.failure.reason) == (-32602, "unknown_cursor")


async def test_a_slow_upstream_is_left_out_once_and_announced_when_it_comes(heart: Beating) -> None:
    """C08, P12: a list is answered within its budget with what there is; list_changed follows."""
    await heart.add("fast", raw())
    await heart.add("slow", fake("--init-delay-ms", "7000", "--tools", "late"), wait=False)
    heart.supervision.first_discovery_ends = 0.0
    loop = asyncio.get_running_loop()
    asked = loop.time()
    assert "slow__late" not in await heart.names()
    assert heart.view("slow").missing
    waited = loop.time() - asked
    again = loop.time()
    assert "fast__echo" in await heart.names()
    assert loop.time() - again < waited, "nobody waits for the same upstream twice"
    await wait_for(lambda: any(name == "slow" and "tools" in kinds for name, kinds in heart.ear.lists))
    assert "slow__late" in await heart.names()
    assert heart.view("slow").missing == ""


async def test_upstreams_are_awaited_together_not_one_after_another(heart: Beating) -> None:
    """Q03: a cold list costs the slowest upstream, not the sum; results in a fixed order."""
    names = [f"s{n}" for n in range(4)]
    for name in names:
        await heart.add(name, raw("--init-delay-ms", "600"), wait=False)
    listed = await heart.names()
    assert sorted({name.split("__")[0] for name in listed}) == names


async def test_disabling_enabling_and_removing_show_at_once_and_are_told(heart: Beating) -> None:
    """C11: taken out of every list at once, and connected clients are told."""
    await heart.add("one", raw())
    pid = heart.view("one").worker_pid
    await heart.store.resources.disable("mcp_server", "one", actor="cli")
    heart.ear.lists.clear()
    await heart.supervision.apply("one")
    assert heart.ear.lists == [("one", frozenset({"tools"}))]
    assert await heart.names() == []
    assert (await heart.refused("one__echo"))["data"]["reason"] == "server_disabled"
    await heart.reach("one", "disabled")
    await wait_for(lambda: not Path(f"/proc/{pid}").exists())
    await heart.store.resources.enable("mcp_server", "one", actor="cli")
    await heart.supervision.apply("one")
    await heart.settled("one")
    assert text(await heart.call("one__echo", back=1)) == {"back": 1}
    await heart.store.resources.delete("mcp_server", "one", actor="cli")
    await heart.supervision.apply("one")
    assert await heart.names() == []
    assert heart.supervision.view("one") is None
    await wait_for(lambda: "one" not in heart.supervision.upstreams)
    again = await heart.add("one", raw())
    assert again.state == "ready", "a new server of an old name"


async def test_a_new_configuration_restarts_after_open_calls_have_drained(heart: Beating, tmp_path: Path) -> None:
    one = raw(log=tmp_path / "log")
    await heart.add("one", one)
    before = heart.view("one").worker_pid
    _, sink = heart.tool("one__echo", delay=1.0, old=1)
    await wait_for(lambda: one.messages("tools/call"))
    new = raw(log=tmp_path / "new")
    config = new.config(path=os.environ["PATH"])
    await heart.store.resources.update("mcp_server", "one", config=config, actor="cli")
    await heart.supervision.apply("one")
    late = heart.tool("one__echo", new=1)[1]
    kind, body = await sink.done
    assert (kind, text(body)["old"]) == ("reply", 1)
    kind, body = await asyncio.wait_for(late.done, 30)
    assert (kind, text(body)) == ("reply", {"new": 1})
    assert new.messages("tools/call"), "what comes after the change goes to the changed server"
    assert heart.view("one").worker_pid != before
    assert heart.view("one").restarts == 0, "a wished restart is no crash"


async def test_curation_alone_restarts_nothing(heart: Beating) -> None:
    await heart.add("one", raw())
    before = heart.view("one").worker_pid
    config = raw().config(path=os.environ["PATH"], auto_enable=False)
    await heart.store.resources.update("mcp_server", "one", config=config, actor="cli")
    await heart.supervision.apply("one")
    assert heart.view("one").worker_pid == before
    assert "one__echo" in await heart.names(), "what was seen before keeps its choice"


async def test_choices_survive_and_what_is_new_follows_the_policy(heart: Beating) -> None:
    """New capabilities follow the server's policy; a choice outlives a disappearance."""
    await heart.add("one", fake("--tools", "add_tool", "remove_tool"), auto_enable=False)
    assert await heart.names() == []
    for key in ("add_tool", "remove_tool"):
        assert key in [found.key for found in heart.supervision.capabilities("one")]
        await heart.store.preferences.set("one", "tool", key, True, actor="cli")
    await heart.supervision.preference_changed("one")
    assert await heart.names() == ["one__add_tool", "one__remove_tool"]
    await heart.call("one__add_tool", name="fresh")
    await wait_for(lambda: any(c.key == "fresh" for c in heart.supervision.capabilities("one")))
    assert "one__fresh" not in await heart.names()
    assert (await heart.refused("one__fresh"))["data"]["reason"] == "capability_disabled"


async def test_an_upstream_that_gains_a_tool_is_announced(heart: Beating) -> None:
    """C11: the next list shows the truth, including removals."""
    await heart.add("one", fake("--tools", "add_tool", "remove_tool"))
    await heart.call("one__add_tool", name="fresh")
    heart.ear.lists.clear()
    await wait_for(lambda: any(c.key == "fresh" and c.listed for c in heart.supervision.capabilities("one")))
    assert "one__fresh" in await heart.names()


async def test_what_is_announced_again_and_again_is_told_and_costs_no_write(heart: Beating) -> None:
    """A server may announce at any rate: that its capabilities are still there is recorded once a minute."""
    await heart.add("one", fake("--tools", "announce", "add_tool"))

    def seen() -> dict[str, int]:
        with closing(sqlite3.connect(heart.store.path)) as connection:
            return dict(connection.execute("SELECT key, last_seen_at FROM capability_preference").fetchall())

    first = seen()
    assert "announce" in first
    for _ in range(3):
        heart.ear.lists.clear()
        await heart.call("one__announce", kind="tools")
        await wait_for(lambda: ("one", frozenset({"tools"})) in heart.ear.lists)
    assert seen() == first
    await heart.call("one__add_tool", name="fresh")
    await wait_for(lambda: "fresh" in seen())
    assert min(seen().values()) > max(first.values()), "with what is new all of it is"


async def test_refresh_reads_again(heart: Beating, tmp_path: Path) -> None:
    one = raw(log=tmp_path / "log")
    await heart.add("one", one)
    lists = len(one.messages("tools/list"))
    await heart.supervision.refresh("one")
    assert len(one.messages("tools/list")) > lists
    await heart.supervision.refresh("nobody")


async def test_a_list_that_is_no_longer_fresh_is_read_again_for_the_next(heart: Beating, tmp_path: Path) -> None:
    """60 s freshness on demand, stale-while-revalidate."""
    one = raw(log=tmp_path / "log")
    await heart.add("one", one)
    await wait_for(lambda: heart.view("one").connections)
    await heart.names()
    assert len(one.messages("tools/list")) == 1, "fresh enough"
    upstream = heart.supervision.upstreams["one"]
    upstream.refreshed_at -= 100
    for base in heart.supervision.catalogues.servers["one"].bases.values():
        base.read_at -= 100
    assert "one__echo" in await heart.names(), "answered from memory"
    await wait_for(lambda: len(one.messages("tools/list")) == 2)


async def test_a_client_of_the_other_era_gets_that_eras_list(heart: Beating) -> None:
    """The base catalogue is per upstream and era, where the upstream has two."""
    await heart.add("one", fake("--era", "dual"))
    modern, legacy = await heart.page(modern=True), await heart.page()
    assert [t["name"] for t in modern["tools"]] == [t["name"] for t in legacy["tools"]]
    await wait_for(lambda: set(heart.supervision.catalogues.servers["one"].bases) == {"modern", "legacy"})


async def test_a_client_sees_its_scope_and_a_group_sees_its_members(heart: Beating) -> None:
    await asyncio.gather(heart.add("one", raw()), heart.add("two", raw()))
    only_two = Principal("client:x", "x", frozenset({"two"}))
    assert {t["name"].split("__")[0] for t in (await heart.page(who=only_two))["tools"]} == {"two"}
    with pytest.raises(CallError, match="outside"):
        await heart.page(scope=ONE, who=only_two)
    config = {"servers": [], "capabilities": [{"server": "one", "type": "tool", "pattern": "ec*"}]}
    await heart.store.resources.create("group", "small", config, actor="cli")
    await heart.heart.changed("group", "small")
    group = Scope("/groups/small/mcp", group="small")
    assert [t["name"] for t in (await heart.page(scope=group))["tools"]] == ["one__echo"]
    assert (await heart.refused("two__echo", to={"scope": group}))["data"]["reason"] == "denied"
    nobody = Principal("client:y", "y", None, frozenset({"other"}))
    assert await heart.page(scope=group, who=nobody) == {"tools": []}


# ---- identities


async def test_the_aggregate_introduces_itself_and_its_upstreams(heart: Beating) -> None:
    await heart.add("one", fake("--instructions", "Ask me anything."))
    found = await heart.router.identity(AGGREGATE)
    assert json.loads(found.server_info)["name"] == "coffer"
    assert set(json.loads(found.capabilities)) == {"tools", "resources", "prompts", "completions"}
    assert "## one\nAsk me anything." in found.instructions


async def test_the_aggregate_speaks_of_what_a_client_may_see_alone(heart: Beating, tmp_path: Path) -> None:
    """Instructions and extensions are those of the servers within its scope, or the group's, that are switched on."""
    ui: dict[str, Any] = {"io.modelcontextprotocol/ui": {}, "io.modelcontextprotocol/tasks": {}}
    for name, extensions in (("one", ui), ("two", {"example/x": {"v": 1}})):
        script = {"capabilities": {"tools": {}, "extensions": extensions}, "instructions": f"I am {name}."}
        (tmp_path / name).mkdir()
        await heart.add(name, raw(script=script, at=tmp_path / name))

    async def seen(scope: Scope = AGGREGATE, who: Principal = LOCAL) -> tuple[set[str], list[str]]:
        found = await heart.router.identity(scope, "legacy", who)
        told = [name for name in ("one", "two") if f"I am {name}." in found.instructions]
        return set(json.loads(found.capabilities).get("extensions", {})), told

    assert await seen() == ({"io.modelcontextprotocol/ui", "example/x"}, ["one", "two"])
    assert await seen(who=Principal("client:x", "x", frozenset({"two"}))) == ({"example/x"}, ["two"])
    await heart.store.resources.create("group", "small", {"servers": ["one"]}, actor="cli")
    await heart.heart.changed("group", "small")
    assert await seen(Scope("/groups/small/mcp", group="small")) == ({"io.modelcontextprotocol/ui"}, ["one"])
    await heart.store.resources.disable("mcp_server", "two", actor="cli")
    await heart.supervision.apply("two")
    await heart.reach("two", "disabled")
    assert await seen() == ({"io.modelcontextprotocol/ui"}, ["one"])


async def test_the_pass_through_endpoint_shows_the_upstream_itself_which_is_awaited(heart: Beating) -> None:
    await heart.add("one", fake("--init-delay-ms", "500", "--name", "shown", "--instructions", "Mine."), wait=False)
    found = await heart.router.identity(ONE)
    assert json.loads(found.server_info)["name"] == "shown"
    assert found.instructions == "Mine."


async def test_a_pass_through_endpoint_without_its_upstream_is_an_error_never_an_empty_success(
    heart: Beating,
) -> None:
    """Never an empty success where something failed."""
    gone = fake()
    broken = type(gone)("/no/such/command", [])
    await heart.add("one", broken, limits={"start_seconds": 2})
    for question in (heart.page(scope=ONE), heart.router.identity(ONE)):
        with pytest.raises(CallError) as caught:
            await question
        assert b'"server":"one"' in caught.value.failure.error
    for name in ("nobody",):
        with pytest.raises(CallError, match="no server is named"):
            await heart.page(scope=Scope(f"/servers/{name}/mcp", server=name))
    await heart.store.resources.disable("mcp_server", "one", actor="cli")
    await heart.supervision.apply("one")
    with pytest.raises(CallError, match="disabled"):
        await heart.router.identity(ONE)


# ---- subscriptions


async def _subscribe(heart: Beating, uri: str, session: str = "s1") -> None:
    await heart.router.subscribe(heart.caller(session), LOCAL, AGGREGATE, session, uri)


async def test_a_subscriber_hears_of_its_resource_until_it_leaves(heart: Beating) -> None:
    """R07: subscribed at the upstream, told under the upstream's URI to that subscriber."""
    await heart.add("one", fake())
    await _subscribe(heart, "coffer://one/memo://notes/1")
    await heart.call("one__touch", uri="memo://notes/1")
    await wait_for(lambda: ("one", ("s1",), "memo://notes/1") in heart.ear.updated)
    heart.router.unsubscribe("s1", None)
    heart.router.unsubscribe("s1", "coffer://one/memo://notes/1")
    with pytest.raises(CallError) as caught:
        await _subscribe(heart, "no://where")
    assert caught.value.failure.reason == "unknown_resource"


async def test_subscriptions_are_made_again_for_a_new_worker(heart: Beating, tmp_path: Path) -> None:
    """After a new connection: subscribed afresh, and told once since updates may have been missed."""
    one = fake("--era", "legacy", log=tmp_path / "log")
    await heart.add("one", one)
    await _subscribe(heart, "coffer://one/memo://notes/1")
    before = heart.view("one").worker_pid
    await heart.supervision.restart("one")
    await wait_for(lambda: heart.view("one").state == "ready" and heart.view("one").worker_pid != before)
    await wait_for(lambda: heart.ear.updated)
    assert heart.ear.updated == [("one", ("s1",), "memo://notes/1")]
    assert len(one.messages("resources/subscribe")) == 2


async def test_an_upstream_without_subscriptions_refuses(heart: Beating) -> None:
    await heart.add("one", raw())
    with pytest.raises(CallError):
        await _subscribe(heart, "coffer://one/any://thing")


# ---- many at once


async def test_only_a_few_start_at_once_and_all_come(heart: Beating) -> None:
    """P13: bounded parallel starts."""
    most = 0

    def watch() -> None:
        nonlocal most
        most = max(most, len(heart.supervision._workers._starting))

    names = [f"s{n}" for n in range(9)]
    await asyncio.gather(*(heart.add(name, raw("--init-delay-ms", "200"), wait=False) for name in names))
    for name in names:
        watch()
        assert (await heart.settled(name)).state == "ready"
        watch()
    assert 1 <= most <= workers.STARTING_AT_ONCE


async def test_what_is_registered_is_started_with_the_daemon() -> None:
    """Enabled upstreams are discovered at daemon start; clients that list only once wait for that."""

    async def register(heart: Heart) -> None:
        await heart.store.resources.create("mcp_server", "one", raw().config(path=os.environ["PATH"]), actor="cli")
        off: dict[str, Any] = raw().config(path=os.environ["PATH"])
        await heart.store.resources.create("mcp_server", "off", off, enabled=False, actor="cli")

    async with beating(register) as heart:
        assert "one__echo" in await heart.names()
        await heart.settled("one")
        assert [(view.name, view.state) for view in heart.supervision.views()] == [
            ("off", "disabled"),
            ("one", "ready"),
        ]
