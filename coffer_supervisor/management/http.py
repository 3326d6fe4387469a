"""The management API over aiohttp's low-level requests: routing, bodies in, JSON out, errors in one model.

Owns the HTTP side. Never decides anything about a resource: that is the handlers'. Host, Origin and token are
checked by the endpoint before a request comes here.
"""

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final, cast, get_args

import msgspec
from aiohttp import web

from coffer_common.api import ACTOR_HEADER, PATH_HEADER, VERSION_HEADER, Actor, ErrorBody, ErrorDetail
from coffer_common.version import VERSION
from coffer_supervisor.bodies import BodyTooSlow, piece
from coffer_supervisor.management.errors import ApiError, from_store
from coffer_supervisor.management.request import Document, Management, Request, Stream
from coffer_supervisor.management.routes import ROUTES, Route
from coffer_supervisor.store.errors import StoreError

_ACTORS: Final = frozenset(get_args(Actor)) - {"system"}
_MAX_PATH: Final = 32_768
_HEADERS: Final = {VERSION_HEADER: VERSION, "Cache-Control": "no-store"}
_log: Final = logging.getLogger("coffer.management")


def handler(management: Management) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    """What the endpoint calls for ``/metrics`` and every path under ``/api/``. It answers every request, and never
    raises but for a cancelled one."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await _answer(management, request)
        except ApiError as refusal:
            return _refusal(refusal)
        except StoreError as trouble:
            return _refusal(from_store(trouble))
        except (ConnectionError, web.RequestPayloadError):
            return _refusal(ApiError(HTTPStatus.BAD_REQUEST, "broken_body", "the request's body did not arrive"))
        except BodyTooSlow as slow:
            response = _refusal(ApiError(HTTPStatus.REQUEST_TIMEOUT, "body_too_slow", str(slow)))
            response.force_close()
            return response
        except Exception:
            _log.exception("%s %s failed", request.method, request.path)
            message, hint = "the daemon hit a fault of its own", f"See {management.home.daemon_log} for the trace."
            return _refusal(ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", message, hint))

    return handle


async def _answer(management: Management, request: web.BaseRequest) -> web.StreamResponse:
    route, params = match(request.method, request.path)
    actor = request.headers.get(ACTOR_HEADER, "api")
    answer = await route.handler(
        Request(
            management=management,
            params=params,
            query=request.rel_url.query,
            actor=cast(Actor, actor) if actor in _ACTORS else "api",
            body=await _body(request, route.body_limit),
            caller_path=request.headers.get(PATH_HEADER, "")[:_MAX_PATH],
        )
    )
    if isinstance(answer, Stream):
        return await _stream(request, answer)
    if isinstance(answer, Document):
        return web.Response(body=answer.body, headers={**_HEADERS, "Content-Type": answer.media_type})
    status, shape = answer if isinstance(answer, tuple) else (HTTPStatus.OK, answer)
    return _json(status, shape)


async def _stream(request: web.BaseRequest, stream: Stream) -> web.StreamResponse:
    """Piece by piece, at the pace at which the client takes them."""
    response = web.StreamResponse(headers={**_HEADERS, "Content-Type": stream.media_type})
    try:
        await response.prepare(request)
        async for piece in stream.pieces:
            await response.write(piece)
        await response.write_eof()
    except (ConnectionError, web.RequestPayloadError):
        return response  # the client has left
    finally:
        await stream.pieces.aclose()
    return response


def match(method: str, path: str) -> tuple[Route, dict[str, str]]:
    """The route for a request and the named parts of its path. Raises ApiError: 404, or 405 for a known path."""
    allowed: list[str] = []
    for route in ROUTES:
        found = route.pattern.fullmatch(path)
        if found is None:
            continue
        if route.method == method:
            return route, found.groupdict()
        allowed.append(route.method)
    if allowed:
        message = f"{path} does not take {method}"
        raise ApiError(HTTPStatus.METHOD_NOT_ALLOWED, "method_not_allowed", message, f"It takes {', '.join(allowed)}.")
    raise ApiError(HTTPStatus.NOT_FOUND, "unknown_path", f"the management API has no path {path}")


async def _body(request: web.BaseRequest, limit: int) -> bytes:
    whole = bytearray()
    while chunk := await piece(request.content):
        whole += chunk
        if len(whole) > limit:
            message = f"the request's body is larger than {limit} bytes"
            raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large", message)
    return bytes(whole)


def _json(status: HTTPStatus, shape: msgspec.Struct) -> web.Response:
    body = msgspec.json.encode(shape)
    return web.Response(status=status, body=body, content_type="application/json", headers=_HEADERS)


def _refusal(error: ApiError) -> web.Response:
    detail = ErrorDetail(code=error.code, message=error.message, hint=error.hint)
    return _json(error.status, ErrorBody(error=detail))
