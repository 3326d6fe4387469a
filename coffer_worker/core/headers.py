"""``Mcp-Param-*``: the arguments that a modern HTTP client repeats as headers, held against the arguments themselves.

Owns finding the annotated properties of a tool's schema and the comparison. Never routes by a header, never sends one.
Source: MCP 2026-07-28, Transports, Streamable HTTP, custom headers from tool parameters (``x-mcp-header``).
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from coffer_common import protocol
from coffer_worker.core import splice

ANNOTATION: Final = "x-mcp-header"
_DEPTH: Final = 32

Mirrors = dict[tuple[str, ...], str]
"""Path of an argument -> the name of its header, lower case."""


def mirrors(tool: bytes) -> Mirrors:
    """The annotated arguments of a tool, from its raw catalogue entry."""
    if ANNOTATION.encode() not in tool:
        return {}
    try:
        schema = msgspec.json.decode(splice.members(tool).get("inputSchema", b"{}"))
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


def mismatch(wanted: Mirrors, params: bytes, headers: Mapping[str, str]) -> str | None:
    """What is wrong with the headers of a call, for the client; None where they agree with its arguments."""
    try:
        arguments = msgspec.json.decode(splice.members(params).get("arguments", b"{}"))
    except (ValueError, msgspec.DecodeError):
        return None  # no worse than without headers: the upstream judges the arguments
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
