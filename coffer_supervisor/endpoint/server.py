"""The endpoint: the listening sockets, the door in front of every handler, and the flat table of routes.

Owns the servers on the TCP port, ``run/api.sock`` and ``run/mcp.sock``, their start and their end. Never logs a
token, nor a path that holds one.
"""

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Final

from aiohttp import web

from coffer_common import errors, protocol, weburl
from coffer_supervisor.core.calls import DAEMON_PRINCIPAL, Failure, Principal, Scope, failure
from coffer_supervisor.core.envelope import era_of
from coffer_supervisor.daemon import BACKLOG
from coffer_supervisor.endpoint import callback, security
from coffer_supervisor.endpoint.http import (
    MANAGED,
    SERVER,
    Entry,
    Rejected,
    accepts,
    error_response,
    is_array,
    parse,
    read_body,
    refusal,
    rejected,
)
from coffer_supervisor.endpoint.legacy import LegacyHttp
from coffer_supervisor.endpoint.methods import Methods
from coffer_supervisor.endpoint.modern import ModernHttp
from coffer_supervisor.endpoint.notices import Notices
from coffer_supervisor.endpoint.presence import Presence
from coffer_supervisor.endpoint.security import Authenticator
from coffer_supervisor.endpoint.served import Handler, Served
from coffer_supervisor.endpoint.sessions import Sessions
from coffer_supervisor.endpoint.shim_socket import ShimServer, own_peer

if TYPE_CHECKING:
    from coffer_supervisor.router import Router

OPEN_PATH: Final = "/api/v1/daemon/status"
EXPIRE_SECONDS: Final = 30.0
SHUTDOWN_SECONDS: Final = 2.0
_UNSENT_MS: Final = 120_000
_HINT: Final = "send the token as `Authorization: Bearer TOKEN` or `X-Coffer-Token` (see daemon.json)"


_log: Final = logging.getLogger(__name__)


class Endpoint:
    """All of Coffer that clients connect to. ``management`` answers under ``/api/`` and at ``/metrics``."""

    def __init__(self, router: "Router", auth: Authenticator, management: Handler, version: str, port: int) -> None:
        self._auth, self._management, self._port = auth, management, port
        self._router = router
        self.callback: callback.Callback | None = None
        self._presence = Presence()
        self.notices = Notices(router.sees, router.lists.settle)
        self.sessions = Sessions(router, self.notices)
        methods = Methods(router)
        self._legacy = LegacyHttp(router, methods, self.sessions)
        self.sessions.end_calls = self._legacy.end_calls
        self._modern = ModernHttp(router, methods, self.notices)
        self.shims = ShimServer(router, methods, self.notices, version)
        self._servers: list[asyncio.Server] = []
        self._door, self._local = Served(self._from_tcp), Served(self._from_api_socket)
        self._expiry: asyncio.Task[None] | None = None
        router.listeners = self.notices

    async def start(self, tcp: socket.socket, api: socket.socket, mcp: socket.socket) -> None:
        """Serves three listening sockets."""
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # a client that vanished without a word does not hold its session
            tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNSENT_MS)
        loop = asyncio.get_running_loop()
        self._servers = [
            await loop.create_server(self._door, sock=tcp, backlog=BACKLOG),
            await loop.create_unix_server(self._local, sock=api, backlog=BACKLOG),
        ]
        await self.shims.start(mcp)
        self._expiry = asyncio.create_task(self._expire(), name="session expiry")

    async def replace_api(self, sock: socket.socket) -> None:
        """Serves another listening socket in place of ``run/api.sock``'s. What is connected stays."""
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(self._local, sock=sock, backlog=BACKLOG)
        self._servers[1].close()
        self._servers[1] = server

    async def stop(self, reason: str) -> None:
        """Ends streams and sessions, says goodbye to the shims, closes the servers."""
        if self._expiry is not None:
            self._expiry.cancel()
            await asyncio.gather(self._expiry, return_exceptions=True)
        for server in self._servers:
            server.close()
        self._modern.close()
        self.shims.stop(reason)
        self.sessions.close_all("the daemon is stopping")
        await asyncio.sleep(0)
        for served in (self._door, self._local):
            served.pre_shutdown()
            await served.shutdown(SHUTDOWN_SECONDS)
        self.notices.close()

    def cut(self, principal_id: str, reason: str) -> None:
        """A principal may be here no longer: its sessions end, its streams and open requests are cut."""
        self.sessions.close_of(principal_id, reason)
        self._presence.cut(principal_id)
        self._router.close_principal(principal_id, reason)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_SECONDS)
            self.sessions.expire()

    # ---- the door

    async def _from_api_socket(self, request: web.BaseRequest) -> web.StreamResponse:
        transport = request.transport
        if transport is None or not own_peer(transport):
            return error_response(_denied(request, "this socket belongs to another user"), 403)
        return await self._management(request)

    async def _from_tcp(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.rel_url.raw_path
        try:
            response = await self._admitted(request, path)
        except Rejected as error:
            response = refusal(path, error)
            if error.status in (408, 413, 415) or request.content.exception() is not None:  # its body was not read
                response.force_close()
        except (OSError, asyncio.CancelledError):  # the client is gone
            raise
        except Exception:
            if request.writer.output_size:
                raise
            _log.exception("a request failed")
            problem = failure(errors.INTERNAL, "Coffer failed to answer: see logs/daemon.log", "legacy")
            response = error_response(problem, 500)
        return response

    async def _admitted(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        headers = request.headers
        if len(headers.getall("Host", ())) != 1 or not security.host_allowed(headers.get("Host"), self._port):
            raise Rejected(403, _denied(request, "the Host header must name this machine's loopback and Coffer's port"))
        if path == weburl.CALLBACK_PATH and self.callback is not None:
            return await callback.answer(request, self.callback)
        if not security.origin_allowed(headers.get("Origin")):
            raise Rejected(403, _denied(request, "the Origin header must be absent or a page of this machine"))
        if path == OPEN_PATH:
            return await self._management(request)
        token, path = security.split_key(path)
        principal = (
            self._auth.principal(token, in_path=True) if token else self._auth.principal(security.presented(headers))
        )
        if principal is None:
            raise Rejected(401, _denied(request, f"a valid token is needed: {_HINT}"))
        if path.startswith(MANAGED) and not token:
            if principal.id != DAEMON_PRINCIPAL:
                raise Rejected(403, _denied(request, "the management API needs the daemon's own token"))
            return await self._management(request)
        scope = security.scope_of(path)
        if scope is None:
            known = "/mcp, /servers/NAME/mcp and /groups/NAME/mcp"
            raise rejected(404, f"there is nothing at {security.masked(path)[:200]}: MCP is at {known}")
        if not security.may_enter(principal, scope):
            raise Rejected(403, _denied(request, f"this token's scope does not hold {scope.path}"))
        if not self._router.has_group(scope):
            raise rejected(404, f"there is no group named {scope.group}, or it is disabled: coffer group list")
        with self._presence.of(principal.id):
            try:
                return await self._mcp(request, principal, scope)
            except asyncio.CancelledError:
                # A stream that has begun can only end; the connection closes with it.
                if request.writer.output_size or not self._presence.was_cut():
                    raise
        ended = _denied(request, "this token is no longer valid, or its scope has changed")
        response = error_response(ended, 401)
        response.force_close()
        return response

    # ---- an MCP endpoint

    async def _mcp(self, request: web.BaseRequest, principal: Principal, scope: Scope) -> web.StreamResponse:
        headers = request.headers
        lines = headers.getall("Accept", ())
        plain, stream = accepts(lines[0] if len(lines) == 1 else ",".join(lines))
        entry = Entry(request, principal, scope, plain, stream)
        if request.method == "POST":
            return await self._post(entry)
        modern = headers.get(protocol.HEADER_VERSION) in protocol.MODERN_REVISIONS
        if modern or request.method not in ("GET", "DELETE"):
            allow = "POST" if modern else "GET, POST, DELETE"
            headers_out = {"Allow": allow, "Server": SERVER}
            return web.Response(status=405, headers=headers_out)
        return await self._legacy.get(entry) if request.method == "GET" else self._legacy.delete(entry)

    async def _post(self, entry: Entry) -> web.StreamResponse:
        if not (entry.takes_json or entry.takes_stream):
            raise rejected(406, "answers are application/json or text/event-stream")
        body = await read_body(entry.request)
        version = entry.request.headers.get(protocol.HEADER_VERSION)
        if is_array(body):
            if version in protocol.MODERN_REVISIONS:
                raise rejected(400, "the body must be one request or notification")
            return await self._legacy.post_batch(entry, body)
        envelope = await parse(body)
        if era_of(envelope, version) == "modern":
            return await self._modern.post(entry, envelope)
        return await self._legacy.post(entry, envelope)


def _denied(request: web.BaseRequest, message: str) -> Failure:
    """In the words of the era that the request's header names: its body was not read."""
    modern = request.headers.get(protocol.HEADER_VERSION) in protocol.MODERN_REVISIONS
    return failure(errors.DENIED, message, "modern" if modern else "legacy")
