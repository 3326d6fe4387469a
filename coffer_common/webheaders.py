"""Whether a server's configured HTTP header can be sent: the same rule where it is registered and where it is sent.

Owns that rule. Never sees a header of a message on its way. Source: RFC 9110, sections 5.1, 5.5 and 7.6.1; MCP,
Transports, Streamable HTTP.
"""

import re
from typing import Final

from coffer_common import protocol

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# What a configured header may not set: it belongs to the message, the hop or the protocol.
_OURS: Final = frozenset(
    {
        *("accept", "accept-encoding", "content-type", "content-length", "content-encoding", "last-event-id"),
        *("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host", "expect"),
        *(protocol.HEADER_VERSION, protocol.HEADER_SESSION, protocol.HEADER_METHOD, protocol.HEADER_NAME),
    }
)


def is_ours(name: str) -> bool:
    """Whether Coffer sets this header itself, so that a configured one would be wrong or superfluous."""
    return name.lower() in _OURS or name.lower().startswith(protocol.HEADER_PARAM_PREFIX)


def fault(name: str, value: str) -> str:
    """Why this header cannot be sent, naming it and never its value; empty where it can."""
    if _TOKEN.fullmatch(name) is None:
        return f"the header name {name!r} is not one that HTTP allows"
    if is_ours(name):
        return f"the header {name} is set by Coffer itself and cannot be configured"
    if any((ord(char) < 32 and char != "\t") or ord(char) == 127 for char in value) or value != value.strip():
        return f"the value of the header {name} holds characters that HTTP does not allow"
    return ""
