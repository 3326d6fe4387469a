"""What all exchanges of one HTTP connection share: the session's state, and the way in for messages.

Owns reading bodies and event streams within the limits, the pauses, the figures, and the words of failures. Never
decides what to do about a status, never opens an exchange.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from coffer_common import errors, jsonrpc, protocol
from coffer_common.jsonrpc import Envelope
from coffer_worker.core import http_rules, splice
from coffer_worker.core.framing import TooLong
from coffer_worker.core.headers import Mirrors
from coffer_worker.core.sse import Event, Events
from coffer_worker.log import UpstreamLog
from coffer_worker.upstream.http_client import Client, Response, Trouble
from coffer_worker.upstream.pipe import Problem, Receiver

ERROR_BODY_BYTES: Final = 64 * 1024
_ERROR_BODY_SECONDS: Final = 10.0


class Wire:
    """``session`` and ``revision`` are empty until the handshake has brought them; ``post_url`` is None unless the old
    transport named another one."""

    def __init__(
        self,
        server: str,
        client: Client,
        receiver: Receiver,
        *,
        log: UpstreamLog,
        line_bytes: int,
        mirrors: Mapping[str, Mirrors],
    ) -> None:
        self.server = server
        self.client = client
        self.receiver = receiver
        self.log = log
        self.limit = line_bytes
        self.mirrors = mirrors
        self.session = ""
        self.revision = ""
        self.post_url: str | None = None
        self.established = False
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.bytes_in = 0
        self.bytes_out = 0

    def stream_headers(self, last_id: bytes) -> dict[str, str]:
        """The headers of a GET for events, or of a DELETE."""
        found = {"accept": http_rules.EVENTS, "cache-control": "no-store"}
        if self.session:
            found[protocol.HEADER_SESSION] = self.session
        if self.revision:
            found[protocol.HEADER_VERSION] = self.revision
        if last_id and last_id.isascii():
            found["last-event-id"] = last_id.decode()
        return found

    # ---- reading

    async def chunks(self, response: Response) -> AsyncIterator[bytes]:
        """The pieces of a body, taken in only while nobody asked to wait. Raises Trouble."""
        async for chunk in self.client.chunks(response):
            self.bytes_in += len(chunk)
            await self.flowing.wait()
            yield chunk

    async def body(self, response: Response) -> bytes | TooLong:
        """A whole body, within the limit of a message. Raises Trouble."""
        held = bytearray()
        async for chunk in self.chunks(response):
            held += chunk
            if len(held) > self.limit:
                return TooLong(None, len(held), final=True)
        return bytes(held)

    async def short_body(self, response: Response) -> bytes:
        """The beginning of a body that only has to be understood, not passed on; empty where it does not come."""
        held = bytearray()
        try:
            async with asyncio.timeout(_ERROR_BODY_SECONDS):
                async for chunk in self.chunks(response):
                    held += chunk
                    if len(held) > ERROR_BODY_BYTES:
                        break
        except (Trouble, TimeoutError):
            pass
        return bytes(held[:ERROR_BODY_BYTES])

    async def events(self, response: Response, parser: Events) -> AsyncIterator[Event | TooLong]:
        """The events of a stream, empty ones left out. Raises Trouble."""
        parser.restart()
        async for chunk in self.chunks(response):
            for found in parser.feed(chunk):
                if isinstance(found, TooLong) or found.data:
                    yield found

    # ---- messages

    def deliver(self, data: bytes, receiver: Receiver, related: int | str | None) -> Envelope | None:
        """Hand on one message (or a batch); what it was, None for a batch or for what is no message."""
        # What is passed on may travel over a line transport; JSON over HTTP may have line breaks between tokens.
        data = jsonrpc.one_line(data)
        envelope = splice.message(data)
        try:
            if envelope is None:
                receiver.line(data)
                return None
            if related is not None and envelope.raw_id == b"null" and envelope.kind == "response":
                # An error for a request that was refused before its id was read: it can only be this one.
                data = jsonrpc.error_response(_raw(related), bytes(envelope.error))
                envelope = splice.message(data) or envelope
            receiver.message(envelope, data, related)
        except Exception as error:
            # A fault of ours in one message must not lose the others.
            self.log.note(f"internal error in reading a message: {type(error).__name__}: {error}")
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a message was not handled", "exception": error}
            )
        return envelope

    # ---- words

    def lost(self, text: str) -> Problem:
        """For a request that went out and got no answer."""
        return Problem(
            errors.BROKEN,
            f"Upstream {self.server!r} gave no answer: {text}. Whether it did what was asked is not known, so it was "
            "not asked again",
        )

    def unreachable(self, text: str) -> Problem:
        """For a request that never went out."""
        sent = "; nothing was sent" if self.established else ""
        return Problem(errors.UNREACHABLE, f"Upstream {self.server!r} cannot be reached: {text}{sent}")

    def unusable(self, status: int, body: bytes, what: str) -> Problem:
        """For an answer that is none."""
        shown = self._shown(body)
        text = f"Upstream {self.server!r} answered HTTP {status} with {what}" + (f": {shown}" if shown else "")
        return Problem(errors.BAD_ANSWER, text, status=status, data={"status": status, "excerpt": shown})

    def refused(self, meaning: http_rules.Meaning, response: Response, body: bytes) -> Problem:
        """For a status that is no answer."""
        status, who, at = response.status_code, f"Upstream {self.server!r}", self.client.place.shown
        shown = self._shown(body)
        said = f": {shown}" if shown else ""
        data: dict[str, Any] = {"status": status, "excerpt": shown}
        wait = http_rules.retry_after(response.headers.get("retry-after"), time.time())
        if meaning == "login":
            auth = self.client.auth
            why = f"; {self.log.mask(auth.why)}" if auth is not None and auth.why else ""
            log_in = "" if auth is None else f"Log in with: coffer mcp login {self.server}. Or "
            store = "Store" if auth is None else "store"
            text = (
                f"{who} wants a login (HTTP 401 from {at}{why}). {log_in}{store} its token with: "
                "coffer credential set REF --stdin, "
                f"then: coffer mcp update {self.server} --header 'Authorization=Bearer ${{REF}}'"
            )
            return Problem(errors.NEEDS_LOGIN, text, status=status, data={"status": status})
        if meaning == "forbidden":
            auth, challenge = self.client.auth, response.headers.get("www-authenticate", "")
            if status == 403 and auth is not None and auth.wants_more(challenge):
                said += f". It wants further permissions: coffer mcp login {self.server}"
            text = f"{who} does not allow this with the credential that it was given (HTTP {status}){said}"
            return Problem(errors.FORBIDDEN, text, status=status, data=data)
        if meaning == "busy":
            after = "" if wait is None else f"; try again in {wait:g} s"
            if wait is not None:
                data["retry_after"] = wait
            text = f"{who} takes no request at the moment (HTTP {status}){said}{after}"
            return Problem(errors.HTTP_BUSY, text, status=status, retry_after=wait, data=data)
        if meaning == "redirect":
            target = http_rules.target_origin(str(response.url), response.headers.get("location"))
            text = (
                f"{who} at {at} redirects to {target} (HTTP {status}). That is not followed, for what is sent was "
                f"meant for {at} alone. If it is the right server: coffer mcp update {self.server} --url URL"
            )
            return Problem(errors.HTTP_STATUS, text, status=status, data={"status": status})
        hint = ". Is its URL right?" if status in (404, 405) and not shown else said
        return Problem(errors.HTTP_STATUS, f"{who} answered HTTP {status}{hint}", status=status, data=data)

    def _shown(self, body: bytes) -> str:
        return self.log.mask(http_rules.excerpt(body))


def _raw(id: int | str) -> bytes:
    return b"%d" % id if isinstance(id, int) else splice.key_bytes(id)
