"""A worker is the subreaper of its upstreams: orphans come to it, are reaped, and end with whom they belong to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from coffer_common.pidrecord import COOKIE_VARIABLE
from tests.support.fork_supervisor import ForkSupervisor, carrying
from tests.support.wait import wait_for

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="subreapers are Linux only")


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[ForkSupervisor]:
    """A stand-in supervisor whose fork server is ready."""
    started = await ForkSupervisor.start(tmp_path)
    await started.next("ready")
    yield started
    await started.close()


async def result(folder: Path) -> dict[str, Any]:
    """What the worker wrote."""
    await wait_for((folder / "result").exists, bound=40)
    return json.loads((folder / "result").read_text())


async def test_fifty_crashes_leave_no_zombie_and_no_orphan(supervisor: ForkSupervisor, tmp_path: Path) -> None:
    """P05. Each crash leaves one orphan that lives on and one that has ended: the first is killed, both are reaped."""
    await supervisor.fork("up", "crashes", str(tmp_path))
    assert await result(tmp_path) == {"zombies": [], "alive": [], "records": []}


async def test_one_upstream_ends_with_its_orphans_and_the_other_keeps_its_own(
    supervisor: ForkSupervisor, tmp_path: Path
) -> None:
    """Grandchildren that left session and parent are known by their cookie, so the other connection's live on."""
    pid = await supervisor.fork("up", "two_upstreams", str(tmp_path))
    found = await result(tmp_path)
    assert found["how"] == "ended on SIGTERM"
    assert not carrying(COOKIE_VARIABLE, found["first"])
    assert len(carrying(COOKIE_VARIABLE, found["second"])) == 3
    assert len(found["records"]) == 1
    supervisor.do(do="kill", pid=pid, incarnation=1)
    await supervisor.next("exit", pid=pid)
    await wait_for(lambda: not carrying(COOKIE_VARIABLE, found["second"]), bound=5)
