"""How Coffer describes itself to authorization servers: at its registration, or in a document that they look up.

Owns that description. No I/O. Source: RFC 7591, section 2; OAuth Client ID Metadata Document; MCP 2026-07-28,
Authorization.
"""

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from coffer_common import weburl
from coffer_common.ports import DEFAULT

CALLBACK: Final = "http://127.0.0.1:{port}" + weburl.CALLBACK_PATH
EXAMPLE: Final = "https://example.org/coffer/client-metadata.json"
"""Stands for the address at which somebody publishes the document."""


def description(redirect_uris: Sequence[str]) -> dict[str, Any]:
    """The members that both have in common."""
    return {
        "client_name": "Coffer",
        "redirect_uris": list(redirect_uris),
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "application_type": "native",
        "software_id": "coffer",
    }


def publishable(url: str) -> bool:
    """Whether a client id can be such an address: HTTPS, with a path."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "https" and bool(parts.hostname) and parts.path not in ("", "/")


def document(url: str) -> bytes:
    """The document to publish at ``url``, for the ports that Coffer takes unless it is told otherwise. An
    authorization server need not compare the port of such an address (RFC 8252, section 7.3)."""
    found = {
        "client_id": url,
        **description([CALLBACK.format(port=port) for port in DEFAULT]),
        "token_endpoint_auth_method": "none",
    }
    return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"
