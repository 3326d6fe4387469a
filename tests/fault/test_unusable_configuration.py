"""A worker that cannot use what it is told to be: it says so and ends, it does not live on half made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coffer_common import forkproto, frames
from coffer_common.resources import HttpServer, McpServerConfig
from coffer_worker.__main__ import Orders
from coffer_worker.runner import Runner

pytestmark = pytest.mark.fault

CONFIG = HttpServer(url="http://127.0.0.1/hunter2hunter2", headers={"X-Key": "hunter2hunter2"})


class Faulty(Runner):
    """No configuration is known that trips the worker: this one trips over every one."""

    def _reach(self, config: McpServerConfig, records: Path) -> Any:
        assert isinstance(config, HttpServer)
        raise ValueError(f"nothing is at {config.url}")


class Nowhere:
    """Takes bulk frames, of which there are none."""

    def send(self, frame: Any, payload: bytes = b"") -> None:
        raise AssertionError(f"{frame} was sent")


async def test_a_worker_that_cannot_be_configured_says_so_and_ends(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """State failed with the reason, without a secret, then an exit code of its own, at once."""
    said: list[Any] = []
    runner = Faulty("up", Nowhere(), said.append)
    orders = Orders("up", runner, said.append)
    orders.deliver(frames.Configure(CONFIG, "run", "0.1.0", str(tmp_path), str(tmp_path)))
    [state] = said
    assert state.state == "failed"
    assert "does not take the configuration (ValueError: " in state.message
    assert "coffer mcp update up" in state.message
    assert "hunter2" not in state.message
    assert runner.finished.is_set()
    assert (orders.code, orders.figures().state) == (forkproto.EXIT_UNCONFIGURED, "failed")
    told = capfd.readouterr().err
    assert "_reach" in told, "where it happened is for the log"
    assert "hunter2" not in told
