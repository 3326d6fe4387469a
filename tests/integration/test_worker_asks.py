"""Upstreams that ask in mid-call (sampling, elicitation, roots), and clients of both eras that answer, by a worker.

The other end of each is looked at: what the upstream got, and how often. Modern upstreams: `test_worker_rounds`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coffer_common import frames
from coffer_worker.asking import MAX_ASKS
from tests.support.asks import (
    FORM,
    LINK,
    MODERN,
    ROOTS,
    SAMPLE,
    arguments,
    asked,
    begin,
    client,
    modern,
    retry,
    sent_to,
)
from tests.support.upstreams import raw
from tests.support.wait import wait_for
from tests.support.worker import Worker, server_config

# ------------------------------------------------------------------ legacy client, legacy upstream


async def test_a_legacy_client_is_asked_on_its_call_and_each_answer_goes_back_once(tmp_path: Path) -> None:
    """V01, V03, I07: the client whose call it is, each ask once, ids of both directions apart; errors pass."""
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        corr = await begin(worker, client(), arguments(FORM, SAMPLE, ROOTS))
        asks = await asked(worker, 3)
        assert [(frame.corr, frame.session) for frame, _ in asks] == [(corr, "s1")] * 3
        assert asks[0][1] == {"message": "[up] Which?", "requestedSchema": {"type": "object"}}
        assert asks[1][1] == SAMPLE["params"]
        await worker.send(frames.Answer(asks[1][0].ask, True), b'{"code":-1,"message":"no"}')
        await worker.send(frames.Answer(asks[2][0].ask), b'{"roots":[{"uri":"file:///w/a"}]}')
        await worker.send(frames.Answer(asks[0][0].ask), b'{"action":"accept","content":{"a":1}}')
        await worker.send(frames.Answer(asks[0][0].ask), b'{"action":"cancel"}')
        assert json.loads((await worker.answer(corr)).text) == [
            {"result": {"action": "accept", "content": {"a": 1}}},
            {"error": {"code": -1, "message": "no"}},
            {"result": {"roots": [{"uri": "file:///w/a"}]}},
        ]
        assert len(sent_to(upstream)) == 3


async def test_an_answer_on_several_lines_is_one_line_for_the_upstream(tmp_path: Path) -> None:
    """A client over HTTP may break lines between tokens: the answer arrives, and no line of it passes for a message."""
    smuggled = b'{"jsonrpc":"2.0","id":77,"method":"tools/call","params":{"name":"echo"}}'
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        corr = await begin(worker, client(), arguments(ROOTS, FORM))
        asks = await asked(worker, 2)
        await worker.send(frames.Answer(asks[0][0].ask), b'{\r\n"roots":[],"x":\n' + smuggled + b"\n}")
        await worker.send(frames.Answer(asks[1][0].ask, True), b'{"code":-1,\r"message":"no"}')
        assert json.loads((await worker.answer(corr)).text) == [
            {"result": {"roots": [], "x": json.loads(smuggled)}},
            {"error": {"code": -1, "message": "no"}},
        ]
    assert not [entry for entry in upstream.log() if entry["event"] == "garbage"]
    assert len(upstream.messages("tools/call")) == 1


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_what_the_client_did_not_declare_is_refused_at_once(tmp_path: Path, revision: str) -> None:
    """V01, V03: the upstream gets a prompt error, the client is not asked, the call goes on."""
    by = client(revision, capabilities={"elicitation": {}})
    async with Worker.start(tmp_path, server_config(raw())) as worker:
        answer = await worker.answer(await begin(worker, by, arguments(SAMPLE, ROOTS, LINK)))
        assert [entry["error"]["code"] for entry in json.loads(answer.text)] == [-32601, -32601, -32602]
        assert not worker.all(frames.Ask)


async def test_an_ask_that_is_taken_back_is_taken_back_at_the_client(tmp_path: Path) -> None:
    """The upstream's cancel of its own ask reaches the client; a late answer is dropped."""
    async with Worker.start(tmp_path, server_config(raw())) as worker:
        corr = await begin(worker, client(), arguments(FORM, take_back=True))
        number = (await asked(worker))[0][0].ask
        await wait_for(lambda: [f for f in worker.all(frames.Withdraw) if f.ask == number], what="a withdrawal")
        await worker.send(frames.Answer(number), b'{"action":"accept"}')
        assert json.loads((await worker.answer(corr)).text) == [{}]


async def test_an_answer_that_overtakes_the_asks_ends_them(tmp_path: Path) -> None:
    """The call ends while the client is still asked: withdrawn there, and an error for the upstream."""
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        answer = await worker.answer(await begin(worker, client(), arguments(FORM, impatient=True)))
        assert answer.text == "impatient"
        assert worker.all(frames.Withdraw)
        await wait_for(lambda: sent_to(upstream), what="an error for the upstream")
        assert sent_to(upstream)[0]["error"]["code"] == -32602


async def test_nobody_answers_and_the_call_goes_on(tmp_path: Path) -> None:
    """The answer limit: the upstream gets an error, the client is not asked any more; the idle limit stood still."""
    config = server_config(raw(), limits={"answer_seconds": 2, "idle_seconds": 1})
    async with Worker.start(tmp_path, config) as worker:
        answer = await worker.answer(await begin(worker, client(), arguments(FORM)))
        assert "error" in json.loads(answer.text)[0]
        assert worker.all(frames.Withdraw)


async def test_roots_that_change_are_asked_for_again(tmp_path: Path) -> None:
    """V03: the upstream hears of it on that session's connection, and asks though no call is open."""
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        for session in ("s1", "s2"):
            await worker.answer(await begin(worker, client(session=session), {"a": 1}))
        await worker.send(frames.RootsChanged("s2"))
        frame = (await asked(worker))[0][0]
        assert (frame.corr, frame.session, frame.method) == (0, "s2", "roots/list")
        await worker.send(frames.Answer(frame.ask), b'{"roots":[]}')
        await wait_for(lambda: sent_to(upstream), what="the roots")
        assert sent_to(upstream)[0]["result"] == {"roots": []}
        assert len(upstream.messages("notifications/roots/list_changed")) == 1


async def test_a_link_that_was_refused_first_is_reported_as_opened_to_its_session_alone(tmp_path: Path) -> None:
    """Between legacy sides -32042 passes unchanged, and the notice of completion goes to that session."""
    async with Worker.start(tmp_path, server_config(raw())) as worker:
        failed = await worker.answer(await begin(worker, client(), {"do": "url"}))
        assert failed.value["code"] == -32042
        assert failed.value["data"]["elicitations"][0]["elicitationId"] == "e-1"
        await wait_for(lambda: worker.all(frames.Notify), what="the notice")
        notice = worker.all(frames.Notify)[0]
        assert (notice.method, notice.sessions) == ("notifications/elicitation/complete", ("s1",))


async def test_an_ask_while_the_connection_is_made_belongs_to_the_call(tmp_path: Path) -> None:
    """Servers often ask for roots right after `initialized`; the warm connection, which nobody uses, is told no."""
    upstream = raw("--stray-request", "roots/list", log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        corr = await begin(worker, client(), {"delay": 1})
        frame = (await asked(worker))[0][0]
        assert (frame.corr, frame.session) == (corr, "s1")
        await worker.send(frames.Answer(frame.ask), b'{"roots":[]}')
        assert (await worker.answer(corr)).text
        assert [message.get("error", {}).get("code") for message in sent_to(upstream)] == [-32601, None]


# ------------------------------------------------------------------ modern client, legacy upstream


async def test_a_modern_client_is_asked_by_its_answer_and_the_call_runs_once(tmp_path: Path) -> None:
    """E14: several asks are one map; the retry resumes the very call; nothing of the hop is in what is shown."""
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        args = arguments(FORM, SAMPLE, LINK)
        first = await modern(worker, args)
        assert first.value["resultType"] == "input_required"
        shown = first.value["inputRequests"]
        assert list(shown) == ["ask-1", "ask-2", "ask-3"]
        assert shown["ask-1"]["params"]["message"] == "[up] Which?"
        assert shown["ask-2"] == {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 3}}
        assert "elicitationId" not in shown["ask-3"]["params"]
        given = {"ask-1": {"action": "decline"}, "ask-2": {"role": "assistant"}, "ask-3": {"action": "cancel"}}
        second = await modern(worker, args, **retry(first, {}, **given, more={}))
        assert [entry["result"] for entry in json.loads(second.text)] == list(given.values())
        assert second.value["resultType"] == "complete"
        assert len(upstream.messages("tools/call")) == 1
        assert len(sent_to(upstream)) == 3


async def test_what_is_missing_is_asked_again(tmp_path: Path) -> None:
    """A retry without all keys gets the rest and a new state; the answers given are not asked for twice."""
    async with Worker.start(tmp_path, server_config(raw())) as worker:
        args = arguments(FORM, ROOTS)
        first = await modern(worker, args)
        second = await modern(worker, args, **retry(first, {}, **{"ask-2": {"roots": []}}))
        assert list(second.value["inputRequests"]) == ["ask-1"]
        third = await modern(worker, args, **retry(second, {}, **{"ask-1": {"action": "accept"}}))
        assert json.loads(third.text) == [{"result": {"action": "accept"}}, {"result": {"roots": []}}]


async def test_a_state_is_good_for_its_call_its_client_and_once(tmp_path: Path) -> None:
    """Forged, other arguments, another principal, used, none of ours: -32602, and the parked call is untouched."""
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        args = arguments(FORM)
        first = await modern(worker, args)
        good = retry(first, {}, **{"ask-1": {"action": "accept"}})
        forged = {**good, "requestState": good["requestState"][:-6] + "AAAAAA"}
        strange = {**good, "requestState": "somebody's"}
        for by, what, more in (
            (client(MODERN), args, forged),
            (client(MODERN), args, strange),
            (client(MODERN), {**args, "extra": 1}, good),
            (client(MODERN, session="other", principal="client:x"), args, good),
        ):
            refused = await modern(worker, what, by, **more)
            assert isinstance(refused.frame, frames.Fail)
            assert refused.frame.code == -32602
        assert json.loads((await modern(worker, args, **good)).text) == [{"result": {"action": "accept"}}]
        again = await modern(worker, args, **good)
        assert again.reason == "invalid_params"
        assert len(upstream.messages("tools/call")) == 1


async def test_an_answer_that_comes_while_the_client_is_away_waits_for_it(tmp_path: Path) -> None:
    """U's reply while asked is kept; the retry gets it at once."""
    async with Worker.start(tmp_path, server_config(raw())) as worker:
        args = arguments(FORM, impatient=True)
        first = await modern(worker, args)
        await wait_for(lambda: len(worker.beats) > 2, what="a while")
        second = await modern(worker, args, **retry(first, {}, **{"ask-1": {"action": "accept"}}))
        assert second.text == "impatient"


async def test_a_client_that_never_comes_back(tmp_path: Path) -> None:
    """The answer limit: an error to the ask, `cancelled` for the call, the state worth nothing; nothing is left."""
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream, limits={"answer_seconds": 1})) as worker:
        args = arguments(FORM)
        first = await modern(worker, args)
        await wait_for(lambda: upstream.messages("notifications/cancelled"), what="the cancel")
        assert sent_to(upstream)[0]["error"]["code"] == -32602
        late = await modern(worker, args, **retry(first, {}, **{"ask-1": {"action": "accept"}}))
        assert late.reason == "invalid_params"
        assert not (await worker.dump())["calls"]


async def test_cancelling_the_retry_cancels_the_call(tmp_path: Path) -> None:
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        args = arguments(FORM, ROOTS)
        first = await modern(worker, args)
        second = await modern(worker, args, **retry(first, {}, **{"ask-1": {"action": "accept"}}))
        corr = worker.corr + 2
        await worker.send(frames.Cancel(corr, "enough"))
        await worker.dump()  # takes a number too; on the same pair, so the cancel has come when it is answered
        assert corr == await begin(worker, client(MODERN), args, **retry(second, {}, **{"ask-2": {"roots": []}}))
        await wait_for(lambda: upstream.messages("notifications/cancelled"), what="the cancel")
        assert not (await worker.dump())["calls"]


async def test_calls_that_may_be_asked_do_not_share_a_connection(tmp_path: Path) -> None:
    """A legacy ask over a pipe names no call: two calls of one modern client are apart, and their asks are too."""
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        one, two = arguments(FORM, who=1), arguments(FORM, who=2)
        first = [await begin(worker, client(MODERN), args) for args in (one, two)]
        answers = [await worker.answer(corr) for corr in first]
        for args, answer in zip((two, one), reversed(answers), strict=True):
            given = {"ask-1": {"action": "accept", "content": {"who": args["who"]}}}
            done = await modern(worker, args, **retry(answer, {}, **given))
            assert json.loads(done.text)[0]["result"]["content"] == {"who": args["who"]}
        assert len({entry["pid"] for entry in upstream.log() if "tools/call" in json.dumps(entry)}) == 2


async def test_a_url_that_must_be_opened_first(tmp_path: Path) -> None:
    """-32042: shown as an input request; on accept the call is made again, when the upstream reports it done."""
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        args = {"do": "url"}
        first = await modern(worker, args)
        assert first.value["inputRequests"]["ask-1"]["params"]["url"] == "https://upstream.invalid/login"
        second = await modern(worker, args, **retry(first, {}, **{"ask-1": {"action": "accept"}}))
        assert second.text == "opened"
        assert len(upstream.messages("tools/call")) == 2
        assert "requestState" not in json.dumps(upstream.messages("tools/call"))


async def test_a_url_that_nobody_opens(tmp_path: Path) -> None:
    """Declined: an error, and no second call. E17: not declared, -32021, which names the capability."""
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        first = await modern(worker, {"do": "url"})
        second = await modern(worker, {"do": "url"}, **retry(first, {}, **{"ask-1": {"action": "decline"}}))
        assert second.reason == "cancelled"
        assert len(upstream.messages("tools/call")) == 1
        other = await modern(worker, {"do": "url"}, client(MODERN, "s9", {"elicitation": {}}))
        assert isinstance(other.frame, frames.Fail)
        assert (other.frame.code, other.frame.status) == (-32021, 400)
        assert other.value["data"]["requiredCapabilities"] == {"elicitation": {"url": {}}}


# ------------------------------------------------------------------ an upstream that asks without end


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_an_upstream_that_asks_without_end_fills_no_memory(tmp_path: Path, revision: str) -> None:
    """Asks that wait for an answer are bounded for each connection: what is beyond is refused at once, and says so."""
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        corr = await begin(worker, client(revision), arguments(*[FORM] * (MAX_ASKS + 5)))
        refused = await wait_for(lambda: found if len(found := sent_to(upstream)) >= 5 else None, what="refusals")
        assert [answer["error"]["code"] for answer in refused] == [-32603] * 5
        assert "64 requests of this connection wait for an answer" in refused[0]["error"]["message"]
        if revision == MODERN:
            assert len((await worker.answer(corr)).value["inputRequests"]) == MAX_ASKS
        else:
            assert len(await asked(worker, MAX_ASKS)) == MAX_ASKS


# ------------------------------------------------------------------ which of several calls it is


async def test_a_question_outlives_the_call_it_seemed_to_belong_to(tmp_path: Path) -> None:
    """V01, I07: over a pipe an ask names no call. The call that it was shown on ends: the person is not asked twice,
    the limits of the other stand still meanwhile, and the answer reaches it."""
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream, limits={"idle_seconds": 1})) as worker:
        one = await begin(worker, client(), arguments(FORM, after=0.2))
        two = await begin(worker, client(), {"delay": 0.6})
        frame = (await asked(worker))[0][0]
        assert frame.corr == two
        assert (await worker.answer(two)).text
        (_, shown), (moved, again) = await asked(worker, 2)
        assert (moved.ask, moved.corr, again) == (frame.ask, one, shown)
        beats = len(worker.beats)
        await wait_for(lambda: len(worker.beats) > beats + 2, what="longer than the idle limit")
        await worker.send(frames.Answer(frame.ask), b'{"action":"accept"}')
        assert json.loads((await worker.answer(one)).text) == [{"result": {"action": "accept"}}]
        assert not worker.all(frames.Withdraw)
        assert len(sent_to(upstream)) == 1


async def test_all_calls_that_may_have_asked_end_well_where_nobody_answers(tmp_path: Path) -> None:
    """The answer limit: the upstream hears of it once, and no call is ended for a question that was another's."""
    config = server_config(raw(log=tmp_path / "log.jsonl"), limits={"answer_seconds": 1.5, "idle_seconds": 1})
    async with Worker.start(tmp_path, config) as worker:
        one = await begin(worker, client(), arguments(FORM, after=0.2))
        two = await begin(worker, client(), {"delay": 2.2})
        assert "error" in json.loads((await worker.answer(one)).text)[0]
        assert (await worker.answer(two)).text
        assert len(worker.all(frames.Withdraw)) == 1


# ------------------------------------------------------------------ what may happen while a call is parked


async def test_an_upstream_that_dies_while_its_client_is_away(tmp_path: Path) -> None:
    """The retry gets the failure at once."""
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        args = arguments(FORM, leave=0.3)
        first = await modern(worker, args)
        await wait_for(lambda: [entry for entry in upstream.log() if entry["event"] == "end"], what="the death")
        second = await modern(worker, args, **retry(first, {}, **{"ask-1": {"action": "accept"}}))
        assert second.reason == "upstream_exited"


async def test_an_ask_that_is_taken_back_while_the_client_is_away(tmp_path: Path) -> None:
    """Its answer is ignored; the upstream's own answer, which came meanwhile, is the retry's."""
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        args = arguments(FORM, take_back=True)
        first = await modern(worker, args)
        beats = len(worker.beats)
        await wait_for(lambda: len(worker.beats) > beats + 1, what="a while")
        second = await modern(worker, args, **retry(first, {}, **{"ask-1": {"action": "accept"}}))
        assert json.loads(second.text) == [{}]
        assert not sent_to(upstream)


async def test_a_retry_that_declares_less_is_asked_less(tmp_path: Path) -> None:
    """Capabilities may differ from the first request's: only what the retry still allows may follow."""
    async with Worker.start(tmp_path, server_config(raw())) as worker:
        args = arguments(FORM, SAMPLE)
        first = await modern(worker, args)
        assert len(first.value["inputRequests"]) == 2
        less = client(MODERN, capabilities={"elicitation": {}})
        second = await modern(worker, args, less, **retry(first, {}, **{"ask-1": {"action": "accept"}}))
        form, sample = json.loads(second.text)
        assert form == {"result": {"action": "accept"}}
        assert sample["error"]["code"] == -32601


async def test_a_link_that_may_not_be_shown_any_more(tmp_path: Path) -> None:
    """Nothing works without it: an error, and no second call."""
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        first = await modern(worker, {"do": "url"})
        less = client(MODERN, capabilities={"elicitation": {}})
        second = await modern(worker, {"do": "url"}, less, **retry(first, {}))
        assert isinstance(second.frame, frames.Fail)
        assert len(upstream.messages("tools/call")) == 1


@pytest.mark.parametrize("token", [5, None])
async def test_progress_while_the_client_is_away_waits_for_a_token(tmp_path: Path, token: int | None) -> None:
    """L02: a token dies with the answer that asks; the last value is sent under the retry's, where it brings one."""
    async with Worker.start(tmp_path, server_config(raw())) as worker:
        args = arguments(FORM, progress=1)
        first = await modern(worker, args, _meta={"progressToken": 4})
        assert [(step["progressToken"], step["progress"]) for step in first.progress] == [(4, 1)]
        beats = len(worker.beats)
        await wait_for(lambda: len(worker.beats) > beats + 1, what="a while")
        more: dict[str, Any] = {} if token is None else {"_meta": {"progressToken": token}}
        second = await modern(worker, args, **retry(first, {}, **{"ask-1": {"action": "accept"}}), **more)
        wanted = [] if token is None else [{"progressToken": token, "progress": 2}]
        assert second.progress == wanted
