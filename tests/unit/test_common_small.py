"""The small rooms of the common package: times, releases, exit codes, the lines of the shim's socket."""

import tomllib
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pytest

from coffer_common import clock, exits, shimproto
from coffer_common.shimproto import Goodbye, Hello, Refused, Welcome
from coffer_common.version import VERSION, newer

ROOT = Path(__file__).parents[2]


def test_times_are_rfc_3339_in_utc() -> None:
    moment = datetime(2026, 5, 20, 14, 34, 56, 789_999, timezone(timedelta(hours=2)))
    assert clock.rfc3339(moment) == "2026-05-20T12:34:56Z"
    assert clock.rfc3339_millis(moment) == "2026-05-20T12:34:56.789Z"
    assert clock.parse_rfc3339("2026-05-20T14:34:56+02:00") == datetime(2026, 5, 20, 12, 34, 56, tzinfo=UTC)
    assert clock.parse_rfc3339(clock.now_rfc3339()) <= clock.now()
    assert clock.parse_rfc3339(clock.now_rfc3339_millis()) <= clock.now()
    with pytest.raises(ValueError, match="time zone"):
        clock.parse_rfc3339("2026-05-20T14:34:56")


def test_the_release_is_the_package_s() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION


def test_releases_compare_by_number() -> None:
    assert newer("0.10.0", "0.9.1")
    assert not newer("0.9.1", "0.9.1")
    assert not newer("0.9.1", "1.0.0rc1")


def test_exit_codes_are_a_contract() -> None:
    """0 ok, 1 failure, 2 usage, 3 daemon unreachable, 4 not found, 5 conflict."""
    codes = (exits.OK, exits.FAILURE, exits.USAGE, exits.UNREACHABLE, exits.NOT_FOUND, exits.CONFLICT)
    assert codes == (0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    "line",
    [Hello(1, "0.1.0", "/mcp", "/", 7), Welcome(1, "0.1.0"), Refused("endpoint", "no"), Goodbye("stopped")],
)
def test_control_lines_survive_the_wire_with_members_of_later_versions(line: shimproto.Control) -> None:
    sent = shimproto.encode(line)
    assert sent.endswith(b"}\n")
    assert shimproto.decode(sent) == line
    assert shimproto.decode(sent.replace(b"}\n", b',"later":1}')) == line


def test_what_is_no_control_line_is_refused() -> None:
    for line in (b"{}", b'{"coffer":"later"}', b"[", b'{"coffer":"hello"}'):
        with pytest.raises(msgspec.DecodeError):
            shimproto.decode(line)
