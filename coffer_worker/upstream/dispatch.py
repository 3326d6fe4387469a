"""A connection of ours behind the SDK's own seam, ``mcp.shared.dispatcher.Dispatcher``.

Owns the translation between raw JSON and the seam's dicts, so that the SDK's ``ClientSession`` runs on our pipes: in
tests it is the oracle for them. Never used for calls that Coffer relays: models and dicts would change their payloads.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskStatus
from mcp.shared.dispatcher import (
    CallOptions,
    OnNotify,
    OnNotifyIntercept,
    OnRequest,
    ProgressFnT,
    run_notify_intercept,
)
from mcp.shared.exceptions import MCPError
from mcp.shared.message import MessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, REQUEST_TIMEOUT, RequestId

from coffer_common import jsonrpc
from coffer_worker.upstream.connection import Connection, Unanswered, UpstreamError, resolve
from coffer_worker.upstream.pipe import Gone

_CONTEXT: Final = TransportContext(kind="stdio", can_send_request=True)


@dataclass(slots=True)
class _Inbound:
    """One message from the upstream, as the SDK's handlers see it."""

    owner: "ConnectionDispatcher"
    request_id: RequestId | None
    transport: TransportContext = _CONTEXT
    can_send_request: bool = True
    message_metadata: MessageMetadata = None
    cancel_requested: anyio.Event = field(default_factory=anyio.Event)

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """A request back to the peer."""
        return await self.owner.send_raw_request(method, params, opts)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """A notification back to the peer."""
        await self.owner.notify(method, params, opts)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """The upstream's requests carry no token here."""


class ConnectionDispatcher:
    """Implements ``Dispatcher`` on one connection. It is the connection's ``Events``; set ``connection`` before use."""

    def __init__(self, new_id: Callable[[], int]) -> None:
        self.connection: Connection | None = None
        self._new_id = new_id
        self._incoming: asyncio.Queue[tuple[str, bytes, bytes] | None] = asyncio.Queue()
        self._progress: dict[int | str, ProgressFnT] = {}
        self._intercept: OnNotifyIntercept | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.chattered: list[bytes] = []
        self.strays: list[bytes] = []

    def attach(self, connection: Connection) -> None:
        """Use that connection from now on."""
        self.connection = connection
        connection.on_request = lambda id, method, params, related: self._incoming.put_nowait((method, params, id))

    # ---- Outbound

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """A request and its raw result. Raises MCPError."""
        options: CallOptions = opts or {}
        connection = self._connected()
        id = options.get("request_id", self._new_id())
        body = dict(params or {})
        if (report := options.get("on_progress")) is not None:
            body["_meta"] = {**(body.get("_meta") or {}), "progressToken": id}
            self._progress[id] = report
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        connection.request(
            id, method, msgspec.json.encode(body) if params is not None or body else b"", resolve, future
        )
        try:
            async with asyncio.timeout(options.get("timeout")):
                result: dict[str, Any] = msgspec.json.decode(await future)
                return result
        except TimeoutError:
            raise MCPError(REQUEST_TIMEOUT, f"Request {method!r} timed out") from None
        except UpstreamError as error:
            raise MCPError(error.code, error.message, msgspec.json.decode(error.raw).get("data")) from None
        except Unanswered as error:
            raise MCPError(CONNECTION_CLOSED, error.problem.message) from None
        finally:
            self._progress.pop(id, None)
            if options.get("cancel_on_abandon", True):
                connection.cancel(id, "abandoned")
            else:
                connection.forget(id)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """A notification."""
        self._connected().notify(method, msgspec.json.encode(dict(params)) if params is not None else b"")

    def _connected(self) -> Connection:
        if self.connection is None or self.connection.gone is not None:
            raise MCPError(CONNECTION_CLOSED, "Connection closed")
        return self.connection

    # ---- the pump

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Hand requests and notifications to the SDK until the connection ends."""
        self._intercept = on_notify_intercept
        async with asyncio.TaskGroup() as group:
            task_status.started()
            while (incoming := await self._incoming.get()) is not None:
                method, params, id = incoming
                body = msgspec.json.decode(params) if params else None
                if id:
                    group.create_task(self._handle(on_request, method, body, id))
                else:
                    group.create_task(_told(on_notify, _Inbound(self, None), method, body))

    async def _handle(self, on_request: OnRequest, method: str, params: Mapping[str, Any] | None, id: bytes) -> None:
        connection = self.connection
        try:
            result = await on_request(_Inbound(self, msgspec.json.decode(id)), method, params)
            message = jsonrpc.response(id, msgspec.json.encode(result))
        except MCPError as error:
            message = jsonrpc.error_response(id, jsonrpc.error(error.code, error.message, error.data))
        except Exception as error:
            message = jsonrpc.error_response(id, jsonrpc.error(INTERNAL_ERROR, str(error)))
        if connection is not None and connection.pipe is not None:
            connection.pipe.send(message)

    # ---- Events

    def notification(self, connection: Connection, method: str, params: bytes) -> None:
        """In wire order: progress to its request, the rest to the SDK's intercept, then to its handler."""
        body = msgspec.json.decode(params) if params else None
        if method == "notifications/progress" and body is not None:
            report = self._progress.get(body.get("progressToken"))
            if report is not None:
                self._keep(report(body["progress"], body.get("total"), body.get("message")))
            return
        if not run_notify_intercept(self._intercept, method, body):
            self._incoming.put_nowait((method, params, b""))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def chatter(self, connection: Connection, line: bytes) -> None:
        """Kept for whoever looks."""
        self.chattered.append(line)

    def stray(self, connection: Connection, id: bytes) -> None:
        """Kept for whoever looks."""
        self.strays.append(id)

    def paused(self, connection: Connection, id: int | str) -> None:
        """The pipe goes on with the stream by itself."""

    def renewed(self, connection: Connection) -> None:
        """The SDK's session does not learn of it."""

    def gone(self, connection: Connection, gone: Gone) -> None:
        """The pump ends."""
        self._incoming.put_nowait(None)


async def _told(on_notify: OnNotify, context: _Inbound, method: str, params: Mapping[str, Any] | None) -> None:
    await on_notify(context, method, params)
