"""Subscriptions that are taken back, refused or shared while the upstream is still being asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from coffer_common import frames
from coffer_supervisor.core.calls import CallError
from tests.support.heart import AGGREGATE, LOCAL, Beating, beating
from tests.support.upstreams import Upstream, raw
from tests.support.wait import wait_for
from tests.support.worker import Worker, caller, server_config

SUBSCRIBE, UNSUBSCRIBE = "resources/subscribe", "resources/unsubscribe"
URI = "coffer://one/x:1"


def subscribable(at: Path, *flags: str) -> Upstream:
    """A legacy server with subscriptions, which refuses that of `no:1`."""
    replies: dict[str, Any] = {SUBSCRIBE: {"result": {}}, UNSUBSCRIBE: {"result": {}}}
    replies[f"{SUBSCRIBE} no:1"] = {"error": {"code": -32602, "message": "no such resource"}}
    script = {"capabilities": {"tools": {}, "resources": {"subscribe": True}}, "replies": replies}
    return raw(*flags, log=at / "log.jsonl", script=script, at=at)


# ---- the worker


async def test_one_that_ends_while_its_upstream_starts_never_reaches_it(tmp_path: Path) -> None:
    upstream = subscribable(tmp_path, "--init-delay-ms", "700")
    async with Worker.start(tmp_path, server_config(upstream), ready=False) as worker:
        await worker.send(frames.Subscribe(1, caller(), "s1", "x:1"))
        await worker.request(lambda corr: frames.Unsubscribe(corr, "s1", "x:1"))
        assert (await worker.answer(1)).reason == "cancelled"
        assert (await worker.call("echo")).text
        assert upstream.messages(SUBSCRIBE) == []


async def _busy(worker: Worker, upstream: Upstream) -> None:
    """From now on the upstream answers nothing for two seconds."""
    await worker.begin("tools/call", "echo", {"arguments": {"do": "spin", "seconds": 2}}, caller())
    await wait_for(lambda: upstream.messages("tools/call"))


async def test_one_that_ends_while_its_upstream_is_asked_is_ended_there(tmp_path: Path) -> None:
    upstream = subscribable(tmp_path)
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        await _busy(worker, upstream)
        await worker.send(frames.Subscribe(1, caller(), "s1", "x:1"))
        await worker.request(lambda corr: frames.Unsubscribe(corr, "nobody"))  # once answered, the first is under way
        await worker.request(lambda corr: frames.Unsubscribe(corr, "s1"))
        assert (await worker.answer(1)).reason == "cancelled"
        await wait_for(lambda: upstream.messages(UNSUBSCRIBE))
        assert len(upstream.messages(SUBSCRIBE)) == 1


async def test_all_who_wish_meanwhile_get_the_upstreams_one_answer(tmp_path: Path) -> None:
    """A refusal is everybody's, and the next wish is a new question."""
    upstream = subscribable(tmp_path)
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        await _busy(worker, upstream)
        for corr, uri in ((1, "no:1"), (2, "no:1"), (3, "x:1"), (4, "x:1")):
            await worker.send(frames.Subscribe(corr, caller(), f"s{corr}", uri))
        kinds = [type((await worker.answer(corr)).frame) for corr in (1, 2, 3, 4)]
        assert kinds == [frames.Fail, frames.Fail, frames.Reply, frames.Reply]
        assert len(upstream.messages(SUBSCRIBE)) == 2
        again = await worker.request(lambda corr: frames.Subscribe(corr, caller(), "s2", "no:1"))
        assert isinstance(again.frame, frames.Fail)
        assert len(upstream.messages(SUBSCRIBE)) == 3


# ---- the supervisor


@pytest_asyncio.fixture
async def heart() -> AsyncIterator[Beating]:
    async with beating() as found:
        yield found


def _subscribing(heart: Beating) -> asyncio.Task[None]:
    return asyncio.create_task(heart.router.subscribe(heart.caller("s1"), LOCAL, AGGREGATE, "s1", URI))


def _leave(heart: Beating, how: str) -> None:
    if how == "session":
        heart.router.close_session("s1", "gone")
    else:
        heart.router.unsubscribe("s1", None if how == "listen" else URI)


async def _refused(task: asyncio.Task[None]) -> None:
    with pytest.raises(CallError) as caught:
        await asyncio.wait_for(task, 20)
    assert caught.value.failure.reason == "cancelled"


async def _restarted(heart: Beating) -> None:
    before = heart.view("one").worker_pid
    await heart.supervision.restart("one")
    await wait_for(lambda: heart.view("one").state == "ready" and heart.view("one").worker_pid != before)
    await heart.call("one__echo", n=1)


@pytest.mark.parametrize("how", ["session", "listen", "one"])
async def test_nothing_is_asked_for_who_left_while_the_upstream_starts(
    heart: Beating, tmp_path: Path, how: str
) -> None:
    one = subscribable(tmp_path, "--init-delay-ms", "1000")
    await heart.add("one", one, wait=False)
    task = _subscribing(heart)
    await wait_for(lambda: heart.router.subscriptions._asking)
    _leave(heart, how)
    await _refused(task)
    await heart.settled("one")
    await heart.call("one__echo", n=1)
    assert one.messages(SUBSCRIBE) == []


@pytest.mark.parametrize("how", ["session", "listen", "one", "cancelled"])
async def test_nothing_is_made_again_for_who_left_while_the_upstream_was_asked(
    heart: Beating, tmp_path: Path, how: str
) -> None:
    """Else a dead session's wish would come back with each new worker."""
    one = subscribable(tmp_path)
    await heart.add("one", one)
    heart.tool("one__echo", do="spin", seconds=3)
    await wait_for(lambda: one.messages("tools/call"))
    task = _subscribing(heart)
    await wait_for(lambda: heart.heart.calls.requests)
    await heart.call("one__echo", to={"session": "s2"}, n=1)  # once answered, what was sent before is under way
    if how == "cancelled":
        task.cancel()
        await asyncio.wait([task])
    else:
        _leave(heart, how)
        await _refused(task)
    if how != "session":  # that takes its connection along
        await wait_for(lambda: one.messages(UNSUBSCRIBE))
    asked = len(one.messages(SUBSCRIBE))
    await _restarted(heart)
    assert len(one.messages(SUBSCRIBE)) == asked
    assert heart.ear.updated == []


async def test_the_end_of_a_listen_makes_the_worker_forget_it(
    heart: Beating, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each listen stream is a new subscriber: a worker that kept their names would keep ever more."""
    await heart.add("one", subscribable(tmp_path))
    channel, sent = heart.heart.channel, list[Any]()
    send = channel.send

    def watched(peer: Any, frame: Any, payload: bytes = b"") -> None:
        sent.append(frame)
        send(peer, frame, payload)

    monkeypatch.setattr(channel, "send", watched)
    for uri in ("x:1", "x:2"):
        await heart.router.subscribe(heart.caller("s1"), LOCAL, AGGREGATE, "listen-1", f"coffer://one/{uri}")
    heart.router.unsubscribe("listen-1", None)
    ends = [frame for frame in sent if isinstance(frame, frames.Unsubscribe)]
    assert ends == [frames.Unsubscribe(0, "listen-1", "")]
