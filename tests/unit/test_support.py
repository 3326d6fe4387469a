"""The tests' own tools: waits end with what they waited for, and leaks are found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import leaks
from tests.support.clients import modern_message, sse_data
from tests.support.wait import NotReached, wait_for, wait_until


async def test_wait_for_takes_plain_and_async_conditions() -> None:
    """The first true value comes back."""
    turns = iter([0, 0, 7])

    async def later() -> int:
        return next(turns)

    assert await wait_for(later) == 7
    assert await wait_for(lambda: "now") == "now"


async def test_waits_end_with_what_they_waited_for() -> None:
    """The failure names the condition and its last value."""
    with pytest.raises(NotReached, match=r"a miracle.*last value 0"):
        await wait_for(lambda: 0, bound=0.02, what="a miracle")
    with pytest.raises(NotReached, match="told late"):
        wait_until(lambda: None, bound=0.02, what=lambda: "told late")


def test_a_process_that_is_left_is_found_and_killed(tmp_path: Path) -> None:
    """A grandchild in a session of its own is found by its COFFER_HOME, although it is no child of ours."""
    home = tmp_path / "home"
    code = (
        "import subprocess, sys;"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "COFFER_HOME": str(home)}, check=True)
    assert len(leaks.check_processes(set(), [home])) == 1
    assert leaks.check_processes(set(), [home]) == []


def test_descriptors_are_seen() -> None:
    """An open pipe is among the descriptors that could be leaked."""
    before = leaks.descriptors()
    reader, writer = os.pipe()
    try:
        assert {reader, writer} <= leaks.descriptors().keys() - before.keys()
    finally:
        os.close(reader)
        os.close(writer)


def test_event_streams_are_read_by_the_rules() -> None:
    """Data lines are joined, comments and other fields skipped, an unfinished event is none."""
    body = b': hi\r\nid: 1\r\ndata: {"a":\r\ndata:1}\r\n\r\ndata:\n\ndata: 2\n\ndata: cut'
    assert sse_data(body) == ['{"a":\n1}', "2"]


def test_modern_messages_carry_their_headers() -> None:
    """Method and name stand in the headers, version and client in _meta."""
    message, headers = modern_message(3, "tools/call", {"name": "a__b", "_meta": {"x": 1}})
    assert headers["Mcp-Name"] == "a__b"
    assert headers["Mcp-Method"] == message["method"]
    assert message["params"]["_meta"]["x"] == 1
    assert message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == headers["MCP-Protocol-Version"]
