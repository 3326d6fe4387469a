"""Large messages beside small calls: whoever sends or fetches megabytes does not hold up the others."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.support.clients import BOTH_TYPES, modern_message, raw_http
from tests.support.daemon import Daemon
from tests.support.upstreams import raw

pytestmark = [pytest.mark.fault, pytest.mark.slow]

SIZE = 30_000_000
TIMES = 5.0
"""For how many times what it takes to read and copy the large message once a small call may be held up."""
ATTEMPTS = 5
CLIENT = """
import http.client, json, sys
port, headers, body = int(sys.argv[1]), json.loads(sys.argv[2]), open(sys.argv[3], "rb").read()
connection = http.client.HTTPConnection("127.0.0.1", port)
connection.request("POST", "/mcp", body, headers)
answer = connection.getresponse()
assert answer.status == 200 and len(answer.read()) > len(body) // 2
"""


@pytest.mark.parametrize("text", ["x", '\n"é'], ids=["plain", "escapes"])
@pytest.mark.timeout(180)
async def test_a_large_message_holds_up_small_calls_no_longer_than_one_look_takes(
    daemon: Daemon, tmp_path: Path, text: str
) -> None:
    """Megabytes to one upstream and back: meanwhile small calls of another are served between the steps."""
    for name in ("large", "small"):
        daemon.add_server(name, raw())
    for name in ("large", "small"):
        daemon.wait_state(name)
    blob = text * (SIZE // (len(json.dumps(text)) - 2))
    message, headers = modern_message(1, "tools/call", {"name": "large__echo", "arguments": {"blob": blob}})
    body = json.dumps(message).encode()
    (tmp_path / "body").write_bytes(body)
    headers |= {"Authorization": f"Bearer {daemon.token}", "Content-Type": "application/json", "Accept": BOTH_TYPES}
    arguments = [str(daemon.port), json.dumps(headers), str(tmp_path / "body")]
    found: list[float] = []
    while not found or min(found) >= TIMES:
        assert len(found) < ATTEMPTS, f"small calls were held up for {found} times one look"
        found.append(await _held_up(daemon, arguments) / _look(body))


def _look(body: bytes) -> float:
    """Seconds that it takes here and now to read a message once and to copy it once."""
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        msgspec.json.decode(body, type=_Skipped)
        bytes(bytearray(body))
        times.append(time.perf_counter() - begun)
    return min(times)


class _Skipped(msgspec.Struct):
    params: msgspec.Raw


async def _held_up(daemon: Daemon, arguments: list[str]) -> float:
    """Seconds of the longest small call while a large one is on its way."""
    async with raw_http(daemon) as small:
        call = {"name": "small__echo", "arguments": {}}
        await small.modern("tools/call", call)
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, *arguments)
        large, longest = asyncio.create_task(process.wait()), 0.0
        while not large.done():
            sent = time.monotonic()
            await small.modern("tools/call", call)
            longest = max(longest, time.monotonic() - sent)
        assert await large == 0
        return longest
