"""What the MCP revisions fix for both sides of a wire: versions, eras, meta keys, headers and their encoding.

Owns constants and small pure functions; a contract test compares them with the SDK's. Never imports the SDK
(0.8 s, 30 MB), which is why they stand here.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

Era = Literal["legacy", "modern"]

LEGACY_REVISIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_REVISIONS: Final = ("2026-07-28",)
LATEST_LEGACY: Final = LEGACY_REVISIONS[-1]
LATEST_MODERN: Final = MODERN_REVISIONS[-1]
BATCH_REVISION: Final = "2025-03-26"

META_PREFIX: Final = "io.modelcontextprotocol/"
META_PROTOCOL_VERSION: Final = META_PREFIX + "protocolVersion"
META_CLIENT_INFO: Final = META_PREFIX + "clientInfo"
META_CLIENT_CAPABILITIES: Final = META_PREFIX + "clientCapabilities"
META_LOG_LEVEL: Final = META_PREFIX + "logLevel"
META_SERVER_INFO: Final = META_PREFIX + "serverInfo"
META_SUBSCRIPTION_ID: Final = META_PREFIX + "subscriptionId"
# Keys of `_meta` that belong to one hop and never cross Coffer; all others pass.
HOP_META: Final = frozenset(
    {
        META_PROTOCOL_VERSION,
        META_CLIENT_INFO,
        META_CLIENT_CAPABILITIES,
        META_LOG_LEVEL,
        META_SUBSCRIPTION_ID,
        "progressToken",
    }
)

# Extensions that a gateway cannot carry: tasks bring methods of their own, which name no server and would have to be
# routed and kept; the others say how a client authorizes itself, which is another matter on each hop.
_BOUND_EXTENSIONS: Final = frozenset(
    {
        META_PREFIX + "tasks",
        META_PREFIX + "oauth-client-credentials",
        META_PREFIX + "enterprise-managed-authorization",
    }
)

HEADER_VERSION: Final = "mcp-protocol-version"
HEADER_SESSION: Final = "mcp-session-id"
HEADER_METHOD: Final = "mcp-method"
HEADER_NAME: Final = "mcp-name"
HEADER_PARAM_PREFIX: Final = "mcp-param-"

# The member of params that is mirrored as Mcp-Name.
NAME_MEMBER: Final[Mapping[str, str]] = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
SERVER_ERROR: Final = -32000
RESOURCE_NOT_FOUND: Final = -32002
HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_VERSION: Final = -32022
URL_ELICITATION_REQUIRED: Final = -32042
MODERN_ERRORS: Final = frozenset({HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION})

# HTTP status of a JSON-RPC error on the modern wire; what is not listed is 200.
HTTP_STATUS: Final[Mapping[int, int]] = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}

_BASE64: Final = re.compile(r"=\?base64\?(.*)\?=")
_VISIBLE: Final = re.compile(r"[\x20-\x7e]*")


def era_of(revision: str) -> Era:
    """The era of a known or unknown revision; whatever is not known as modern has a handshake."""
    return "modern" if revision in MODERN_REVISIONS else "legacy"


def negotiated_legacy(asked: object) -> str:
    """The revision that ``initialize`` answers: the client's if known, else the newest with a handshake."""
    return asked if isinstance(asked, str) and asked in LEGACY_REVISIONS else LATEST_LEGACY


def carried_extensions(declared: object) -> dict[str, Any]:
    """Of the ``extensions`` that a peer declared (decoded), those that may be declared on the other hop: all that can
    work by members, types of result and content that pass anyway.

    Source: MCP 2026-07-28, Extensions, negotiation.
    """
    if not isinstance(declared, Mapping):
        return {}
    return {
        name: settings
        for name, settings in declared.items()
        if name not in _BOUND_EXTENSIONS and isinstance(settings, Mapping)
    }


def encode_header(value: str) -> str:
    """``value`` as an HTTP field value, in the ``=?base64?...?=`` form where plain text would not survive.

    Source: MCP 2026-07-28, Transports, Streamable HTTP, header encoding.
    """
    if _VISIBLE.fullmatch(value) and value == value.strip() and not _BASE64.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def decode_header(value: str) -> str | None:
    """The inverse of ``encode_header``; None for a damaged base64 form, so that it equals no body value."""
    match = _BASE64.fullmatch(value)
    if match is None:
        return value
    try:
        raw = base64.b64decode(match.group(1), validate=True)
        return raw.decode() if base64.b64encode(raw).decode() == match.group(1) else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def header_scalar(value: Any) -> str | None:
    """How a JSON scalar is mirrored in a header; None where it has no mirror (null, objects, arrays)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        try:
            return str(value)
        except ValueError:  # an integer beyond the interpreter's digit limit
            return None
    return None
