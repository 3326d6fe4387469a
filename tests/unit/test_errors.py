"""Coffer's own errors: each once, outside the reserved range unless MCP gives the code."""

import msgspec

from coffer_common import errors, protocol

GIVEN_BY_THE_PROTOCOL = {
    protocol.PARSE_ERROR,
    protocol.INVALID_REQUEST,
    protocol.METHOD_NOT_FOUND,
    protocol.INVALID_PARAMS,
    protocol.INTERNAL_ERROR,
    protocol.HEADER_MISMATCH,
    protocol.UNSUPPORTED_VERSION,
}


def test_own_codes_stay_outside_the_reserved_range_and_are_used_once() -> None:
    own = [r for r in errors.REASONS.values() if r.code not in GIVEN_BY_THE_PROTOCOL]
    assert own
    assert all(not -32768 <= r.code <= -32000 for r in own)
    assert len({r.code for r in own}) == len(own)


def test_modern_wires_never_see_the_codes_of_legacy_servers() -> None:
    assert all(not -32019 <= r.code <= -32000 for r in errors.REASONS.values())
    assert errors.CAPABILITY_DISABLED.code_for("legacy") == protocol.SERVER_ERROR
    assert errors.UNKNOWN_RESOURCE.code_for("legacy") == protocol.RESOURCE_NOT_FOUND
    assert errors.UNKNOWN_RESOURCE.code_for("modern") == protocol.INVALID_PARAMS


def test_the_error_object_says_who_why_and_whether_to_try_again() -> None:
    raw = errors.error_object(errors.IDLE_LIMIT, "too slow", server="pg", data={"limit_seconds": 2})
    assert msgspec.json.decode(raw) == {
        "code": errors.IDLE_LIMIT.code,
        "message": "too slow",
        "data": {"server": "pg", "reason": "idle_limit", "retryable": False, "limit_seconds": 2},
    }
    bare = msgspec.json.decode(errors.error_object(errors.INVALID_REQUEST, "no request", era="modern"))
    assert bare["data"] == {"reason": "invalid_request", "retryable": False}


def test_what_is_no_message_is_told_why_like_everything_else() -> None:
    assert {code: reason.name for code, reason in errors.MALFORMED.items()} == {
        protocol.PARSE_ERROR: "parse_error",
        protocol.INVALID_REQUEST: "invalid_request",
        protocol.INVALID_PARAMS: "invalid_params",
    }
    assert all(
        reason.code_for(era) == code for code, reason in errors.MALFORMED.items() for era in ("modern", "legacy")
    )
