"""HTTP connections: how many there may be, how long one may take to say what it wants, and what is told to one
that speaks no HTTP.

Owns aiohttp's server and its connections. Never looks into a request that is complete: that is the handler's.
"""

import asyncio
import logging
import resource
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

import msgspec
from aiohttp import http_exceptions, web

from coffer_common.api import ErrorBody, ErrorDetail
from coffer_supervisor.endpoint.http import SERVER

REQUEST_SECONDS: Final = 30.0
"""From a connection's begin, or from a later request's first byte, to the end of its header."""
MAX_CONNECTIONS: Final = 1024
_MAX_HEADER: Final = 64 * 1024
_FRESH_SECONDS: Final = 1.0
"""How long a connection that has said nothing is not taken for idle: it may only not have been read yet."""
_REFUSED_SECONDS: Final = 1.0
_MOST_REFUSED: Final = 256
_QUIET_SECONDS: Final = 60.0

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_log: Final = logging.getLogger(__name__)


class Served(web.Server):
    """The server of one listening socket; ``most`` connections (None: 1024, or half of the descriptors that the
    process may have) with ``seconds`` for each request's header."""

    def __init__(self, handler: Handler, *, most: int | None = None, seconds: float = REQUEST_SECONDS) -> None:
        super().__init__(
            cast(Any, handler),
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            max_field_size=_MAX_HEADER,
            max_line_size=_MAX_HEADER,
        )
        self.seconds = seconds
        self.most = most or min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self.open: dict[Connection, None] = {}
        self.refused = 0
        self._told = -_QUIET_SECONDS

    def __call__(self) -> "Connection":
        """The protocol of a new connection."""
        return Connection(self, loop=self._loop, **self._kwargs)

    def has_room(self) -> bool:
        """Whether one more may be served; where all places are taken, the oldest that is idle gives way."""
        if len(self.open) < self.most:
            return True
        now = self._loop.time()
        idle = [connection for connection in self.open if connection.idle(now)]
        if idle:
            min(idle, key=lambda connection: connection.asked).leave()
            return True
        if now - self._told > _QUIET_SECONDS:
            self._told = now
            _log.warning("%d connections are open: more are refused until some have closed", len(self.open))
        return False


class Connection(web.RequestHandler):
    """One HTTP connection.

    Whether it is idle, only aiohttp's private marks say (``_waiter``, ``_messages``, ``_request_in_progress``); what is
    made of them is held by ``tests/integration/test_http_connections.py``, so that another aiohttp cannot change it
    unseen.
    """

    __slots__ = ("_half", "_overdue", "_refused", "_served", "_since", "asked")

    def __init__(self, served: Served, **kwargs: Any) -> None:
        super().__init__(served, **kwargs)
        self._served = served
        self._overdue: asyncio.TimerHandle | None = None
        self._half = self._refused = False
        self._since = 0.0
        self.asked = False
        """Whether it has ever brought a whole request."""

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It must say what it wants in time; one for which there is no room is told so."""
        super().connection_made(transport)
        self._since = self._loop.time()
        if self._served.has_room():
            self._served.open[self] = None
            self._overdue = self._loop.call_later(self._served.seconds, self._too_slow)
            return
        self._refused = True
        self._served.refused += 1
        if self._served.refused > _MOST_REFUSED:
            self.force_close()
        else:  # it is told once its request has come: what is not read when it is closed would destroy the answer
            self._overdue = self._loop.call_later(_REFUSED_SECONDS, self.force_close)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Its place is free."""
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        self._served.open.pop(self, None)
        if self._refused:
            self._refused = False
            self._served.refused -= 1
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """As aiohttp's; then whether a request is under way, or half a header."""
        if self._refused:
            self._leave_with(503, "busy", f"{self._served.most} connections are open already: close some, or try later")
            return
        super().data_received(data)
        waiter = self._waiter
        if self._messages or self._request_in_progress:
            self.asked = True
            self._half = False
            if self._overdue is not None:
                self._overdue.cancel()
                self._overdue = None
        elif waiter is not None and not waiter.done():
            self._half = True
            if self._overdue is None:
                self._overdue = self._loop.call_later(self._served.seconds, self._too_slow)

    # ---- what ends it

    def idle(self, now: float) -> bool:
        """Whether nothing would be lost with it: it has said nothing for a while, or waits for a next request."""
        waiter = self._waiter
        waits = waiter is not None and not waiter.done() and not self._messages
        return waits and (self.asked or now - self._since > _FRESH_SECONDS)

    def leave(self) -> None:
        """It gives way to another."""
        self._served.open.pop(self, None)
        self.force_close()

    def _too_slow(self) -> None:
        self._overdue = None
        if self._messages or self._request_in_progress or self.transport is None:
            return
        if self._half:
            message = f"the request's header was not complete within {self._served.seconds:g} s"
            self._leave_with(408, "request_too_slow", message)
        else:
            self.force_close()

    def _leave_with(self, status: int, code: str, message: str) -> None:
        transport = self.transport
        if transport is not None:
            body = msgspec.json.encode(ErrorBody(error=ErrorDetail(code=code, message=message)))
            head = (
                f"HTTP/1.1 {status} {'Request Timeout' if status == 408 else 'Service Unavailable'}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            transport.write(head.encode() + body)
        self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is no HTTP is the other side's fault: one line, and never what was sent, which may hold a token."""
        if not isinstance(exc, http_exceptions.HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        _log.debug("a connection that sent no proper HTTP was closed: %s", type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun")
        text = f"This is no proper HTTP/1.1 request (Coffer speaks plain HTTP here, no TLS): {message}\n"
        response = web.Response(status=status, text=text, headers={"Server": SERVER})
        response.force_close()
        return response
