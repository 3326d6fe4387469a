"""Which era and revision a worker speaks to an upstream, and what clients of either era get from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coffer_common import frames
from tests.support.upstreams import Upstream, fake, raw
from tests.support.wait import wait_for
from tests.support.worker import Worker, caller, server_config

MODERN = "2026-07-28"


def starts(upstream: Upstream) -> int:
    """How many processes of it were started."""
    return len([entry for entry in upstream.log() if entry["event"] == "start"])


@pytest.mark.parametrize("probe", ["refuse", "late", "die", "-32602", "-32600", "-32000", "silent"])
async def test_whatever_is_no_modern_answer_means_legacy(tmp_path: Path, probe: str) -> None:
    """E02, E03, P07: any other answer, silence, or death; a second process only where the first died of it."""
    upstream = raw("--probe", probe, log=tmp_path / "log.jsonl")
    config = server_config(upstream, limits={"start_seconds": 4 if probe in ("silent", "late") else 20})
    async with Worker.start(tmp_path, config) as worker:
        state = worker.all(frames.State)[-1]
        assert (state.era, state.revision) == ("legacy", "2025-11-25")
        assert (await worker.call("echo", {"a": 1})).text
        assert starts(upstream) == (2 if probe == "die" else 1)
        assert not upstream.messages("notifications/cancelled")


@pytest.mark.parametrize("code", ["-32020", "-32021"])
async def test_a_modern_error_means_modern(tmp_path: Path, code: str) -> None:
    """E03: a recognised modern error is a verdict, though it tells no capabilities: the lists are tried."""
    async with Worker.start(tmp_path, server_config(raw("--probe", code))) as worker:
        assert worker.all(frames.State)[-1].era == "modern"
        await wait_for(lambda: "tool:echo" in worker.catalogue("modern"))


async def test_an_answer_that_is_no_discovery_means_legacy(tmp_path: Path) -> None:
    """A server that answers whatever it is asked with an empty result has not said that it is modern."""
    upstream = raw("--probe", "script", script={"replies": {"server/discover": {"result": {}}}}, at=tmp_path)
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        state = worker.all(frames.State)[-1]
        assert (state.era, state.revision) == ("legacy", "2025-11-25")
        assert b'"raw"' in state.server_info


async def test_a_kept_verdict_saves_the_probe(tmp_path: Path) -> None:
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream), hint="legacy"):
        assert not upstream.messages("server/discover")


@pytest.mark.parametrize("version", ["2099-01-01", MODERN])
async def test_an_unknown_revision_fails_the_upstream_naming_both(tmp_path: Path, version: str) -> None:
    """E08, E15: also a modern revision inside the older handshake."""
    config = server_config(raw("--version-answer", version))
    async with Worker.start(tmp_path, config, ready=False) as worker:
        state = await worker.state("backoff")
        assert version in state.message
        assert "2025-11-25" in state.message


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18"])
async def test_a_legacy_client_is_served_at_its_own_revision(tmp_path: Path, revision: str) -> None:
    """The revision towards a legacy upstream is the client's own."""
    async with Worker.start(tmp_path, server_config(fake("--era", "legacy"))) as worker:
        told = json.loads((await worker.call("whoami", by=caller(revision))).text)
        assert told["version"] == revision
        assert told["client"]["name"] == "coffer"


async def test_the_warm_connection_goes_to_the_first_session_that_fits(tmp_path: Path) -> None:
    """I08: one process for the first session, another for the next; a counter is seen by its own session only."""
    upstream = fake("--era", "legacy", log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        assert (await worker.call("counter", by=caller(session="a"))).text == "1"
        assert starts(upstream) == 1
        assert (await worker.call("counter", by=caller(session="b"))).text == "1"
        assert starts(upstream) == 2
        assert (await worker.call("counter", by=caller(session="a"))).text == "2"
        assert (await worker.call("counter", by=caller(MODERN, session="modern:x:/mcp"))).text == "1"


async def test_shared_isolation_is_one_connection_for_all(tmp_path: Path) -> None:
    upstream = fake("--era", "legacy", log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream, isolation="shared")) as worker:
        for count, session in enumerate("abc", 1):
            assert (await worker.call("counter", by=caller("2025-06-18", session))).text == str(count)
        assert starts(upstream) == 1


async def test_a_modern_upstream_serves_modern_clients_on_one_connection(tmp_path: Path) -> None:
    """E15, E17: version, identity and capabilities travel with each request."""
    upstream = fake("--era", "modern", log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        state = worker.all(frames.State)[-1]
        assert (state.era, state.revision) == ("modern", MODERN)
        for session in "ab":
            answer = await worker.call("echo", {"a": 1}, caller(MODERN, session))
            assert answer.value["resultType"] == "complete"
        assert starts(upstream) == 1
        meta = upstream.messages("tools/call")[0]["params"]["_meta"]
        assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "coffer"
        assert meta["io.modelcontextprotocol/protocolVersion"] == MODERN


async def test_a_modern_only_upstream_serves_legacy_clients_over_its_modern_connection(tmp_path: Path) -> None:
    """The legacy side is tried once; then legacy callers are bridged, in their own shape."""
    upstream = fake("--era", "modern", log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        answer = await worker.call("structured", {"a": 1})
        assert "resultType" not in answer.value
        assert answer.value["structuredContent"]["score"] == 7
        assert starts(upstream) == 2
        assert (await worker.call("echo", {"a": 1}, caller(session="other"))).text
        assert starts(upstream) == 2
        failed = await worker.request(lambda corr: frames.Refresh(corr, "legacy"))
        assert isinstance(failed.frame, frames.Fail)


async def test_a_dual_era_upstream_serves_each_client_in_its_era(tmp_path: Path) -> None:
    """The legacy side takes a second process; its lists are read from there."""
    upstream = fake("--era", "dual", log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        assert json.loads((await worker.call("whoami", by=caller(MODERN))).text)["version"] == MODERN
        assert json.loads((await worker.call("whoami", by=caller("2025-11-25", "l"))).text)["version"] == "2025-11-25"
        assert starts(upstream) == 2
        await wait_for(lambda: "tool:echo" in worker.catalogue("legacy"))


async def test_the_legacy_lists_of_a_dual_era_upstream_on_demand(tmp_path: Path) -> None:
    async with Worker.start(tmp_path, server_config(fake("--era", "dual"))) as worker:
        answer = await worker.request(lambda corr: frames.Refresh(corr, "legacy"))
        assert isinstance(answer.frame, frames.Reply)
        assert "tool:echo" in worker.catalogue("legacy")


async def test_a_modern_server_that_starts_slowly_is_not_taken_for_a_dead_one(tmp_path: Path) -> None:
    """A probe may be answered after our patience; then initialize is refused, and the verdict is modern after all."""
    config = server_config(fake("--era", "modern", "--init-delay-ms", "1500"), limits={"start_seconds": 2.6})
    async with Worker.start(tmp_path, config) as worker:
        assert worker.all(frames.State)[-1].era == "modern"
        assert (await worker.call("echo", {"a": 1}, caller(MODERN))).text


async def test_a_legacy_upstream_answers_modern_clients_in_their_shape(tmp_path: Path) -> None:
    """E12: resultType and caching members for modern clients."""
    async with Worker.start(tmp_path, server_config(fake("--era", "legacy"))) as worker:
        by = caller(MODERN, "modern:local:/mcp")
        assert (await worker.call("echo", {"a": 1}, by)).value["resultType"] == "complete"
        corr = await worker.begin("resources/read", "memo://notes/1", {}, by)
        read = (await worker.answer(corr)).value
        assert (read["resultType"], read["ttlMs"], read["cacheScope"]) == ("complete", 0, "private")
        corr = await worker.begin("resources/read", "memo://nothing", {}, by)
        await worker.answer(corr)


# ---- lists


PAGES: dict[str, Any] = {
    "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
    "replies": {
        "tools/list": {"result": {"tools": [{"name": "a", "inputSchema": {"type": "object"}}], "nextCursor": "2"}},
        "tools/list 2": {"result": {"tools": [{"name": "b", "inputSchema": {"type": "int"}}], "nextCursor": "3"}},
        "tools/list 3": {"result": {"tools": [{"name": "c", "inputSchema": {"type": "object"}}]}},
        "resources/list": {"result": {"resources": [{"uri": "x:1", "name": "n"}], "nextCursor": "r2"}},
        "resources/list r2": {"result": {"resources": [{"uri": "x:2", "name": "n"}]}},
        "resources/templates/list": {"result": {"resourceTemplates": [{"uriTemplate": "x:{i}", "name": "n"}]}},
        "prompts/list": {"error": {"code": -32601, "message": "no"}},
    },
}


async def test_all_pages_of_all_lists(tmp_path: Path) -> None:
    """C01, C04, S03: an announced list that is not there is empty; an odd tool is left out with its reason."""
    async with Worker.start(tmp_path, server_config(raw(script=PAGES, at=tmp_path))) as worker:
        assert list(worker.catalogue()) == ["tool:a", "tool:c", "resource:x:1", "resource:x:2", "template:x:{i}"]
        frame = worker.all(frames.Catalogue)[-1]
        assert "'b'" in frame.left_out[0]
        assert worker.all(frames.State)[-1].message == ""


async def test_a_failure_on_page_two_keeps_the_last_complete_list(tmp_path: Path) -> None:
    """C03: nothing is removed on a partial read, and the state says that it is stale."""
    good = PAGES["replies"]["tools/list 2"]
    bad = {"error": {"code": -32603, "message": "broken"}}
    script = {**PAGES, "replies": {**PAGES["replies"], "tools/list 2": [good, bad]}}
    async with Worker.start(tmp_path, server_config(raw(script=script, at=tmp_path))) as worker:
        before = worker.catalogue()
        assert isinstance((await worker.request(frames.Refresh)).frame, frames.Reply)
        assert worker.catalogue() == before
        assert "last complete list" in (await wait_for(lambda: worker.all(frames.State)[-1].message))
        assert len(worker.all(frames.Catalogue)) == 1


async def test_an_upstream_without_tools(tmp_path: Path) -> None:
    """C05: it starts, and what it does not declare is not asked for."""
    script = {"capabilities": {"prompts": {}}, "replies": {"prompts/list": {"result": {"prompts": [{"name": "p"}]}}}}
    upstream = raw(script=script, at=tmp_path, log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        assert list(worker.catalogue()) == ["prompt:p"]
        assert not upstream.messages("tools/list")


async def test_a_list_that_is_never_answered_holds_up_nothing_else(tmp_path: Path) -> None:
    """C08: what has answered is published within seconds, and what is missing is named; calls work."""
    upstream = raw("--never", "resources/list", script=PAGES, at=tmp_path)
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        assert "tool:a" in worker.catalogue()
        assert "resources/list" in worker.all(frames.State)[-1].message
        assert (await worker.call("echo", {"a": 1})).frame


async def test_the_same_cursor_twice_ends_the_walk(tmp_path: Path) -> None:
    script = {
        "capabilities": {"tools": {}},
        "replies": {"tools/list": {"result": {"tools": [], "nextCursor": "again"}}},
    }
    async with Worker.start(tmp_path, server_config(raw(script=script, at=tmp_path))) as worker:
        assert "same cursor" in worker.all(frames.State)[-1].message


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_change_is_seen_and_published(tmp_path: Path, era: str) -> None:
    """C11, E16: in either era's form, additions and removals."""
    by = caller(MODERN if era == "modern" else "2025-11-25")
    async with Worker.start(tmp_path, server_config(fake("--era", era))) as worker:
        await worker.call("add_tool", {"name": "fresh"}, by)
        await wait_for(lambda: "tool:fresh" in worker.catalogue(era))
        await worker.call("remove_tool", {"name": "fresh"}, by)
        await wait_for(lambda: "tool:fresh" not in worker.catalogue(era))


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_what_the_upstream_announces_is_told_though_nothing_differs(tmp_path: Path, era: str) -> None:
    """A change that was undone before the lists were read is a change all the same: once, and of that kind alone."""
    by = caller(MODERN if era == "modern" else "2025-11-25")
    async with Worker.start(tmp_path, server_config(fake("--era", era))) as worker:
        await worker.call("announce", {"kind": "prompts"}, by)
        await wait_for(lambda: any(frame.announced for frame in worker.all(frames.Catalogue)))
        assert [frame.announced for frame in worker.all(frames.Catalogue)] == [(), ("prompts",)]


@pytest.mark.parametrize("delay", ["5", "600"])
async def test_listing_that_causes_list_changed_stays_bounded(tmp_path: Path, delay: str) -> None:
    """C10: the rate is bounded, and an unchanged catalogue is not announced again."""
    upstream = raw("--list-changed-on-list", delay, log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        beats = len(worker.beats)
        await wait_for(lambda: len(worker.beats) > beats + 4)
        assert 2 <= len(upstream.messages("tools/list")) <= 6
        assert len(worker.all(frames.Catalogue)) == 1


# ---- subscriptions


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_subscriptions_end_with_the_last_subscriber(tmp_path: Path, era: str) -> None:
    """R07: an update goes to its subscribers once, with the upstream's own URI."""
    by = caller(MODERN if era == "modern" else "2025-11-25")
    upstream = fake("--era", era, log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:

        async def touch(uri: str) -> None:
            await worker.call("touch", {"uri": uri}, by)

        def told() -> list[frames.Notify]:
            return [f for f in worker.all(frames.Notify) if f.method == "notifications/resources/updated"]

        uri = "memo://notes/1"
        for subscriber in ("one", "two"):

            def subscribe(corr: int, who: str = subscriber) -> frames.Subscribe:
                return frames.Subscribe(corr, by, who, uri)

            answer = await worker.request(subscribe)
            assert isinstance(answer.frame, frames.Reply), answer
        await touch(uri)
        await wait_for(told)
        assert set(told()[0].subscribers) == {"one", "two"}
        assert told()[0].uri == uri
        await worker.request(lambda corr: frames.Unsubscribe(corr, "one"))
        await touch(uri)
        await wait_for(lambda: len(told()) == 2)
        assert told()[1].subscribers == ("two",)
        await worker.request(lambda corr: frames.Unsubscribe(corr, "two", uri))
        if era == "legacy":
            await wait_for(lambda: upstream.messages("resources/unsubscribe"))
            assert len(upstream.messages("resources/subscribe")) == 1
        else:
            await wait_for(lambda: len(upstream.messages("subscriptions/listen")) == 3)
            last = upstream.messages("subscriptions/listen")[-1]["params"]["notifications"]
            assert "resourceSubscriptions" not in last
        await touch(uri)
        assert len(told()) == 2


async def test_an_upstream_without_subscriptions(tmp_path: Path) -> None:
    async with Worker.start(tmp_path, server_config(raw())) as worker:
        answer = await worker.request(lambda corr: frames.Subscribe(corr, caller(), "one", "x:1"))
        assert answer.reason == "subscribe_unsupported"


# ---- log messages


async def test_log_messages_go_to_the_file_and_to_pass_through_sessions_only(tmp_path: Path) -> None:
    """They reach a client of the upstream's own endpoint, not one of the aggregate."""
    async with Worker.start(tmp_path, server_config(fake("--era", "legacy"))) as worker:
        await worker.call("log", {"text": "for the file"}, caller(session="agg"))
        own = caller(session="own", naming="raw")
        await worker.send(frames.SetLevel(own, "debug"))
        await worker.call("log", {"text": "for me"}, own)
        await wait_for(lambda: worker.all(frames.Notify))
        notices = [json.loads(p) for f, p in worker.seen if isinstance(f, frames.Notify)]
        assert [notice["data"] for notice in notices] == ["for me"]
        log = (tmp_path / "logs" / "upstream-up.log").read_text(encoding="utf-8")
        assert "for the file" in log
        assert "for me" in log


async def test_a_session_whose_own_lists_change_sees_that_alone(tmp_path: Path) -> None:
    """The base catalogue is not touched by what one session's own process shows it."""
    async with Worker.start(tmp_path, server_config(fake("--era", "legacy"))) as worker:
        await worker.call("echo", {"a": 1}, caller(session="first"))
        await worker.call("add_tool", {"name": "fresh"}, caller(session="second"))
        await wait_for(lambda: "tool:fresh" in worker.catalogue("legacy", "second"))
        assert "tool:fresh" not in worker.catalogue("legacy")
        await worker.call("remove_tool", {"name": "fresh"}, caller(session="second"))
        await wait_for(lambda: worker.catalogue("legacy", "second") == worker.catalogue("legacy"))
