"""Large arguments and results in each form that a client may take them: whole, and at no cost to others."""

from __future__ import annotations

import pytest

from tests.support.clients import http_client, json_of, raw_http, shim_client, text_of
from tests.support.daemon import Daemon
from tests.support.upstreams import fake

SIZE = 3_000_000


@pytest.fixture
def served(daemon: Daemon) -> Daemon:
    """A daemon with one upstream, ``s``."""
    daemon.add_server("s", fake())
    daemon.wait_state("s")
    return daemon


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_a_large_result_comes_whole_as_json_and_as_an_event(served: Daemon, accept: str) -> None:
    """Over HTTP in both eras; the connection serves the next request afterwards."""
    call = {"name": "s__big", "arguments": {"n_bytes": SIZE}}
    async with raw_http(served) as client:
        client.headers["Accept"] = accept
        for _ in range(2):
            answer = await client.modern("tools/call", call)
            assert answer.headers["Content-Type"].startswith(accept)
            assert answer.result["content"][0]["text"] == "x" * SIZE
        client.headers["Accept"] = "application/json, text/event-stream"
        await client.initialize()
        client.headers["Accept"] = accept
        answer = await client.request("tools/call", call)
        assert answer.headers["Content-Type"].startswith(accept)
        assert answer.result["content"][0]["text"] == "x" * SIZE
        assert (await client.request("ping")).result == {}


async def test_large_results_of_a_batch_stand_in_one_array(served: Daemon) -> None:
    async with raw_http(served) as client:
        await client.initialize("2025-03-26")
        client.headers["Accept"] = "application/json"
        sizes = {1: SIZE, 2: 10, 3: SIZE}
        batch = [
            {
                "jsonrpc": "2.0",
                "id": mid,
                "method": "tools/call",
                "params": {"name": "s__big", "arguments": {"n_bytes": size}},
            }
            for mid, size in sizes.items()
        ]
        answer = await client.post(batch)
        got = {one["id"]: len(one["result"]["content"][0]["text"]) for one in answer.message}
        assert got == sizes


@pytest.mark.parametrize("text", ["x" * SIZE, '"\n\\é' * (SIZE // 8)], ids=["plain", "escapes"])
async def test_large_arguments_and_results_pass_over_http_and_the_shim(served: Daemon, text: str) -> None:
    """Byte for byte there and back, whatever has to be escaped on the way."""
    async with http_client(served) as client:
        assert json_of(await client.call_tool("s__echo", {"blob": text})) == {"blob": text}
    async with shim_client(served) as client:
        assert json_of(await client.call_tool("s__echo", {"blob": text})) == {"blob": text}
        assert text_of(await client.call_tool("s__big", {"n_bytes": SIZE})) == "x" * SIZE


async def test_a_client_that_leaves_in_the_midst_of_a_large_answer_disturbs_nobody(served: Daemon) -> None:
    """What it did not read is dropped with its connection."""
    call = {"name": "s__big", "arguments": {"n_bytes": 8 * SIZE}}
    async with raw_http(served) as client, raw_http(served) as other:
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        await client.initialize()
        async with client.session.post(client.url, json=message, headers=client.headers) as response:
            await response.content.readexactly(100_000)
            response.close()
        assert (await other.modern("tools/call", {"name": "s__echo", "arguments": {"n": 1}})).status == 200
