"""A client's own trace id: at the upstream, and in the log of calls."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.clients import raw_http
from tests.support.daemon import Daemon
from tests.support.upstreams import fake

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("where", ["meta", "header", "nowhere"])
async def test_a_trace_goes_from_client_to_upstream_to_log(daemon: Daemon, era: str, where: str) -> None:
    """W3C traceparent in `_meta`, or in the HTTP header: the upstream sees it in `_meta`, the log has its trace id."""
    await daemon.call("POST", "/resources", {"kind": "mcp_server", "name": "files", "config": stdio(daemon)})
    params: dict[str, Any] = {"name": "files__structured", "arguments": {}}
    if where == "meta":
        params["_meta"] = {"traceparent": PARENT}
    headers = {"traceparent": PARENT} if where == "header" else {}
    async with raw_http(daemon) as client:
        if era == "legacy":
            await client.initialize()
            answer = await client.request("tools/call", params, headers)
        else:
            answer = await client.modern("tools/call", params, headers)
    seen = answer.result["_meta"]["fake.example/seen"]
    [row] = (await daemon.call("GET", "/invocations"))["invocations"]
    if where == "nowhere":
        assert "traceparent" not in seen
        assert row["trace_id"] and row["trace_id"] != TRACE
    else:
        assert seen["traceparent"] == PARENT
        assert row["trace_id"] == TRACE


def stdio(daemon: Daemon) -> dict[str, Any]:
    """The fake server's configuration."""
    return {**fake("--tools", "structured").config(), "path": daemon.env["PATH"]}
