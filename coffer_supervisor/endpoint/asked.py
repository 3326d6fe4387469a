"""The ids of requests to legacy clients: never the same in two runs of the daemon, or in two asks.

Owns their spelling. A client that answers late, after a restart, answers nothing of the new run's.
"""

import secrets
from typing import Final

from coffer_common import jsonrpc

_RUN: Final = secrets.token_hex(4)


def ask_id(ask: int) -> bytes:
    """The raw JSON-RPC id of an ask."""
    return b'"coffer-%b-%d"' % (_RUN.encode(), ask)


def withdrawal(raw_id: bytes) -> bytes:
    """The notification that takes an ask back. Source: MCP 2025-11-25, Cancellation."""
    return jsonrpc.notification("notifications/cancelled", b'{"requestId":' + raw_id + b"}")
