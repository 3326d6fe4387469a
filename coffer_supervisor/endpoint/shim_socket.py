"""The shim's socket: both eras on one connection, one JSON message a line.

Owns framing, the greeting, the bounds of what is unread, and the session of each connection. ``docs/shim-socket.md``
is the authority on the lines. Never starts or stops a daemon.
Source: MCP 2025-11-25 and 2026-07-28, Transports, stdio; Cancellation.
"""

import asyncio
import logging
import os
import secrets
import socket
import struct
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from coffer_common import errors, jsonrpc, shimproto
from coffer_supervisor.core.calls import LOCAL_PRINCIPAL, Principal
from coffer_supervisor.core.pieces import Message, Pieces
from coffer_supervisor.core.session import Session
from coffer_supervisor.daemon import BACKLOG
from coffer_supervisor.endpoint import security
from coffer_supervisor.endpoint.methods import Methods
from coffer_supervisor.endpoint.notices import Notices
from coffer_supervisor.endpoint.shim_face import ShimFace

if TYPE_CHECKING:
    from coffer_supervisor.router import Router

MAX_UNREAD: Final = 256 * 1024 * 1024
"""Bytes waiting for a shim that does not read, beyond which it is left."""
MAX_CONNECTIONS: Final = 1024
HELLO_SECONDS: Final = 30.0
_log: Final = logging.getLogger(__name__)
_HIGH_WATER: Final = 1024 * 1024
_LOCAL: Final = Principal(LOCAL_PRINCIPAL, "local")


def peer_uid(sock: socket.socket) -> int | None:
    """The user at the other end of a unix socket; None where the system does not say."""
    if hasattr(socket, "SO_PEERCRED"):
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", raw)[1])
    return None


def project_of(cwd: str) -> str:
    """The project that a shim's directory stands for; empty for none: a client that is no editor starts it in ``/``."""
    return cwd if cwd.startswith("/") and cwd != "/" and "\0" not in cwd else ""


def own_peer(transport: asyncio.BaseTransport) -> bool:
    """Whether the other end belongs to our own user (the socket's folder is private; this is the second lock)."""
    sock = transport.get_extra_info("socket")
    uid = None if sock is None else peer_uid(sock)
    return uid is None or uid in (os.getuid(), 0)


class ShimServer:
    """All connections of shims. One per endpoint."""

    def __init__(self, router: "Router", methods: Methods, notices: Notices, version: str) -> None:
        self.router, self.methods, self.notices, self.version = router, methods, notices, version
        self.connections: set[ShimConnection] = set()
        self.leaving = ""
        self.hello_seconds = HELLO_SECONDS
        self._server: asyncio.Server | None = None

    async def start(self, sock: socket.socket) -> None:
        """Serves a listening socket, in place of an earlier one; what is connected stays."""
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: ShimConnection(self), sock=sock, backlog=BACKLOG)
        before, self._server = self._server, server
        if before is not None:
            before.close()

    def stop(self, reason: str) -> None:
        """Says goodbye to each shim and closes."""
        self.leaving = reason
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.goodbye(reason)


class ShimConnection(asyncio.Protocol):
    """One shim. Lines are taken as they come; requests run beside each other."""

    def __init__(self, server: ShimServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._searched = 0
        self._skipping = False
        self._face: ShimFace | None = None
        self._overdue: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A shim is there; it speaks first."""
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        if not own_peer(transport):
            transport.abort()
            return
        self._server.connections.add(self)
        if len(self._server.connections) > MAX_CONNECTIONS:
            self._refuse("busy", f"{MAX_CONNECTIONS} shims are connected already")
        else:
            self._overdue = asyncio.get_running_loop().call_later(self._server.hello_seconds, self._mute)

    def data_received(self, data: bytes) -> None:
        """Cuts lines; one that is longer than the limit is answered with an error and skipped."""
        buffer = self._buffer
        if not buffer and not self._skipping and data.find(b"\n") == len(data) - 1:  # the usual: one whole line
            self._line(data[:-1])
            return
        buffer += data
        start = 0
        while (end := buffer.find(b"\n", max(start, self._searched))) >= 0:
            with memoryview(buffer) as whole:
                line = bytes(whole[start:end])
            start = end + 1
            self._searched = start
            if self._skipping:
                self._skipping = False
            else:
                self._line(line)
        if start:
            del buffer[:start]
        self._searched = len(buffer)
        limit = shimproto.MAX_HELLO if self._face is None else shimproto.MAX_LINE
        if self._searched > limit:
            self._too_long(limit)

    def eof_received(self) -> bool:
        """The shim has gone (it keeps its side open while it still wants answers)."""
        return False

    def pause_writing(self) -> None:
        """The shim does not read: take nothing more from it until it does."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """It reads again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """The session ends with its connection: its calls are cancelled."""
        self._server.connections.discard(self)
        self._transport = None
        self._buffer = bytearray()
        if self._overdue is not None:
            self._overdue.cancel()
        for task in list(self._tasks):
            task.cancel()
        if self._face is not None:
            self._face.close("the client has gone")

    # ---- what the server and the face use

    def send(self, message: Message) -> None:
        """One message, one line."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if isinstance(message, Pieces):
            transport.writelines((*message.lines(), b"\n"))
        elif len(message) < 65536:
            transport.write(jsonrpc.one_line(message) + b"\n")
        else:  # a large one is not copied once more
            transport.writelines((jsonrpc.one_line(message), b"\n"))
        if transport.get_write_buffer_size() > MAX_UNREAD:
            _log.warning("a shim does not read: it is left with %d bytes unread", transport.get_write_buffer_size())
            transport.abort()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs beside the connection, and ends with it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def goodbye(self, reason: str) -> None:
        """The daemon leaves: the reason, then the end. Listens end without a result: the shim carries them over."""
        if self._transport is not None:
            self._transport.write(shimproto.encode(shimproto.Goodbye(reason)))
            self._transport.close()

    # ---- lines

    def _line(self, line: bytes) -> None:
        line = line.removeprefix(jsonrpc.BOM).strip(b" \t\r")
        if not line:
            return
        if self._face is None:
            self._greet(line)
        else:
            self._face.received(line)

    def _greet(self, line: bytes) -> None:
        try:
            hello = shimproto.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            hello = None
        if not isinstance(hello, shimproto.Hello):
            self._refuse("protocol", "the first line must be a hello")
            return
        scope = security.scope_of(hello.endpoint)
        if hello.version != shimproto.SHIM_PROTOCOL:
            message = f"this daemon speaks version {shimproto.SHIM_PROTOCOL}, the shim {hello.version}: "
            self._refuse("version", message + "restart the daemon with `coffer daemon restart`")
        elif scope is None:
            self._refuse("endpoint", f"there is no endpoint {hello.endpoint[:128]!r}")
        elif not self._server.router.has_group(scope):
            message = f"there is no group named {scope.group}, or it is disabled: see coffer group list"
            self._refuse("endpoint", message)
        elif self._server.leaving:
            self._refuse("stopping", "the daemon is stopping")
        else:
            session = Session("shim-" + secrets.token_urlsafe(18), _LOCAL, scope, "shim", time.monotonic())
            session.cwd = project_of(hello.cwd)
            self._face = ShimFace(self._server.router, self._server.methods, self._server.notices, session, self)
            self.send(shimproto.encode(shimproto.Welcome(shimproto.SHIM_PROTOCOL, self._server.version))[:-1])

    def _mute(self) -> None:
        if self._face is None:
            self._refuse("protocol", f"no hello came within {self._server.hello_seconds:g} s")

    def _refuse(self, reason: shimproto.Refusal, message: str) -> None:
        if self._transport is not None:
            self._transport.write(shimproto.encode(shimproto.Refused(reason, message)))
            self._transport.close()

    def _too_long(self, limit: int) -> None:
        self._buffer.clear()
        self._searched = 0
        if self._face is None:
            self._refuse("protocol", f"the first line is longer than {limit} bytes")
            return
        if not self._skipping:
            message = f"a message is longer than {limit // (1024 * 1024)} MiB"
            self.send(jsonrpc.error_response(b"null", errors.error_object(errors.INVALID_REQUEST, message)))
        self._skipping = True

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a request failed", exc_info=task.exception())
