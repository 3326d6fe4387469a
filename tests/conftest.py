"""Fixtures for every test: no leaks, a COFFER_HOME of its own, the daemon, the fake server."""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import upstreams
from tests.support.daemon import Daemon
from tests.support.leaks import HOMES, no_leaks

__all__ = ["no_leaks"]

# Test processes that run side by side keep out of each other's ports.
if (number := os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")).isdigit():
    os.environ["COFFER_PORTS"] = f"{8100 + 10 * int(number)}-{8109 + 10 * int(number)}"


def pytest_collection_finish() -> None:
    """What the tests import stays until the end: no garbage collection has to walk it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever forgets to say where its home is gets the test's folder, never the user's."""
    monkeypatch.setenv("COFFER_HOME", str(tmp_path / "coffer-home"))
    monkeypatch.delenv("COFFER_NO_SPAWN", raising=False)


@pytest.fixture
def make_daemon(request: pytest.FixtureRequest) -> Iterator[Callable[..., Daemon]]:
    """Makes homes (`Daemon` objects, not started); all are ended and removed afterwards."""
    made: list[Daemon] = []

    def make(**options: Any) -> Daemon:
        daemon = Daemon(**options)
        made.append(daemon)
        request.config.stash[HOMES].append(daemon.home)
        return daemon

    yield make
    for daemon in made:
        daemon.close()


@pytest.fixture
def coffer(make_daemon: Callable[..., Daemon]) -> Daemon:
    """A home without a daemon."""
    return make_daemon()


@pytest.fixture
def daemon(coffer: Daemon) -> Daemon:
    """A running daemon without upstreams."""
    return coffer.start()


@pytest.fixture
def fake_server(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """The fake MCP server's process over stdio; flags by indirect parametrisation."""
    process = upstreams.fake(*getattr(request, "param", ())).popen()
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
