"""The sockets to one upstream: how many there are, which is used next, when an idle one is closed.

Owns a pool for a single origin, behind httpx2's own seam for transports. The library's pool looks at every idle socket
for every request; with one origin it is enough to take the one that was used last. Never knows what is sent.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator

import httpcore2
import httpx2

SocketOption = tuple[int, int, int]


class OneOrigin(httpx2.AsyncBaseTransport):
    """At most ``most`` sockets, each closed after ``idle_seconds`` without use. Raises httpx2's errors."""

    def __init__(
        self,
        url: httpx2.URL,
        trust: ssl.SSLContext | None,
        *,
        most: int,
        idle_seconds: float,
        options: list[SocketOption],
    ) -> None:
        self._origin = httpcore2.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
        ).origin
        self._trust = trust
        self._idle_seconds = idle_seconds
        self._options = options
        self._room = asyncio.Semaphore(most)
        self._free: list[httpcore2.AsyncHTTPConnection] = []
        self._used: set[httpcore2.AsyncHTTPConnection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._closed = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """One exchange, on a socket of its own until the response is closed."""
        url = request.url
        target = httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        made = httpcore2.Request(
            request.method,
            target,
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        await self._room.acquire()
        connection: httpcore2.AsyncHTTPConnection | None = None
        try:
            with _errors():
                connection = await self._take()
                self._used.add(connection)
                response = await connection.handle_async_request(made)
        except BaseException:
            await self.give_back(connection)
            raise
        return httpx2.Response(
            response.status,
            headers=response.headers,
            stream=_Body(self, connection, response),
            extensions=response.extensions,
        )

    async def _take(self) -> httpcore2.AsyncHTTPConnection:
        while self._free:
            connection = self._free.pop()
            if connection.is_idle() and not connection.has_expired():
                return connection
            await connection.aclose()
        return httpcore2.AsyncHTTPConnection(
            self._origin,
            ssl_context=self._trust,
            keepalive_expiry=self._idle_seconds,
            socket_options=self._options,
        )

    async def give_back(self, connection: httpcore2.AsyncHTTPConnection | None) -> None:
        """The exchange is over: keep the socket for the next one, if it is still good."""
        self._room.release()
        if connection is None:
            return
        self._used.discard(connection)
        if connection.is_idle() and not self._closed:
            self._free.append(connection)
            self._arm()
        else:
            await connection.aclose()

    # ---- idle sockets

    def _arm(self) -> None:
        if self._sweep is None and self._free:
            self._sweep = asyncio.get_running_loop().call_later(self._idle_seconds, self._begin_sweep)

    def _begin_sweep(self) -> None:
        self._sweep = None
        self._sweeping = asyncio.get_running_loop().create_task(self._close_expired())

    async def _close_expired(self) -> None:
        expired = [connection for connection in self._free if connection.has_expired()]
        self._free = [connection for connection in self._free if connection not in expired]
        self._arm()
        for connection in expired:
            await connection.aclose()

    async def aclose(self) -> None:
        """Close every socket."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        connections = [*self._free, *self._used]
        self._free.clear()
        for connection in connections:
            with contextlib.suppress(Exception):
                await connection.aclose()


class _Body(httpx2.AsyncByteStream):
    """A response's body; closing it gives the socket back, once."""

    def __init__(
        self, pool: OneOrigin, connection: httpcore2.AsyncHTTPConnection, response: httpcore2.Response
    ) -> None:
        self._pool = pool
        self._connection = connection
        self._response = response
        self._open = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _errors():
            async for chunk in self._response.aiter_stream():
                yield chunk

    async def aclose(self) -> None:
        if not self._open:
            return
        self._open = False
        try:
            with _errors():
                await self._response.aclose()
        finally:
            await self._pool.give_back(self._connection)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """What goes wrong below bears the same names above."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith("httpcore2"):
            raise
        for kind in type(error).__mro__:
            named = getattr(httpx2, kind.__name__, None)
            if isinstance(named, type) and issubclass(named, httpx2.TransportError):
                raise named(str(error)) from error
        raise httpx2.TransportError(str(error)) from error
