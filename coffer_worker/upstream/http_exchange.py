"""One message to an upstream over HTTP, and what comes of it: an answer, a stream of events, a refusal.

Owns one POST to its end: waiting out a refused connection, the answer in either form, and resuming a legacy stream
that broke. Never decides about sessions beyond telling its owner, and never sends a message twice.
Source: MCP, Transports, Streamable HTTP (2025-03-26 to 2026-07-28).
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Final, Protocol

from coffer_common import errors, protocol
from coffer_worker.core import http_rules, splice
from coffer_worker.core.framing import TooLong
from coffer_worker.core.http_rules import Meaning
from coffer_worker.core.sse import Events
from coffer_worker.upstream.http_client import Response, Trouble
from coffer_worker.upstream.http_wire import Wire
from coffer_worker.upstream.pipe import Problem, Receiver

# A server that is being restarted refuses connections for a moment. Nothing is sent meanwhile.
_REFUSED_WAITS: Final = (0.2, 0.4, 0.8, 1.6, 2.0)
_MOST_RESUMES_FAILED: Final = 5
# How long the end of a stream is waited for after the answer.
_REST_SECONDS: Final = 0.2


@dataclass(slots=True, eq=False)
class Post:
    """A message on its way. ``id`` is None for what gets no answer; ``begun``: it may have reached the upstream."""

    message: bytes
    method: str
    params: bytes
    id: int | str | None
    modern: bool
    session: str = ""
    begun: bool = False
    task: "asyncio.Task[None] | None" = None

    def begin(self) -> None:
        """It goes out now."""
        self.begun = True


class Owner(Protocol):
    """The connection that an exchange belongs to."""

    async def renew(self, lost: str) -> Problem | None:
        """That session is unknown to the upstream: have another. None where there is one, else why not."""

    def doubt(self) -> None:
        """The session may be lost, though the upstream did not say so."""

    def end(self, problem: Problem) -> None:
        """Nothing more can be had on this connection."""

    async def old_transport(self) -> bool:
        """Whether the upstream speaks HTTP+SSE, which is used from now on."""


class Exchange:
    """The exchange for one message. What comes of it goes to ``receiver``."""

    def __init__(self, wire: Wire, post: Post, owner: Owner, receiver: Receiver) -> None:
        self._wire = wire
        self._post = post
        self._owner = owner
        self._receiver = receiver

    async def run(self) -> None:
        """Send it, and deal with all that comes."""
        waits = iter(_REFUSED_WAITS if self._wire.established else ())
        while True:
            try:
                await self._once()
                return
            except Trouble as trouble:
                self._post.begun &= not trouble.unsent
                wait = next(waits, None) if trouble.refused else None
                if wait is None:
                    self._failed_below(trouble)
                    return
                await asyncio.sleep(wait)

    async def _once(self) -> None:
        wire, post = self._wire, self._post
        headers = http_rules.posted(post.method, post.params, wire.revision, wire.session, wire.mirrors)
        post.session = wire.session
        wire.bytes_out += len(post.message)
        broken: tuple[str, Events] | None = None
        async with wire.client.exchange("POST", headers, post.message, url=wire.post_url, begun=post.begin) as response:
            if 200 <= response.status_code < 300:
                broken = await self._answered(response)
            else:
                await self._not_answered(response)
        if broken is not None:
            await self._resume(*broken)

    def _failed_below(self, trouble: Trouble) -> None:
        if not trouble.unsent:
            self._fail(self._wire.lost(trouble.text))
            return
        problem = self._wire.unreachable(trouble.text)
        self._fail(problem)
        if self._wire.established:
            self._owner.end(problem)

    def _fail(self, problem: Problem) -> None:
        if self._post.id is not None:
            self._receiver.failed(self._post.id, problem)
        else:
            self._wire.log.note(f"{self._post.method or 'an answer'}: {problem.message}")

    @property
    def _waiting(self) -> bool:
        return self._post.id is not None and self._receiver.waits_for(self._post.id)

    # ---- 2xx

    async def _answered(self, response: Response) -> tuple[str, Events] | None:
        """Take in the answer; what broke and where, if it is a stream that may be resumed."""
        wire, post = self._wire, self._post
        if post.modern:
            wire.established = True
        if post.method == "initialize" and (session := response.headers.get(protocol.HEADER_SESSION)):
            wire.session = session
        streams = http_rules.media_type(response.headers.get("content-type")) == http_rules.EVENTS
        if post.id is None or wire.post_url is not None:
            if not streams:  # else nothing that could end was asked for
                await wire.short_body(response)
            return None
        if streams:
            parser = Events(wire.limit)
            why = await self._read(response, parser)
            return None if why is None else (why, parser)
        body = await wire.body(response)
        if isinstance(body, TooLong):
            self._too_long(body)
        elif not body.strip():
            self._fail(wire.unusable(response.status_code, b"", "an empty body instead of an answer"))
        else:
            self._take_json(response.status_code, body)
        return None

    def _take_json(self, status: int, body: bytes) -> None:
        is_message = splice.message(body) is not None
        if is_message or body.lstrip()[:1] == b"[":
            self._take(body)
        if self._waiting:
            self._fail(self._wire.unusable(status, body, "what is not an answer to the request"))

    def _take(self, data: bytes) -> None:
        envelope = self._wire.deliver(data, self._receiver, self._post.id)
        if self._post.method == "initialize" and envelope is not None and envelope.result:
            self._wire.revision = agreed_revision(bytes(envelope.result))

    def _too_long(self, found: TooLong) -> None:
        own = self._post.id if isinstance(self._post.id, int) else None
        self._receiver.too_long(TooLong(own, found.size, final=own is None))

    async def _read(self, response: Response, parser: Events) -> str | None:
        """Read events until the answer has come (None), or say why it has not."""
        try:
            async with asyncio.timeout(None) as end:
                async for found in self._wire.events(response, parser):
                    if isinstance(found, TooLong):
                        self._too_long(found)
                        return None
                    if found.type == b"message":
                        self._take(found.data)
                    if not self._waiting and end.when() is None:
                        # A stream that is read to its end leaves a socket that can be used again.
                        end.reschedule(asyncio.get_running_loop().time() + _REST_SECONDS)
        except Trouble as trouble:
            return trouble.text if self._waiting else None
        except TimeoutError:
            return None
        if not self._waiting:
            return None
        if self._post.id is not None and parser.last_id and not self._post.modern:
            self._receiver.paused(self._post.id)
        return "its event stream ended before the answer"

    async def _resume(self, why: str, parser: Events) -> None:
        """Go on with a legacy stream where it broke; a modern stream that broke is over."""
        failures = 0
        while self._waiting:
            if self._post.modern or not parser.last_id or failures >= _MOST_RESUMES_FAILED:
                self._fail(self._wire.lost(why))
                return
            await asyncio.sleep(http_rules.reopen_delay(failures, parser.retry))
            headers = self._wire.stream_headers(parser.last_id)
            try:
                async with self._wire.client.exchange("GET", headers) as response:
                    kind = http_rules.media_type(response.headers.get("content-type"))
                    if response.status_code == 200 and kind == http_rules.EVENTS:
                        failures = 0
                        why = await self._read(response, parser) or why
                        continue
                    why = f"its event stream ended, and could not be resumed (HTTP {response.status_code})"
                    failures += 1 if response.status_code >= 500 else _MOST_RESUMES_FAILED
            except Trouble as trouble:
                failures, why = failures + 1, trouble.text

    # ---- other statuses

    async def _not_answered(self, response: Response) -> None:
        wire, post = self._wire, self._post
        body = await wire.short_body(response)
        code, text = _error_of(body)
        meaning = http_rules.meaning(response.status_code, in_session=bool(post.session), code=code, text=text)
        if meaning == "answer" and post.id is not None:
            self._take(body)
            if not self._waiting:
                return
        older = post.method == "initialize" and code is None and http_rules.means_old_transport(response.status_code)
        if older and await self._owner.old_transport():
            await self._once()
            return
        if meaning == "lost session":
            await self._session_lost(wire.refused(meaning, response, body))
            return
        problem = wire.refused(meaning, response, body)
        self._fail(problem)
        self._consequence(meaning, problem)

    def _consequence(self, meaning: Meaning, problem: Problem) -> None:
        if not self._wire.established:
            return
        if meaning == "login":
            self._owner.end(problem)
        elif problem.status >= 500 or meaning == "busy":
            self._owner.doubt()

    async def _session_lost(self, problem: Problem) -> None:
        failed = await self._owner.renew(self._post.session)
        if failed is not None:
            self._fail(replace(failed, status=problem.status))
        elif self._post.id is not None:
            text = f"Upstream {self._wire.server!r} had forgotten the session (HTTP {problem.status})"
            self._receiver.failed(self._post.id, Problem(errors.SESSION_LOST, text, again=True, status=problem.status))


def agreed_revision(result: bytes) -> str:
    """The revision in the result of ``initialize``; empty where there is none."""
    try:
        return splice.text(splice.members(result).get("protocolVersion")) or ""
    except ValueError:
        return ""


def _error_of(body: bytes) -> tuple[int | None, str]:
    """Code and message of a JSON-RPC error; where there is none, the text itself."""
    envelope = splice.message(body.strip())
    if envelope is None or not envelope.error:
        return None, body[:500].decode(errors="replace")
    try:
        found = splice.members(envelope.error)
        return int(bytes(found.get("code", b"0"))), splice.text(found.get("message")) or ""
    except ValueError:
        return 0, ""
