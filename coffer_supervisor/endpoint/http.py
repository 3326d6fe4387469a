"""A request at an MCP endpoint over HTTP, on its way to its era.

Owns reading and bounding the body, content negotiation, and plain JSON answers. Never looks at params.
Source: MCP 2025-03-26 to 2026-07-28, Transports, Streamable HTTP.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

import msgspec
from aiohttp import StreamReader, web

from coffer_common import errors, jsonrpc
from coffer_common.api import VERSION_HEADER, ErrorBody, ErrorDetail
from coffer_common.version import VERSION
from coffer_supervisor.bodies import PIECE_SECONDS, BodyTooSlow, piece
from coffer_supervisor.core.calls import Failure, Principal, Scope, failure
from coffer_supervisor.core.pieces import Message, Pieces
from coffer_supervisor.endpoint.streams import event, open_stream, write_slices

MAX_BODY: Final = 64 * 1024 * 1024
_NO_HURRY: Final = 2 * 1024 * 1024
SERVER: Final = "coffer"
MANAGED: Final = ("/api/", "/metrics")
"""How the paths begin that belong to the management API."""


class Rejected(Exception):
    """A request that is answered with ``status`` and a JSON-RPC error."""

    def __init__(self, status: int, problem: Failure, raw_id: bytes = b"null") -> None:
        super().__init__(problem.message)
        self.status, self.problem, self.raw_id = status, problem, raw_id


@dataclass(frozen=True, slots=True)
class Entry:
    """One admitted HTTP request: who, where, and which forms of answer it takes."""

    request: web.BaseRequest
    principal: Principal
    scope: Scope
    takes_json: bool
    takes_stream: bool


def rejected(
    status: int, message: str, raw_id: bytes = b"null", reason: errors.Reason = errors.INVALID_REQUEST
) -> Rejected:
    """A refusal of the transport's."""
    return Rejected(status, failure(reason, message, "legacy"), raw_id)


def json_response(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON answer."""
    base = {"Content-Type": "application/json", "Server": SERVER}
    return web.Response(body=body, status=status, headers={**base, **headers} if headers else base)


async def answered(
    entry: Entry, answer: bytes, status: int = 200, headers: dict[str, str] | None = None
) -> web.StreamResponse:
    """An answer in the form that the client takes: JSON, or a stream of this one event. What has a status of its own is
    JSON in any case, for a stream has none."""
    if entry.takes_json or status != 200:
        return json_response(answer, status, headers)
    response = await open_stream(entry.request, headers)
    await response.write(event(answer))
    await response.write_eof()
    return response


def message_response(message: Message, status: int = 200) -> web.StreamResponse:
    """A message as the whole answer."""
    return json_response(message, status) if isinstance(message, bytes) else LargeResponse(message, status)


class LargeResponse(web.StreamResponse):
    """A JSON answer that is written as its client reads it."""

    def __init__(self, message: Pieces, status: int = 200) -> None:
        super().__init__(status=status, headers={"Content-Type": "application/json", "Server": SERVER})
        self.content_length = len(message)
        self._message: Pieces | None = message

    async def write_eof(self, data: bytes = b"") -> None:
        """Write all of it."""
        message, self._message = self._message, None
        if message is not None:
            await write_slices(self, message.slices())
        await super().write_eof(data)


def error_response(
    problem: Failure, status: int, raw_id: bytes = b"null", headers: dict[str, str] | None = None
) -> web.Response:
    """A JSON-RPC error as an answer."""
    return json_response(jsonrpc.error_response(raw_id, problem.error), status, headers)


def refusal(path: str, error: Rejected) -> web.Response:
    """What a request that was stopped at the door is told: on the management API's paths in its own error model."""
    problem = error.problem
    if not path.startswith(MANAGED):
        return error_response(problem, error.status, error.raw_id)
    detail = ErrorDetail(code=problem.reason or "invalid_request", message=problem.message)
    return json_response(msgspec.json.encode(ErrorBody(error=detail)), error.status, {VERSION_HEADER: VERSION})


def accepted() -> web.Response:
    """202, for what has no answer."""
    return web.Response(status=202, headers={"Server": SERVER})


def accepts(header: str | None) -> tuple[bool, bool]:
    """(JSON, event stream): the forms of answer that an Accept header allows; none given allows both."""
    if header is None or not header.strip() or header == "application/json, text/event-stream":
        return True, True
    plain = stream = False
    for part in header.lower().split(","):
        kind, *parameters = [piece.strip() for piece in part.split(";")]
        if any(p.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000") for p in parameters):
            continue
        plain = plain or kind in ("application/json", "application/*", "*/*")
        stream = stream or kind in ("text/event-stream", "text/*", "*/*")
    return plain, stream


async def read_body(request: web.BaseRequest, seconds: float = PIECE_SECONDS) -> bytes:
    """The whole body. Raises Rejected: 413, 415 beyond its bounds or where it is no plain JSON; 408 where nothing
    more of it comes for ``seconds``; 400 where its chunks are none."""
    kind = request.headers.get("Content-Type", "")
    if kind != "application/json" and kind.partition(";")[0].strip().lower() != "application/json":
        raise rejected(415, "Content-Type must be application/json")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise rejected(415, "Content-Encoding is not supported: send the body as it is")
    declared = request.headers.get("Content-Length", "")
    if declared.isdigit() and int(declared) > MAX_BODY:
        raise _too_large()
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    try:
        return await _pieces(request.content, seconds)
    except BodyTooSlow as error:
        raise rejected(408, str(error)) from None
    except web.RequestPayloadError:
        raise rejected(400, "the request's body is not framed as its headers say") from None


async def _pieces(content: StreamReader, seconds: float) -> bytes:
    first = await piece(content, seconds)
    if content.at_eof():
        return first
    chunks, size = [first], len(first)
    while chunk := await piece(content, seconds):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_BODY:
            raise _too_large()
    return b"".join(chunks)


async def parse(body: bytes) -> jsonrpc.Envelope:
    """The envelope of a body. Raises Rejected (400)."""
    try:
        # A large one is no hurry: others are served between the steps of looking it through.
        return jsonrpc.parse(body) if len(body) < _NO_HURRY else await asyncio.to_thread(jsonrpc.parse, body)
    except jsonrpc.Malformed as error:
        raise Rejected(400, malformed(error), error.id) from None


def malformed(error: jsonrpc.Malformed) -> Failure:
    """What a malformed message is answered with."""
    return failure(errors.MALFORMED[error.code], error.message, "legacy")


def is_array(body: bytes) -> bool:
    """Whether a body is a JSON array (a batch)."""
    return body.lstrip(b" \t\r\n")[:1] == b"["


def _too_large() -> Rejected:
    reason = errors.BODY_LIMIT
    message = f"the request is larger than {MAX_BODY // (1024 * 1024)} MiB"
    return Rejected(413, failure(reason, message, "legacy"))
