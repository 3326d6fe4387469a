"""A worker whose upstream is at a URL: the SDK's own server, in every era."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coffer_common import frames
from tests.support.http_upstreams import fake_http
from tests.support.wait import wait_for
from tests.support.worker import Worker, caller, server_config

MODERN = "2026-07-28"


@pytest.mark.parametrize(("era", "agreed"), [("legacy", "2025-11-25"), ("modern", MODERN), ("dual", MODERN)])
async def test_an_upstream_at_a_url_is_discovered_and_called(tmp_path: Path, era: str, agreed: str) -> None:
    async with (
        fake_http("--era", era, log=tmp_path / "log.jsonl") as upstream,
        Worker.start(tmp_path, server_config(upstream.config())) as worker,
    ):
        assert worker.all(frames.State)[-1].revision == agreed
        await wait_for(lambda: "tool:echo" in worker.catalogue("legacy" if era == "legacy" else "modern"))
        for revision in ("2025-06-18", MODERN):
            answer = await worker.call("echo", {"a": [1, 2]}, caller(revision))
            assert json.loads(answer.text) == {"a": [1, 2]}
        calls = upstream.messages("tools/call")
        assert len(calls) == 2
        assert len({call["id"] for call in calls}) == 2
