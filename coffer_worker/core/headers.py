"""``Mcp-Param-*``: arguments of a tool repeated as headers, to a modern HTTP upstream and from a modern HTTP client.

Owns finding the annotated properties of a tool's schema, which annotations make a tool unusable, the headers that an
upstream is sent, and holding a client's against its arguments. Never routes by a header.
Source: MCP 2026-07-28, Transports, Streamable HTTP, custom headers from tool parameters (``x-mcp-header``).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from coffer_common import jsonrpc, protocol
from coffer_worker.core import splice

ANNOTATION: Final = "x-mcp-header"
_DEPTH: Final = 32
_decode: Final = msgspec.json.Decoder().decode
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REPEATABLE: Final = ("string", "integer", "boolean")
# Where a schema holds other schemas: as the value, as an array of them, or by name.
_ONE: Final = (
    *("items", "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "not"),
    *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
)
_MANY: Final = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED: Final = ("patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")

Mirrors = dict[tuple[str, ...], str]
"""Path of an argument -> the name of its header, lower case."""


def mirrors(tool: bytes) -> Mirrors:
    """The annotated arguments of a tool, from its raw catalogue entry."""
    if ANNOTATION.encode() not in tool:
        return {}
    try:
        schema = jsonrpc.read(bytes(splice.members(tool).get("inputSchema", b"{}")), _decode)
    except (ValueError, msgspec.DecodeError):
        return {}
    found: Mirrors = {}
    _walk(schema, (), found)
    return found


def _walk(schema: Any, path: tuple[str, ...], found: Mirrors) -> None:
    if not isinstance(schema, dict) or len(path) > _DEPTH:
        return
    token = schema.get(ANNOTATION)
    if path and isinstance(token, str):
        found[path] = protocol.HEADER_PARAM_PREFIX + token.lower()
    properties = schema.get("properties")
    if isinstance(properties, dict):
        for name, inner in properties.items():
            _walk(inner, (*path, name), found)


def malformed(schema: bytes) -> str | None:
    """Why the annotations of an ``inputSchema`` make its tool unusable over HTTP; None where they are in order.

    An annotation must name a header that no other one names, and stand on a string, integer or boolean that is
    reached through ``properties`` alone.
    """
    if ANNOTATION.encode() not in schema and b"\\u" not in schema:
        return None
    seen: dict[str, str] = {}
    for path, found in _positions(jsonrpc.read(schema, _decode), (), _DEPTH):
        if ANNOTATION not in found:
            continue
        if not path:
            return f"{ANNOTATION} stands where no argument is reached through properties alone"
        token, kind, where = found[ANNOTATION], found.get("type"), ".".join(path)
        if not isinstance(token, str) or _TOKEN.fullmatch(token) is None:
            return f"the {ANNOTATION} of its argument {where!r} is no header name"
        if kind not in _REPEATABLE:
            return f"its argument {where!r} has an {ANNOTATION}, but is no string, integer or boolean"
        if token.lower() in seen:
            return f"its arguments {seen[token.lower()]!r} and {where!r} name the same {ANNOTATION}"
        seen[token.lower()] = where
    return None


def _positions(schema: Any, path: tuple[str, ...] | None, depth: int) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each schema within a schema, with its path where that is one of ``properties`` alone (None elsewhere)."""
    if not isinstance(schema, dict) or depth == 0:
        return
    yield path, schema
    properties = schema.get("properties")
    for name, inner in properties.items() if isinstance(properties, dict) else ():
        yield from _positions(inner, None if path is None else (*path, name), depth - 1)
    for keyword in _ONE:
        yield from _positions(schema.get(keyword), None, depth - 1)
    for keyword in _MANY:
        listed = schema.get(keyword)
        for inner in listed if isinstance(listed, list) else ():
            yield from _positions(inner, None, depth - 1)
    for keyword in _NAMED:
        named = schema.get(keyword)
        for inner in named.values() if isinstance(named, dict) else ():
            yield from _positions(inner, None, depth - 1)


def repeated(wanted: Mirrors, params: splice.Slice) -> dict[str, str]:
    """The headers of a call to an upstream, from its arguments; what is absent or null has none."""
    arguments = _arguments(params)
    values = {header: protocol.header_scalar(_at(arguments, path)) for path, header in wanted.items()}
    return {header: protocol.encode_header(value) for header, value in values.items() if value is not None}


def _arguments(params: splice.Slice) -> Any:
    """The decoded arguments of a call; None where they cannot be: the upstream judges them."""
    try:
        return msgspec.json.decode(splice.members(params).get("arguments", b"{}"))
    except (ValueError, msgspec.DecodeError, RecursionError):
        return None


def mismatch(wanted: Mirrors, params: bytes, headers: Mapping[str, str]) -> str | None:
    """What is wrong with the headers of a call, for the client; None where they agree with its arguments."""
    arguments = _arguments(params)
    if arguments is None:
        return None  # no worse than without headers
    for path, header in wanted.items():
        value = protocol.header_scalar(_at(arguments, path))
        given = headers.get(header)
        said = None if given is None else protocol.decode_header(given)
        where = ".".join(path)
        if given is None and value is not None:
            return f"header {header} is missing: it must repeat the argument {where!r}"
        if given is not None and (value is None or said is None or not _same(value, said)):
            return f"header {header} does not agree with the argument {where!r}"
    return None


def _at(node: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        node = node.get(name) if isinstance(node, dict) else None
    return node


def _same(value: str, said: str) -> bool:
    """Equal as text, or as numbers: JSON writes one number in many ways."""
    if value == said:
        return True
    try:
        return float(value) == float(said)
    except ValueError:
        return False
