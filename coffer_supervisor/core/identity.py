"""What endpoints say they are: the aggregate's capabilities with its upstreams' extensions, and an upstream's name.

Owns that union, and what stands in for a name that an upstream did not give. Never asks an upstream anything.
Source: MCP 2025-11-25, Lifecycle (``serverInfo``); MCP 2026-07-28, Discovery; Extensions, negotiation.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from coffer_common import jsonrpc, protocol

CAPABILITIES: Final[dict[str, Any]] = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "prompts": {"listChanged": True},
    "completions": {},
}


def aggregate(declared: Iterable[bytes]) -> bytes:
    """The capabilities of an aggregate of upstreams that ``declared`` these (raw JSON objects): an extension that
    Coffer can carry is its own where any upstream has it. Settings that differ are nobody's: they become ``{}``."""
    extensions: dict[str, Any] = {}
    for raw in declared:
        try:
            found = msgspec.json.decode(raw)
        except jsonrpc.UNREADABLE:
            continue
        theirs = found.get("extensions") if isinstance(found, dict) else None
        for name, settings in protocol.carried_extensions(theirs).items():
            extensions[name] = settings if extensions.get(name, settings) == settings else {}
    return msgspec.json.encode({**CAPABILITIES, "extensions": extensions} if extensions else CAPABILITIES)


def presented(server_info: bytes, name: str) -> bytes:
    """An upstream's ``serverInfo`` for clients, as it is wherever it can be: a modern server need not give any, but a
    client refuses a handshake without name and version. Then the name it is registered by stands in."""
    try:
        found = msgspec.json.decode(server_info)
    except jsonrpc.UNREADABLE:
        found = None
    given = found if isinstance(found, dict) else {}
    wanted = {"name": name, "version": ""}
    lacking = {member: text for member, text in wanted.items() if not isinstance(given.get(member), str)}
    return msgspec.json.encode({**given, **lacking}) if lacking else server_info
