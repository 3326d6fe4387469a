"""The HTTP pipe: Streamable HTTP of every revision, and HTTP+SSE where an upstream has only that.

Owns the life of one connection over HTTP: the order of the handshake, the session and its renewal, cancellation as the
era asks for it, and its end. Each message has an exchange of its own, so that one that breaks costs one call. Never
decides about restarts or resends a call. Source: MCP, Transports, Streamable HTTP; Lifecycle; Cancellation.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import msgspec

from coffer_common import errors, jsonrpc
from coffer_common.jsonrpc import Envelope
from coffer_worker.core import http_rules, splice
from coffer_worker.core.framing import TooLong
from coffer_worker.core.headers import Mirrors
from coffer_worker.log import UpstreamLog
from coffer_worker.upstream.http_client import Client, Trouble
from coffer_worker.upstream.http_exchange import Exchange, Post, agreed_revision
from coffer_worker.upstream.http_streams import OldStream, listen
from coffer_worker.upstream.http_wire import Wire
from coffer_worker.upstream.pipe import Gone, Problem, Receiver

_INITIALIZED: Final = "notifications/initialized"
_UNGATED: Final = ("server/discover", "initialize", _INITIALIZED)
# A legacy upstream that was told of a cancellation ends the stream itself, or has it ended.
_CANCELLED_SECONDS: Final = 5.0
# What was said last (a cancellation, as a rule) may still go out before the end.
_NOTICE_SECONDS: Final = 1.0
_RENEW_SECONDS: Final = 30.0
_PING_SECONDS: Final = 10.0


class HttpPipe:
    """One connection to an upstream at a URL. ``new_id`` gives the ids of its own requests."""

    forgets = True

    def __init__(
        self,
        server: str,
        client: Client,
        receiver: Receiver,
        *,
        log: UpstreamLog,
        line_bytes: int,
        mirrors: Mapping[str, Mirrors],
        new_id: Callable[[], int],
    ) -> None:
        self._server = server
        self._receiver = receiver
        self._log = log
        self._new_id = new_id
        self._loop = asyncio.get_running_loop()
        self._wire = Wire(server, client, receiver, log=log, line_bytes=line_bytes, mirrors=mirrors)
        self._posts: dict[int | str, Post] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._notices: set[asyncio.Task[Any]] = set()
        self._gate: asyncio.Future[None] | None = None
        self._hello = b""
        self._stream: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[Problem | None] | None = None
        self._doubted = False
        self._ended = False

    @property
    def bytes_in(self) -> int:
        """Bytes of bodies that came."""
        return self._wire.bytes_in

    @property
    def bytes_out(self) -> int:
        """Bytes of messages that went out."""
        return self._wire.bytes_out

    @property
    def pids(self) -> tuple[int, ...]:
        """There is no process of ours behind it."""
        return ()

    def last_output(self) -> tuple[str, ...]:
        """An upstream over HTTP writes nothing beside the protocol."""
        return ()

    def pause(self) -> None:
        """Read no body on."""
        self._wire.flowing.clear()

    def resume(self) -> None:
        """Read on."""
        self._wire.flowing.set()

    # ---- out

    def send(self, message: bytes) -> None:
        """One message in an exchange of its own; never blocks."""
        envelope = splice.message(message)
        if envelope is None or self._ended:
            return
        post = self._post_of(envelope, message)
        if post.method == "initialize":
            self._hello = post.params
        if post.method == _INITIALIZED:
            self._gate = self._gate or self._loop.create_future()
        if post.id is not None:
            self._posts[post.id] = post
        post.task = self._spawn(self._carry(post))
        if post.id is None:
            self._notices.add(post.task)
            post.task.add_done_callback(self._notices.discard)

    @staticmethod
    def _post_of(envelope: Envelope, message: bytes) -> Post:
        method = envelope.method if isinstance(envelope.method, str) else ""
        params = bytes(envelope.params) or b"{}"
        id = _own_id(envelope.raw_id) if method and envelope.id else None
        return Post(message, method, params, id, modern=http_rules.modern_revision(params) is not None)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.note(f"internal error: {type(error).__name__}")
            self._loop.call_exception_handler({"message": "an HTTP exchange failed", "exception": error, "task": task})

    async def _carry(self, post: Post) -> None:
        """The whole of one exchange: its turn, the exchange itself, what follows from the handshake."""
        try:
            if post.method not in _UNGATED:
                await self._turn()
            await Exchange(self._wire, post, self, self._receiver).run()
        except Exception as error:
            if post.id is not None:
                text = f"Coffer failed in reading the answer of upstream {self._server!r}: {type(error).__name__}"
                self._receiver.failed(post.id, Problem(errors.INTERNAL, text))
            raise
        finally:
            if post.id is not None and self._posts.get(post.id) is post:
                del self._posts[post.id]
            if post.method == _INITIALIZED:
                self._begin()

    async def _turn(self) -> None:
        """Wait for the handshake, or for a new session; look first whether a doubtful one is still there."""
        while self._gate is not None:
            await asyncio.shield(self._gate)
        if self._doubted and self._wire.session:
            self._doubted = False
            await self._check()

    def _open_gate(self) -> None:
        gate, self._gate = self._gate, None
        if gate is not None and not gate.done():
            gate.set_result(None)

    def _begin(self) -> None:
        """The handshake of a legacy connection is done: calls may follow, and notifications may come."""
        self._wire.established = True
        self._open_gate()
        self._listen()

    def _listen(self) -> None:
        if self._wire.post_url is None and not self._ended:
            if self._stream is not None:
                self._stream.cancel()
            self._stream = self._spawn(listen(self._wire, self))

    # ---- cancellation

    def cancel(self, id: int | str, reason: str) -> None:
        """Close the response stream where the era is modern, else ``notifications/cancelled``."""
        post = self._posts.get(id)
        if post is not None and post.task is not None:
            if post.modern or not post.begun:
                post.task.cancel()
                return
            self._loop.call_later(_CANCELLED_SECONDS, post.task.cancel)
        elif self._wire.post_url is None:
            return  # its exchange is over
        members = b'{"requestId":' + msgspec.json.encode(id)
        if reason:
            members += b',"reason":' + msgspec.json.encode(reason)
        self.send(jsonrpc.notification("notifications/cancelled", members + b"}"))

    # ---- sessions (Owner)

    def doubt(self) -> None:
        """Before the next request, look whether the session is still known."""
        self._doubted = True

    async def _check(self) -> None:
        session = self._wire.session
        found = await self._own("ping", b"", _PING_SECONDS)
        if isinstance(found, Problem) and found.status and self._wire.session == session:
            failed = await self.renew(session)
            if failed is not None:
                self._log.note(failed.message)

    async def renew(self, lost: str) -> Problem | None:
        """A new session in the place of ``lost``; None where there is one, else why not."""
        if self._ended:
            return Problem(errors.UPSTREAM_STOPPED, f"Upstream {self._server!r} was left")
        if self._wire.post_url is not None:
            problem = Problem(errors.BROKEN, f"Upstream {self._server!r} has forgotten this connection")
            self.end(problem)
            return problem
        if self._wire.session != lost and self._renewing is None:
            return None
        if self._renewing is None:
            self._renewing = self._spawn(self._renew())
        return await asyncio.shield(self._renewing)

    async def _renew(self) -> Problem | None:
        self._gate = self._gate or self._loop.create_future()
        self._wire.session, revision = "", self._wire.revision
        self._log.note("the upstream has forgotten the session: a new one is begun")
        try:
            found = await self._own("initialize", self._hello, _RENEW_SECONDS)
            if isinstance(found, bytes) and agreed_revision(found) != revision:
                text = f"Upstream {self._server!r} had forgotten the session, and did not begin another like it"
                found = Problem(errors.SESSION_LOST, text)
            if isinstance(found, Problem):
                self.end(found)
                return found
            post = Post(jsonrpc.notification(_INITIALIZED), _INITIALIZED, b"{}", None, modern=False)
            await Exchange(self._wire, post, self, self._receiver).run()
        finally:
            self._renewing = None
            self._open_gate()
        self._listen()
        self._receiver.renewed()
        return None

    async def _own(self, method: str, params: bytes, seconds: float) -> bytes | Problem:
        """A request of the pipe's own, which its receiver never sees: the raw result (an error counts as one for
        ``ping``), or why there is none."""
        id = self._new_id()
        own = _Own(self._receiver, id, self._loop.create_future())
        message = jsonrpc.request(b"%d" % id, method, params)
        post = Post(message, method, params or b"{}", id, modern=False)
        task = self._spawn(Exchange(self._wire, post, _Strict(self), own).run())
        try:
            async with asyncio.timeout(seconds):
                return await own.answer
        except TimeoutError:
            return self._wire.lost(f"no answer to {method} within {seconds:g} s")
        finally:
            task.cancel()

    async def old_transport(self) -> bool:
        """Whether there is an event stream that names an endpoint: then all goes over that."""
        if self._wire.post_url is not None or self._wire.established:
            return False
        stream = OldStream(self._wire, self)
        task = self._spawn(stream.run())
        endpoint = await stream.endpoint()
        if endpoint is None:
            task.cancel()
            return False
        self._wire.post_url = endpoint
        self._stream = task
        return True

    # ---- the end

    def end(self, problem: Problem) -> None:
        """Nothing more can be had here. What was sent already may have been executed, whatever ended the connection."""
        if self._ended:
            return
        for post in list(self._posts.values()):
            if post.id is not None and post.begun:
                self._receiver.failed(post.id, self._wire.lost(f"the connection was given up ({problem.message})"))
        answers_elsewhere = self._wire.post_url is not None
        self._finish(Gone(problem.message, reason=errors.BROKEN if answers_elsewhere else problem.reason))

    def _finish(self, gone: Gone) -> None:
        if self._ended:
            return
        self._ended = True
        self._open_gate()
        current = asyncio.current_task()
        for task in list(self._tasks):
            if task is not current:
                task.cancel()
        self._receiver.closed(gone)

    async def close(self, grace: float, reason: str) -> None:
        """Leave: end the session, where there is one, and all exchanges."""
        if self._notices and not self._ended:
            await asyncio.wait(self._notices, timeout=min(grace / 2, _NOTICE_SECONDS))
        session, ended = self._wire.session, self._ended
        self._finish(Gone(f"Upstream {self._server!r} was left: {reason}", deliberate=True))
        if session and not ended and self._wire.post_url is None:
            try:
                async with asyncio.timeout(grace):
                    headers = self._wire.stream_headers(b"")
                    async with self._wire.client.exchange("DELETE", headers):
                        pass
            except (Trouble, TimeoutError):
                self._log.note("the session could not be ended in good order")
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Strict:
    """The owner of the pipe's own requests: nothing follows from what becomes of them but what the pipe decides."""

    def __init__(self, pipe: HttpPipe) -> None:
        self._pipe = pipe

    async def renew(self, lost: str) -> Problem | None:
        """It is being looked into already."""
        return Problem(errors.SESSION_LOST, "the session is lost")

    def doubt(self) -> None:
        """It is being looked into already."""

    def end(self, problem: Problem) -> None:
        """Whoever asked decides."""

    async def old_transport(self) -> bool:
        """A connection does not change its transport."""
        return False


class _Own:
    """Hears the answer to one request of the pipe's own; all else goes where it always goes."""

    def __init__(self, receiver: Receiver, id: int, answer: "asyncio.Future[bytes | Problem]") -> None:
        self._receiver = receiver
        self._id = id
        self.answer = answer

    def _settle(self, found: bytes | Problem) -> None:
        if not self.answer.done():
            self.answer.set_result(found)

    def message(self, envelope: Envelope, raw: bytes, related: int | str | None = None) -> None:
        """The answer, or something else on its stream."""
        if envelope.method is msgspec.UNSET and envelope.raw_id == b"%d" % self._id:
            self._settle(bytes(envelope.result) or bytes(envelope.error))
        else:
            self._receiver.message(envelope, raw, None)

    def failed(self, id: int | str, problem: Problem) -> None:
        """There will be none."""
        self._settle(problem)

    def waits_for(self, id: int | str) -> bool:
        """Whether it is still to come."""
        return not self.answer.done()

    def line(self, line: bytes) -> None:
        """No message."""
        self._receiver.line(line)

    def too_long(self, found: TooLong) -> None:
        """As good as none."""
        self._settle(Problem(errors.LINE_LIMIT, "the answer is over the limit line_bytes"))

    def paused(self, id: int | str) -> None:
        """Nobody else waits on its stream."""

    def renewed(self) -> None:
        """Not told to a request."""

    def closed(self, gone: Gone) -> None:
        """Not told to a request."""


def _own_id(raw: bytes) -> int | str | None:
    return int(raw) if raw.lstrip(b"-").isdigit() else splice.text(raw)
