"""Log messages of upstreams on their way to clients of the pass-through endpoint, by era, by a worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coffer_common import frames
from tests.support.upstreams import fake
from tests.support.wait import wait_for
from tests.support.worker import Answer, Worker, caller, server_config

MODERN = "2026-07-28"
MINE = caller(MODERN, "modern:local:/servers/up/mcp", "raw")


async def log(worker: Worker, by: frames.Caller, text: str, level: str = "info", **more: Any) -> Answer:
    return await worker.call("log", {"text": text, "level": level}, by, **more)


def heard(answer: Answer) -> list[str]:
    """What came on the call's own stream."""
    return [params["data"] for frame, params in answer.notices if frame.method == "notifications/message"]


async def test_a_modern_client_hears_what_its_request_asked_for_and_no_more(tmp_path: Path) -> None:
    """E15: a legacy server knows one level a connection; each request gets its own share on its own stream, and one
    that named no level gets nothing, whatever others asked for."""
    upstream = fake("--era", "legacy", log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        assert heard(await log(worker, MINE, "unasked")) == []
        assert heard(await log(worker, MINE, "asked", log_level="debug")) == ["asked"]
        assert heard(await log(worker, MINE, "too little", log_level="error")) == []
        assert heard(await log(worker, MINE, "enough", "error", log_level="error")) == ["enough"]
        assert heard(await log(worker, MINE, "unasked")) == []
        assert [m["params"]["level"] for m in upstream.messages("logging/setLevel")] == ["debug"]
        assert len(worker.all(frames.Notify)) == 2
    kept = (tmp_path / "logs" / "upstream-up.log").read_text(encoding="utf-8")
    assert kept.count("unasked") >= 1, "the server's log file has all"


async def test_a_session_of_a_modern_upstream_hears_from_its_level_on(tmp_path: Path) -> None:
    """E15: the level travels with each request; before the first setLevel there is none, and so no message."""
    upstream = fake("--era", "modern", log=tmp_path / "log.jsonl")
    by = caller(session="own", naming="raw")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        await log(worker, by, "before")
        await worker.send(frames.SetLevel(by, "warning"))
        await log(worker, by, "little")
        assert heard(await log(worker, by, "much", "error")) == ["much"]
        metas = [message["params"]["_meta"] for message in upstream.messages("tools/call")]
        levels = [meta.get("io.modelcontextprotocol/logLevel") for meta in metas]
        assert levels == [None, "warning", "warning"]
        assert not upstream.messages("logging/setLevel")
        notices = [json.loads(payload)["data"] for frame, payload in worker.seen if isinstance(frame, frames.Notify)]
        assert notices == ["much"]


async def test_sessions_of_a_shared_connection_hear_their_own_level(tmp_path: Path) -> None:
    """The server is told the most verbose wish; the less verbose session is spared the rest."""
    upstream = fake("--era", "legacy", log=tmp_path / "log.jsonl")
    much, little = caller(session="much", naming="raw"), caller(session="little", naming="raw")
    async with Worker.start(tmp_path, server_config(upstream, isolation="shared")) as worker:
        for by, level in ((much, "debug"), (little, "error")):
            await worker.send(frames.SetLevel(by, level))
            await log(worker, by, "to begin with", "alert")
        assert heard(await log(worker, much, "detail", "debug")) == ["detail"]
        assert heard(await log(worker, little, "detail", "debug")) == []
        assert heard(await log(worker, little, "trouble", "error")) == ["trouble"]
        assert [m["params"]["level"] for m in upstream.messages("logging/setLevel")] == ["debug"]


async def test_who_answers_is_said_to_a_modern_client_of_a_legacy_server(tmp_path: Path) -> None:
    """A modern result says whose it is: the server itself where it is passed through, Coffer on the aggregate."""
    async with Worker.start(tmp_path, server_config(fake("--era", "legacy", "--name", "shown"))) as worker:
        for by, name in ((MINE, "shown"), (caller(MODERN, "modern:local:/mcp"), "coffer")):
            answer = await worker.call("echo", {"a": 1}, by)
            assert answer.value["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == name


async def test_who_answers_is_said_alike_by_a_modern_server(tmp_path: Path) -> None:
    """Coffer on the aggregate, towards modern clients alone; the server itself where it is passed through."""
    member = "io.modelcontextprotocol/serverInfo"
    async with Worker.start(tmp_path, server_config(fake("--era", "modern", "--name", "shown"))) as worker:
        for by, name in ((MINE, "shown"), (caller(MODERN, "modern:local:/mcp"), "coffer")):
            assert (await worker.call("echo", {"a": 1}, by)).value["_meta"][member]["name"] == name
        answer = await worker.call("echo", {"a": 1}, caller(session="old"))
        assert member not in answer.value.get("_meta", {})


async def test_the_first_connection_is_made_for_a_client_like_the_one_seen_last(tmp_path: Path) -> None:
    """It declares what that client did, is handed to the first that fits, and is told that there are roots to ask."""
    upstream = fake("--era", "legacy", log=tmp_path / "log.jsonl")
    declared = b'{"roots":{"listChanged":true},"sampling":{}}'
    seen = frames.Caller("", "", "", "prefixed", "2025-11-25", "http", declared)
    alike = frames.Caller("s1", "local", "/mcp", "prefixed", "2025-11-25", "http", declared)
    async with Worker.start(tmp_path, server_config(upstream), seen=seen) as worker:
        told = json.loads((await worker.call("whoami", by=alike)).text)["capabilities"]
        assert told["roots"] == {"listChanged": True}
        assert len([entry for entry in upstream.log() if entry["event"] == "start"]) == 1
        await wait_for(lambda: upstream.messages("notifications/roots/list_changed"), what="word of the roots")
