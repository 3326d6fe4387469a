"""The standing streams of legacy connections: the GET stream of Streamable HTTP, and all of HTTP+SSE.

Owns when such a stream is opened again and what its end means. Never sends a message.
Source: MCP, Transports, Streamable HTTP, Listening for Messages; MCP 2024-11-05, Transports, HTTP with SSE.
"""

import asyncio
from typing import Final, Protocol
from urllib.parse import urljoin

from coffer_common import errors
from coffer_worker.core import http_rules
from coffer_worker.core.framing import TooLong
from coffer_worker.core.sse import Events
from coffer_worker.upstream.http_client import Response, Trouble
from coffer_worker.upstream.http_wire import Wire
from coffer_worker.upstream.pipe import Problem

# A stream that lived that long counts as having worked.
_WORKED_SECONDS: Final = 5.0
_ENDPOINT_SECONDS: Final = 10.0


class Owner(Protocol):
    """The connection that a stream belongs to."""

    async def renew(self, lost: str) -> Problem | None:
        """That session is unknown to the upstream."""

    def end(self, problem: Problem) -> None:
        """Nothing more can be had on this connection."""


def _take(wire: Wire, data: bytes | TooLong) -> None:
    if isinstance(data, TooLong):
        wire.receiver.too_long(TooLong(None, data.size, final=False))
    else:
        wire.deliver(data, wire.receiver, None)


async def listen(wire: Wire, owner: Owner) -> None:
    """Keep a legacy session's GET stream, until the upstream says that it has none. Runs until it is cancelled."""
    parser = Events(wire.limit)
    failures, worked, loop = 0, False, asyncio.get_running_loop()
    while True:
        began, session = loop.time(), wire.session
        try:
            async with wire.client.exchange("GET", wire.stream_headers(parser.last_id)) as response:
                status = response.status_code
                if status == 200 and http_rules.media_type(response.headers.get("content-type")) == http_rules.EVENTS:
                    worked = True
                    await _read(wire, response, parser)
                elif status == 404 and worked and session:
                    await owner.renew(session)  # starts another one in the place of this
                    return
                elif parser.last_id and status in (400, 404, 409, 410, 412):
                    parser.last_id = b""  # it does not know that event any more
                elif status < 500 and status not in (401, 408, 429):
                    return
                elif status == 401:
                    wire.log.note("the stream of notifications was refused (HTTP 401)")
        except Trouble as trouble:
            wire.log.fault(f"the stream of notifications broke: {trouble.text}")
        failures = 0 if loop.time() - began >= _WORKED_SECONDS else failures + 1
        await asyncio.sleep(http_rules.reopen_delay(failures - 1, parser.retry))


async def _read(wire: Wire, response: Response, parser: Events) -> None:
    async for found in wire.events(response, parser):
        if isinstance(found, TooLong) or found.type == b"message":
            _take(wire, found if isinstance(found, TooLong) else found.data)


class OldStream:
    """The one stream of HTTP+SSE, on which everything comes. ``endpoint`` is where messages are posted to."""

    def __init__(self, wire: Wire, owner: Owner) -> None:
        self._wire = wire
        self._owner = owner
        self._endpoint: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    async def endpoint(self) -> str | None:
        """Where to post; None where the upstream does not speak this transport."""
        try:
            async with asyncio.timeout(_ENDPOINT_SECONDS):
                return await asyncio.shield(self._endpoint)
        except TimeoutError:
            return None

    async def run(self) -> None:
        """Read until the stream ends; then the connection is over."""
        wire, parser = self._wire, Events(self._wire.limit)
        why = "its event stream ended"
        try:
            async with wire.client.exchange("GET", wire.stream_headers(b"")) as response:
                kind = http_rules.media_type(response.headers.get("content-type"))
                if response.status_code != 200 or kind != http_rules.EVENTS:
                    return
                async for found in wire.events(response, parser):
                    if not isinstance(found, TooLong) and found.type == b"endpoint":
                        self._found(str(response.url), found.data)
                    elif isinstance(found, TooLong) or found.type == b"message":
                        _take(wire, found if isinstance(found, TooLong) else found.data)
        except Trouble as trouble:
            why = trouble.text
        finally:
            began = self._endpoint.done() and not self._endpoint.cancelled() and self._endpoint.result() is not None
            if not self._endpoint.done():
                self._endpoint.set_result(None)
        if began:
            self._owner.end(Problem(errors.BROKEN, f"Upstream {wire.server!r} is gone: {why}"))

    def _found(self, url: str, data: bytes) -> None:
        if self._endpoint.done():
            return
        target = urljoin(url, data.decode(errors="replace").strip())
        if http_rules.same_origin(url, target):
            self._endpoint.set_result(target)
        else:
            self._wire.log.note(f"its endpoint is elsewhere, at {http_rules.origin(target)}, and is not used")
            self._endpoint.set_result(None)
