"""The listen stream to a modern upstream over a pipe: one at a time, acknowledged, ended in odd ways, opened again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coffer_common import frames
from tests.support.upstreams import Upstream, raw
from tests.support.wait import wait_for
from tests.support.worker import Worker, caller, server_config

MODERN = "2026-07-28"
BY = caller(MODERN, "modern:local:/mcp")
LISTEN = "subscriptions/listen"


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    """A server that speaks 2026-07-28 only, and reports changes of tools and of resources."""
    capabilities = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}
    discovered = {"supportedVersions": [MODERN], "capabilities": capabilities, "resultType": "complete"}
    empty = {"result": {"resources": [], "resourceTemplates": [], "resultType": "complete"}}
    lists = {"resources/list": empty, "resources/templates/list": empty}
    script = {"replies": {"server/discover": {"result": discovered}, **lists}}
    return raw("--probe", "script", "--modern-only", log=tmp_path / "log.jsonl", script=script, at=tmp_path)


async def subscribe(worker: Worker, uri: str, who: str = "one") -> Any:
    return (await worker.request(lambda corr: frames.Subscribe(corr, BY, who, uri))).frame


def wanted(upstream: Upstream) -> list[Any]:
    """The filters of the listen streams so far."""
    return [message["params"]["notifications"] for message in upstream.messages(LISTEN)]


def told(worker: Worker) -> list[str]:
    return [f.uri for f in worker.all(frames.Notify) if f.method == "notifications/resources/updated"]


async def test_the_new_stream_is_there_before_the_old_one_ends(tmp_path: Path, upstream: Upstream) -> None:
    """R07, E16: one stream with all that is wanted; a subscription is answered when the upstream has agreed to it."""
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        await wait_for(lambda: wanted(upstream) == [{"toolsListChanged": True}], what="the first stream")
        assert isinstance(await subscribe(worker, "x:1"), frames.Reply)
        assert wanted(upstream)[1:] == [{"toolsListChanged": True, "resourceSubscriptions": ["x:1"]}]
        ended = await wait_for(lambda: upstream.messages("notifications/cancelled"), what="the end of the first")
        ids = [message["id"] for message in upstream.messages(LISTEN)]
        assert ended[0]["params"]["requestId"] == ids[0] != ids[1]
        refused = await subscribe(worker, "no:such")
        assert isinstance(refused, frames.Fail)
        assert refused.reason == "subscribe_unsupported"
        for uri in ("x:1", "x:1/part"):
            await worker.call("echo", {"do": "update", "uri": uri}, BY)
        await wait_for(lambda: told(worker) == ["x:1", "x:1/part"], what="both updates, once each")


@pytest.mark.parametrize("how", [["result"], ["cancelled"], ["result", "cancelled"], ["cancelled", "result"]])
async def test_a_stream_that_the_upstream_ends_is_opened_again(
    tmp_path: Path, upstream: Upstream, how: list[str]
) -> None:
    """E16: by its result, by `cancelled`, by both: a new id, the lists read again, each URI reported once."""
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        await subscribe(worker, "x:1")
        streams, reads = len(wanted(upstream)), len(upstream.messages("tools/list"))
        await worker.call("echo", {"do": "hang_up", "how": how}, BY)
        await wait_for(lambda: told(worker), what="what may have changed unheard")
        assert wanted(upstream)[streams:] == [{"toolsListChanged": True, "resourceSubscriptions": ["x:1"]}]
        ids = [message["id"] for message in upstream.messages(LISTEN)]
        assert len(ids) == len(set(ids))
        await wait_for(lambda: len(upstream.messages("tools/list")) == reads + 1, what="the lists to be read")
        await worker.call("echo", {"do": "update", "uri": "x:1"}, BY)
        await wait_for(lambda: len(told(worker)) == 2, what="an update on the new stream")
        assert told(worker) == ["x:1", "x:1"]
