"""Handshakes as the SDK's models see them: what deviates is said, never refused."""

import msgspec
import pytest

from coffer_common.protocol import Era
from coffer_worker.upstream import handshake

INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {"listChanged": True}, "xVendor": {}},
    "serverInfo": {"name": "s", "version": "1"},
    "xVendor": 1,
}
DISCOVERED = {"supportedVersions": ["2026-07-28"], "capabilities": {}, "resultType": "complete", "ttlMs": 0}
DISCOVERED["cacheScope"] = "private"


@pytest.mark.parametrize(("era", "result"), [("legacy", INITIALIZED), ("modern", DISCOVERED)])
def test_a_good_answer_has_no_deviations(era: Era, result: dict[str, object]) -> None:
    assert handshake.deviations(era, msgspec.json.encode(result)) == ""


def test_deviations_name_members_and_no_values() -> None:
    said = handshake.deviations("legacy", b'{"protocolVersion":"2025-11-25","capabilities":{"tools":"hunter2"}}')
    assert "initialize" in said
    assert "capabilities.tools" in said
    assert "serverInfo" in said
    assert "hunter2" not in said


def test_many_deviations_stay_one_bounded_line() -> None:
    broken = {name: "x" for name in ("tools", "prompts", "resources", "logging", "completions", "experimental")}
    said = handshake.deviations("legacy", msgspec.json.encode({"protocolVersion": 1, "capabilities": broken}))
    assert "more" in said
    assert "\n" not in said
