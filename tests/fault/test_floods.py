"""Upstreams that say far too much: they are read no faster than their allowance, and cost nobody else anything.

One worker, its real upstream, and what the worker says and does meanwhile.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from coffer_common import frames
from coffer_worker.core import intake, pace
from tests.support.upstreams import raw
from tests.support.wait import wait_for
from tests.support.worker import Worker, caller, server_config

pytestmark = [pytest.mark.fault, pytest.mark.slow]

TOKEN = {"_meta": {"progressToken": "t"}}
KINDS = ["notifications/message", "text"]


@pytest.mark.parametrize("what", KINDS)
async def test_a_flood_is_read_no_faster_than_its_allowance(tmp_path: Path, what: str) -> None:
    """100,000 messages a second that nobody waits for: the upstream must wait, its answers still come."""
    async with Worker.start(tmp_path, server_config(raw())) as worker:
        await worker.call("echo", {"do": "storm", "what": what, "n": 100_000})
        await _beat(worker)
        first, begun = worker.beats[-1], time.monotonic()
        for n in range(3):
            assert json.loads((await worker.call("echo", {"n": n})).text) == {"n": n}
            await _beat(worker)
        last, seconds = worker.beats[-1], time.monotonic() - begun
        params = {"level": "info", "data": "storm", "progressToken": 1, "progress": 1}
        line = json.dumps({"jsonrpc": "2.0", "method": what, "params": params}) if what != "text" else "no JSON"
        heard = (last.bytes_in - first.bytes_in) / (len(line) + 1)
        # A beat and its hearing may lie a second apart.
        assert heard < intake.BURST + intake.RATE * (seconds + 1.5)


async def test_list_changed_without_end_costs_few_readings_and_no_catalogue(tmp_path: Path) -> None:
    """Readings become rarer while it goes on, calls or not; what did not change is not sent again."""
    upstream = raw(log=tmp_path / "log.jsonl")
    async with Worker.start(tmp_path, server_config(upstream)) as worker:
        begun = time.monotonic()
        await worker.call("echo", {"do": "storm", "what": "notifications/tools/list_changed", "n": 10_000})
        for _ in range(8):  # calls under way, one of which may have changed the lists
            await worker.call("echo", {"delay": 0.5})
        seconds = time.monotonic() - begun
        sent = [(frame, payload) for frame, payload in worker.seen if isinstance(frame, frames.Catalogue)]
        assert any(frame.announced for frame, _ in sent[1:]), "it is believed, for a while"
        assert all(frame.same and not payload for frame, payload in sent[1:])
        assert len(sent) <= 2 + pace.ROW + seconds / pace.SUSTAINED
        assert len(upstream.messages("tools/list")) <= 4 + pace.ROW + seconds / pace.SUSTAINED


async def test_progress_of_a_call_is_passed_on_whole_but_no_faster_than_others_can_bear(tmp_path: Path) -> None:
    """What goes to clients passes the loop that all share, so it weighs more; none of it is lost."""
    count = 12_000
    async with Worker.start(tmp_path, server_config(raw())) as worker:
        begun = time.monotonic()
        deed = {"do": "steps", "every": 0, "n": count}
        corr = await worker.begin("tools/call", "echo", {"name": "echo", "arguments": deed, **TOKEN}, caller())
        answer = await worker.answer(corr, 60)
        weight = 1 + intake.PASSED_ON / intake.BYTES
        assert [one["progress"] for one in answer.progress] == list(range(1, count + 1))
        assert count * weight < intake.BURST + intake.RATE * (time.monotonic() - begun + 0.5)


LAST_WORDS = """
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    mid, method = message.get("id"), message.get("method")
    if method == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "x"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": "farewell"}]}
        sys.stdout.write("no JSON\\n" * 100_000)
    elif mid is None:
        continue
    else:
        print(json.dumps({"jsonrpc": "2.0", "id": mid, "error": {"code": -32601, "message": "no"}}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": mid, "result": result}), flush=True)
    if method == "tools/call":
        os._exit(0)
"""


async def test_what_an_upstream_says_last_is_heard_though_it_was_made_to_wait(tmp_path: Path) -> None:
    """It floods and is held, answers and exits: the answer that stands in the pipe is not lost with it."""
    config = {"transport": "stdio", "command": sys.executable, "args": ["-c", LAST_WORDS]}
    async with Worker.start(tmp_path, server_config(config)) as worker:
        assert (await worker.call("t")).text == "farewell"


async def _beat(worker: Worker) -> None:
    count = len(worker.beats)
    await wait_for(lambda: len(worker.beats) > count + 1, what="a heartbeat")
