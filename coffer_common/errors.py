"""Coffer's own errors on the MCP wires: each reason once, with code, HTTP status and whether a retry makes sense.

Owns the table and the shape of the error object. Never used for an upstream's own errors, which pass unchanged.
Codes stay outside JSON-RPC's reserved range (-32768..-32000) except where MCP gives one for the case.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from coffer_common import protocol


@dataclass(frozen=True, slots=True)
class Reason:
    """``name`` is what ``data.reason`` says; ``code`` for modern and legacy wires; ``status`` on modern HTTP."""

    name: str
    code: int
    status: int
    retryable: bool
    legacy_code: int

    def code_for(self, era: protocol.Era) -> int:
        """The JSON-RPC code on a wire of ``era``."""
        return self.code if era == "modern" else self.legacy_code


def _reason(name: str, code: int, *, retryable: bool = False, legacy: int | None = None) -> Reason:
    status = protocol.HTTP_STATUS.get(code, 200)
    return Reason(name, code, status, retryable, code if legacy is None else legacy)


PARSE_ERROR: Final = _reason("parse_error", protocol.PARSE_ERROR)
INVALID_REQUEST: Final = _reason("invalid_request", protocol.INVALID_REQUEST)
METHOD_NOT_FOUND: Final = _reason("method_not_found", protocol.METHOD_NOT_FOUND)
INVALID_PARAMS: Final = _reason("invalid_params", protocol.INVALID_PARAMS)
HEADER_MISMATCH: Final = _reason("header_mismatch", protocol.HEADER_MISMATCH)
UNSUPPORTED_VERSION: Final = _reason("unsupported_version", protocol.UNSUPPORTED_VERSION)
INTERNAL: Final = _reason("internal_error", protocol.INTERNAL_ERROR, retryable=True)

UNKNOWN_CAPABILITY: Final = _reason("unknown_capability", protocol.INVALID_PARAMS)
UNKNOWN_RESOURCE: Final = _reason("unknown_resource", protocol.INVALID_PARAMS, legacy=protocol.RESOURCE_NOT_FOUND)
AMBIGUOUS: Final = _reason("ambiguous_name", protocol.INVALID_PARAMS)
UNKNOWN_CURSOR: Final = _reason("unknown_cursor", protocol.INVALID_PARAMS)
CAPABILITY_DISABLED: Final = _reason("capability_disabled", protocol.INVALID_PARAMS, legacy=protocol.SERVER_ERROR)
SERVER_DISABLED: Final = _reason("server_disabled", protocol.INVALID_PARAMS, legacy=protocol.SERVER_ERROR)
UNKNOWN_SERVER: Final = _reason("unknown_server", protocol.INVALID_PARAMS)
UNKNOWN_GROUP: Final = _reason("unknown_group", protocol.INVALID_PARAMS)
DENIED: Final = _reason("denied", protocol.INVALID_PARAMS, legacy=protocol.SERVER_ERROR)

UPSTREAM_FAILED: Final = _reason("upstream_failed", -31001, retryable=True)
UPSTREAM_BACKOFF: Final = _reason("upstream_backoff", -31002, retryable=True)
NEEDS_LOGIN: Final = _reason("needs_login", -31003)
START_LIMIT: Final = _reason("start_limit", -31004, retryable=True)
START_FAILED: Final = _reason("start_failed", -31005, retryable=True)
UPSTREAM_EXITED: Final = _reason("upstream_exited", -31006)
IDLE_LIMIT: Final = _reason("idle_limit", -31007)
TOTAL_LIMIT: Final = _reason("total_limit", -31008)
QUEUE_FULL: Final = _reason("queue_full", -31009, retryable=True)
CONNECTION_LIMIT: Final = _reason("connection_limit", -31010, retryable=True)
LINE_LIMIT: Final = _reason("line_limit", -31011)
BAD_ANSWER: Final = _reason("bad_answer", -31012)
WORKER_LOST: Final = _reason("worker_lost", -31013)
WORKER_GONE: Final = replace(WORKER_LOST, retryable=True)
"""The same, where it is certain that the call was not carried out."""
WORKER_BUSY: Final = _reason("worker_busy", -31014, retryable=True)
UPSTREAM_STOPPED: Final = _reason("upstream_stopped", -31015, retryable=True)
CANCELLED: Final = _reason("cancelled", -31016)
STOPPING: Final = _reason("daemon_stopping", -31017, retryable=True)
DAEMON_LOST: Final = _reason("daemon_lost", -31018)
DAEMON_ABSENT: Final = _reason("daemon_absent", -31019, retryable=True)
ROUNDS_LIMIT: Final = _reason("rounds_limit", -31020)
ANSWER_LIMIT: Final = _reason("answer_limit", -31028)
BODY_LIMIT: Final = _reason("body_limit", -31021)
# What can go wrong with an upstream over HTTP. UNREACHABLE: nothing was sent; BROKEN: the outcome is unknown.
UNREACHABLE: Final = _reason("upstream_unreachable", -31022, retryable=True)
BROKEN: Final = _reason("connection_broken", -31023)
HTTP_STATUS: Final = _reason("upstream_status", -31024)
HTTP_BUSY: Final = _reason("upstream_busy", -31025, retryable=True)
FORBIDDEN: Final = _reason("upstream_forbidden", -31026)
SESSION_LOST: Final = _reason("session_lost", -31027, retryable=True)
SUBSCRIBE_UNSUPPORTED: Final = _reason("subscribe_unsupported", protocol.METHOD_NOT_FOUND)
# What an upstream takes of the machine, or leaves lying.
MEMORY_LIMIT: Final = _reason("memory_limit", -31040)
PROCESS_LIMIT: Final = _reason("process_limit", -31041)
INPUT_LIMIT: Final = _reason("input_limit", -31042)

MALFORMED: Final = {r.code: r for r in (PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS)}
"""What a message is refused with that is none, by the code of `jsonrpc.Malformed`."""
REASONS: Final[dict[str, Reason]] = {r.name: r for r in list(globals().values()) if isinstance(r, Reason)}


def error_object(
    reason: Reason,
    message: str,
    *,
    server: str | None = None,
    era: protocol.Era = "legacy",
    data: dict[str, Any] | None = None,
) -> bytes:
    """The JSON error object ``{"code", "message", "data": {"server"?, "reason", "retryable", ...data}}``."""
    full: dict[str, Any] = {} if server is None else {"server": server}
    full |= {"reason": reason.name, "retryable": reason.retryable}
    if data:
        full |= data
    return msgspec.json.encode({"code": reason.code_for(era), "message": message, "data": full})
