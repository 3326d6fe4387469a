"""``GET /openapi.json``: the management API described by the table of routes and the shapes themselves.

Owns the OpenAPI 3.1 document. Nothing is written twice: paths, shapes and words come from ``routes``, ``queries``,
``coffer_common.api`` and the handlers' docstrings. Source of the form: OpenAPI Specification 3.1.
"""

import functools
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from coffer_common.api import ACTOR_HEADER, LOG_TABLES, Actor, ErrorBody
from coffer_common.frames import CapabilityType
from coffer_common.names import SERVER_NAME_PATTERN
from coffer_common.resources import CONFIG_TYPES, KINDS
from coffer_common.version import VERSION
from coffer_supervisor.management.request import Answer, Document, Request

if TYPE_CHECKING:
    from coffer_supervisor.management.routes import Route

_REFS: Final = "#/components/schemas/{name}"
_NAME: Final = {"type": "string", "minLength": 1}
_PARTS: Final[dict[str, dict[str, Any]]] = {
    "kind": {"type": "string", "enum": list(KINDS)},
    "type": {"type": "string", "enum": list(get_args(CapabilityType))},
    "table": {"type": "string", "enum": list(LOG_TABLES)},
    "id": {"type": "string", "pattern": r"^c-[0-9]{1,18}$"},
    "ref": {"type": "string", "pattern": SERVER_NAME_PATTERN, "maxLength": 32},
}
_ABOUT: Final = (
    "Over TCP with the daemon's token, over the socket `run/api.sock` without. Times are RFC 3339 UTC, durations "
    "seconds, sizes bytes. Every answer outside 2xx is an ErrorBody. The `config` of a resource has the schema of its "
    "kind, listed under `x-config`."
)


async def show(_request: Request) -> Answer:
    """This description of the API: an OpenAPI 3.1 document."""
    return Document("application/json", _encoded())


@functools.cache
def _encoded() -> bytes:
    return msgspec.json.encode(document())


def document() -> dict[str, Any]:
    """The whole document, as plain objects."""
    from coffer_supervisor.management.routes import ROUTES  # the table names this module's handler

    named = [shape for route in ROUTES for shape in (route.takes, route.gives) if isinstance(shape, type)]
    _, schemas = msgspec.json.schema_components([*named, ErrorBody, *CONFIG_TYPES.values()], ref_template=_REFS)
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Coffer management API", "version": VERSION, "description": _ABOUT},
        "servers": [{"url": "http://127.0.0.1:8000", "description": "the port stands in daemon.json"}],
        "security": [{"bearer": []}, {"header": []}],
        "paths": paths,
        "x-config": {kind: {"$ref": _REFS.format(name=name)} for kind, name in _config_names()},
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-Coffer-Token"},
            },
        },
    }


def _config_names() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for kind, shape in CONFIG_TYPES.items():
        found += [
            (kind if not get_args(shape) else f"{kind}/{one.__name__}", one.__name__)
            for one in get_args(shape) or (shape,)
        ]
    return found


def operation_id(route: "Route") -> str:
    """``room.handler``, which names an operation once."""
    return f"{route.handler.__module__.rpartition('.')[2]}.{getattr(route.handler, '__name__', '')}"


def _operation(route: "Route") -> dict[str, Any]:
    words = (route.handler.__doc__ or "").strip()
    found: dict[str, Any] = {
        "operationId": operation_id(route),
        "summary": words.partition("\n")[0],
        "description": " ".join(words.split()),
        "tags": [operation_id(route).partition(".")[0]],
        "parameters": _parameters(route),
        "responses": _responses(route),
    }
    if route.takes is not None:
        # A shape without a required member may be left out altogether.
        needed = any(field.required for field in msgspec.structs.fields(route.takes))
        found["requestBody"] = {"required": needed, "content": {"application/json": {"schema": _ref(route.takes)}}}
    if route.permission == "open":
        found["security"] = []
    return found


def _parameters(route: "Route") -> list[dict[str, Any]]:
    parts = [
        {"name": part, "in": "path", "required": True, "schema": _PARTS.get(part, _NAME)}
        for part in re.findall(r"\{(\w+)\}", route.path)
    ]
    query = [
        {"name": one.name, "in": "query", "required": False, "description": one.description, "schema": one.schema}
        for one in route.query
    ]
    if route.method == "GET":
        return parts + query
    actors = {"type": "string", "examples": sorted(set(get_args(Actor)) - {"system"})}
    header = {"name": ACTOR_HEADER, "in": "header", "required": False, "schema": actors}
    return [*parts, *query, {**header, "description": "Who did it, for the audit log; anything unknown is api."}]


def _responses(route: "Route") -> dict[str, Any]:
    gives = route.gives
    content = {gives: {"schema": {}}} if isinstance(gives, str) else {"application/json": {"schema": _ref(gives)}}
    answers: dict[str, Any] = {
        str(status): {"description": HTTPStatus(status).phrase, "content": content} for status in route.statuses
    }
    refusal = {
        "description": "What was wrong, and what to do next.",
        "content": {"application/json": {"schema": _ref(ErrorBody)}},
    }
    return answers | {"4XX": refusal, "5XX": refusal}


def _ref(shape: type) -> dict[str, str]:
    return {"$ref": _REFS.format(name=shape.__name__)}
