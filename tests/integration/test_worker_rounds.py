"""Modern upstreams that answer with `input_required`, and clients of both eras that give the input, by a worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coffer_common import frames
from tests.support.asks import FORM, MODERN, ROOTS, SAMPLE, asked, begin, client, modern, retry
from tests.support.upstreams import Upstream, raw
from tests.support.wait import wait_for
from tests.support.worker import Worker, server_config


def modern_upstream(tmp_path: Path, *replies: Any) -> Upstream:
    """A server that speaks 2026-07-28 only; ``replies``: what `tools/call` answers, one after another."""
    done = {"result": {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}}
    discovered = {"supportedVersions": [MODERN], "capabilities": {"tools": {}}, "resultType": "complete"}
    script = {"replies": {"server/discover": {"result": discovered}, "tools/call": [*replies, done]}}
    return raw("--probe", "script", "--modern-only", log=tmp_path / "log.jsonl", script=script, at=tmp_path)


def wants(state: str | None = "S", **requests: Any) -> dict[str, Any]:
    result: dict[str, Any] = {"resultType": "input_required", "inputRequests": requests}
    return {"result": result if state is None else {**result, "requestState": state}}


async def test_a_legacy_client_answers_a_modern_upstreams_input_requests(tmp_path: Path) -> None:
    """E14: each is one request on the call; the retry has all answers, the state, a new id and the same arguments."""
    upstream = modern_upstream(tmp_path, wants(a=FORM, b=ROOTS), wants(None, c=SAMPLE))
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        corr = await begin(worker, client(), {"n": 1})
        for frame, _ in await asked(worker, 2):
            result = b'{"roots":[]}' if frame.method == "roots/list" else b'{"action":"accept","content":{}}'
            await worker.send(frames.Answer(frame.ask), result)
        last = (await asked(worker, 3))[-1][0]
        await worker.send(frames.Answer(last.ask), b'{"role":"assistant"}')
        assert (await worker.answer(corr)).text == "done"
        calls = [message["params"] for message in upstream.messages("tools/call")]
        assert calls[1]["inputResponses"] == {"a": {"action": "accept", "content": {}}, "b": {"roots": []}}
        assert calls[1]["requestState"] == "S"
        assert calls[2]["inputResponses"] == {"c": {"role": "assistant"}}
        assert "requestState" not in calls[2]
        assert all(call["arguments"] == {"n": 1} for call in calls)
        assert len({message["id"] for message in upstream.messages("tools/call")}) == 3
        declared = calls[0]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
        assert declared["roots"] == {}


async def test_a_clients_error_ends_the_call_but_cancels_an_elicitation(tmp_path: Path) -> None:
    """An input response has no place for an error: sampling stops there; an elicitation is told as cancel."""
    upstream = modern_upstream(tmp_path, wants(a=FORM), wants(a=SAMPLE))
    error = b'{"code":-1,"message":"no model"}'
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        corr = await begin(worker, client(), {})
        await worker.send(frames.Answer((await asked(worker))[0][0].ask, True), error)
        await worker.send(frames.Answer((await asked(worker, 2))[1][0].ask, True), error)
        failed = await worker.answer(corr)
        assert failed.value == {"code": -1, "message": "no model"}
        calls = [message["params"] for message in upstream.messages("tools/call")]
        assert [call.get("inputResponses") for call in calls] == [None, {"a": {"action": "cancel"}}]


async def test_a_link_of_a_modern_upstream_gets_an_id_and_its_completion(tmp_path: Path) -> None:
    """A legacy URL elicitation needs an id: ours; with the result comes the notice that it is complete."""
    link = {"method": "elicitation/create", "params": {"mode": "url", "message": "Go", "url": "https://up.invalid/1"}}
    upstream = modern_upstream(tmp_path, wants(a=link), wants(a=link))
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        corr = await begin(worker, client(), {})
        frame, params = (await asked(worker))[0]
        await worker.send(frames.Answer(frame.ask), b'{"action":"accept"}')
        frame, again = (await asked(worker, 2))[1]
        assert params["elicitationId"] == again["elicitationId"]
        await worker.send(frames.Answer(frame.ask), b'{"action":"accept"}')
        answer = await worker.answer(corr)
        assert [(notice.method, value) for notice, value in answer.notices] == [
            ("notifications/elicitation/complete", {"elicitationId": params["elicitationId"]})
        ]


async def test_rounds_have_an_end(tmp_path: Path) -> None:
    upstream = modern_upstream(tmp_path, *[wants(str(n)) for n in range(5)])
    async with Worker.start(tmp_path, server_config(upstream, limits={"rounds": 2})) as worker:
        failed = await worker.answer(await begin(worker, client(), {}))
        assert failed.reason == "rounds_limit"
        assert len(upstream.messages("tools/call")) == 3


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_input_that_nobody_declared_is_a_breach(tmp_path: Path, revision: str) -> None:
    """From a modern upstream an undeclared ask fails the call and is never shown."""
    upstream = modern_upstream(tmp_path, wants(a=SAMPLE), wants(a={"method": "foo/bar"}))
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        for _ in range(2):
            by = client(revision, capabilities={"roots": {}})
            failed = await worker.answer(await begin(worker, by, {}))
            assert failed.reason == "bad_answer"
        assert not worker.all(frames.Ask)


async def test_between_modern_sides_everything_passes(tmp_path: Path) -> None:
    """M-M: keys, state and answers as they are; the aggregate names the server; the caller's capabilities each time."""
    upstream = modern_upstream(tmp_path, wants(a=FORM, b=ROOTS))
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        first = await modern(worker, {"n": 1})
        assert first.value["inputRequests"]["a"]["params"]["message"] == "[up] Which?"
        assert first.value["inputRequests"]["b"] == ROOTS
        assert first.value["requestState"] == "S"
        given = {"a": {"action": "accept"}, "b": {"roots": []}}
        assert (await modern(worker, {"n": 1}, **retry(first, {}, **given))).text == "done"
        params = upstream.messages("tools/call")[1]["params"]
        assert (params["inputResponses"], params["requestState"]) == (given, "S")
        assert "elicitation" in params["_meta"]["io.modelcontextprotocol/clientCapabilities"]


async def test_cancel_between_rounds_is_heard_by_nobody_upstream(tmp_path: Path) -> None:
    """L-M: the upstream has nothing open and hears nothing; an answer that comes later is dropped."""
    upstream = modern_upstream(tmp_path, wants(a=FORM))
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        corr = await begin(worker, client(), {})
        number = (await asked(worker))[0][0].ask
        await worker.send(frames.Cancel(corr, "enough"))
        await wait_for(lambda: worker.all(frames.Withdraw), what="the withdrawal")
        await worker.send(frames.Answer(number), b'{"action":"accept"}')
        assert (await worker.answer(await begin(worker, client(), {}))).text == "done"
        assert not upstream.messages("notifications/cancelled")
        assert len(upstream.messages("tools/call")) == 2


async def test_progress_rises_through_all_rounds(tmp_path: Path) -> None:
    """L02: each round goes out under a token of its own and may begin at 1 again; the client, whose token stays, sees
    only what rises."""
    upstream = modern_upstream(tmp_path)
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        corr = await begin(worker, client(), {"do": "rounds"}, _meta={"progressToken": "p"})
        await give_roots(worker, 1, "/w")
        answer = await worker.answer(corr)
        assert answer.text == "done"
        assert answer.progress == [{"progressToken": "p", "progress": step} for step in (1, 2, 3)]
        tokens = [call["params"]["_meta"]["progressToken"] for call in upstream.messages("tools/call")]
        assert len(set(tokens)) == 2


# ------------------------------------------------------------------ roots that were told already


async def give_roots(worker: Worker, count: int, path: str) -> None:
    """Answer the ask number `count`, which must be for roots."""
    frame = (await asked(worker, count))[-1][0]
    assert frame.method == "roots/list"
    await worker.send(frames.Answer(frame.ask), json.dumps({"roots": [{"uri": f"file://{path}"}]}).encode())


def roots_given(upstream: Upstream) -> list[str]:
    """The roots in each retry that the upstream got."""
    calls = [call["params"] for call in upstream.messages("tools/call")]
    retries = [call["inputResponses"] for call in calls if "requestState" in call]
    return [answer["roots"][0]["uri"] for responses in retries for answer in responses.values()]


DONE = {"result": {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}}


async def test_roots_are_asked_for_once_until_the_client_says_that_they_changed(tmp_path: Path) -> None:
    """V03: what a session told of its roots holds until its list_changed, and for that session alone."""
    upstream = modern_upstream(tmp_path, *[wants(a=ROOTS), DONE] * 4)
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        corr = await begin(worker, client(), {})
        await give_roots(worker, 1, "/w/a")
        assert (await worker.answer(corr)).text == "done"
        assert (await worker.answer(await begin(worker, client(), {}))).text == "done"
        assert len(worker.all(frames.Ask)) == 1
        corr = await begin(worker, client(session="s2"), {})
        await give_roots(worker, 2, "/w/b")
        await worker.answer(corr)
        await worker.send(frames.RootsChanged("s1"))
        corr = await begin(worker, client(), {})
        await give_roots(worker, 3, "/w/c")
        await worker.answer(corr)
        assert roots_given(upstream) == ["file:///w/a", "file:///w/a", "file:///w/b", "file:///w/c"]


@pytest.mark.parametrize("told", [False, True])
async def test_roots_are_not_kept_where_a_change_would_not_be_heard(tmp_path: Path, told: bool) -> None:
    """A client that declared no listChanged, or whose roots changed while it was being asked, is asked each time."""
    upstream = modern_upstream(tmp_path, *[wants(a=ROOTS), DONE] * 2)
    by = client(capabilities={"roots": {"listChanged": told}})
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        for count in (1, 2):
            corr = await begin(worker, by, {})
            await asked(worker, count)
            if told:
                await worker.send(frames.RootsChanged("s1"))
            await give_roots(worker, count, "/w")
            assert (await worker.answer(corr)).text == "done"


async def test_what_was_told_is_given_beside_what_is_asked(tmp_path: Path) -> None:
    """A round that wants roots and more: only the rest is asked, the retry has all."""
    upstream = modern_upstream(tmp_path, wants(a=ROOTS), DONE, wants(a=ROOTS, b=FORM), DONE)
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        corr = await begin(worker, client(), {})
        await give_roots(worker, 1, "/w")
        await worker.answer(corr)
        corr = await begin(worker, client(), {})
        frame = (await asked(worker, 2))[-1][0]
        assert frame.method == "elicitation/create"
        await worker.send(frames.Answer(frame.ask), b'{"action":"decline"}')
        assert (await worker.answer(corr)).text == "done"
        assert upstream.messages("tools/call")[-1]["params"]["inputResponses"] == {
            "a": {"roots": [{"uri": "file:///w"}]},
            "b": {"action": "decline"},
        }
