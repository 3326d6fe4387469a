"""A worker that cannot use what it is told to be: it says so and ends, it does not live on half made."""

from __future__ import annotations

from pathlib import Path

import pytest

from coffer_common import forkproto
from coffer_common.resources import HttpServer
from tests.support.heart import beating
from tests.support.upstreams import raw
from tests.support.wait import wait_for
from tests.support.worker import Worker

pytestmark = pytest.mark.fault

# No URL at all; the store would have refused it.
BAD = HttpServer(url="http://[hunter2hunter2", headers={"Authorization": "Bearer hunter2hunter2"})


async def test_a_worker_that_cannot_be_configured_says_so_and_ends(tmp_path: Path) -> None:
    """State failed with the reason, without a secret, then an exit code of its own, at once."""
    async with Worker.start(tmp_path, None) as worker:
        await worker.configure(BAD)
        state = await worker.state("failed")
        assert "does not take the configuration (ValueError: " in state.message
        assert "coffer mcp update up" in state.message
        assert "hunter2" not in state.message
        await wait_for(lambda: worker.process.poll() is not None)
        assert worker.process.returncode == forkproto.EXIT_UNCONFIGURED


async def test_the_reason_is_what_an_operator_and_callers_see() -> None:
    """The supervisor shows the worker's last word, not only that it ended; the next good configuration works."""
    async with beating() as heart:
        await heart.add("one", raw())
        upstream = heart.supervision.upstreams["one"]
        good, upstream.config = upstream.config, BAD
        await heart.supervision.restart("one")
        await wait_for(lambda: "does not take the configuration" in heart.view("one").last_error)
        view = await wait_for(lambda: v if (v := heart.view("one")).state in ("backoff", "failed") else None)
        assert "does not take the configuration" in view.message
        upstream.config = good
        await heart.supervision.restart("one")
        await heart.reach("one", "ready")
