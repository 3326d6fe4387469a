"""An upstream that closes a call's event stream in mid-call, and goes on with it when asked for the rest (SEP-1699)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.gateway import reference
from tests.support.clients import RawHttp, raw_http
from tests.support.daemon import Daemon

CALL = {"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": {"name": "test_reconnection", "arguments": {}}}


@pytest.fixture
def upstream(daemon: Daemon) -> Iterator[None]:
    """The conformance suite's reference server at a URL, known as `ref`."""
    with reference() as url:
        daemon.add_server("ref", {"transport": "http", "url": url})
        daemon.wait_state("ref")
        yield


def last_event_id(body: bytes) -> str:
    """The id of the last event of a stream."""
    return [line for line in body.decode().splitlines() if line.startswith("id: ")][-1].removeprefix("id: ")


async def called(raw: RawHttp, revision: str) -> tuple[list[dict[str, object]], bytes]:
    """Call the tool whose stream the upstream closes: the messages of the response's own stream, and its body."""
    await raw.initialize(revision)
    answer = await raw.post(CALL)
    return [message for message in answer.messages if message.get("id") == "c"], answer.body


@pytest.mark.usefixtures("upstream")
async def test_the_client_is_sent_away_too_and_brings_home_the_rest(daemon: Daemon) -> None:
    """At 2025-11-25 a stream that was primed may be closed before the answer: GET with Last-Event-ID has it."""
    async with raw_http(daemon, "/servers/ref/mcp") as raw:
        answers, body = await called(raw, "2025-11-25")
        assert answers == []
        assert b"retry: " in body
        resumed = await raw.exchange(
            "GET", headers={"Last-Event-ID": last_event_id(body), "Accept": "text/event-stream"}
        )
        assert [message["id"] for message in resumed.messages if "id" in message] == ["c"]
        assert "taken up again" in str(resumed.result)


@pytest.mark.usefixtures("upstream")
async def test_a_client_that_was_not_told_how_to_come_back_keeps_its_stream(daemon: Daemon) -> None:
    """Before 2025-11-25 no stream is closed in mid-call."""
    async with raw_http(daemon, "/servers/ref/mcp") as raw:
        answers, _ = await called(raw, "2025-06-18")
        assert [answer["id"] for answer in answers] == ["c"]
