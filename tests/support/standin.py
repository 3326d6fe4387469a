"""A home whose daemon is the scripted one of ``tests/fixtures/standin``: real start-up, scripted conversation."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from tests.support.daemon import SHIM, Daemon
from tests.support.lines import Lines, lines
from tests.support.procs import alive
from tests.support.wait import wait_until

FOLDER = Path(__file__).parents[1] / "fixtures" / "standin"


class StandIn:
    """One home; its daemon is started by whoever needs one, as in life."""

    def __init__(self, make_daemon: Callable[..., Daemon]) -> None:
        self.daemon = make_daemon(extra_env={"PYTHONPATH": str(FOLDER)})
        self.home = self.daemon.home
        self.env = self.daemon.env

    def script(self, **script: Any) -> None:
        """What the next daemon does (see the stand-in's ``app``)."""
        (self.home / "standin.json").write_text(json.dumps(script))

    def shim(self, *flags: str, **env: str) -> AbstractAsyncContextManager[Lines]:
        """A shim as a client launches it."""
        return lines([SHIM, *flags], env={**self.env, **env}, cwd="/")

    @property
    def pid(self) -> int:
        """The pid that ``daemon.json`` records."""
        return int(self.daemon.info["pid"])

    def got(self, pid: int | None = None) -> list[Any]:
        """What the daemons of this home received, or one of them."""
        log = self.home / "standin.log"
        rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [row["got"] for row in rows if pid in (None, row["pid"])]

    def methods(self, pid: int | None = None) -> list[str]:
        """The methods among them."""
        return [row["method"] for row in self.got(pid) if isinstance(row, dict) and "method" in row]

    def pids(self) -> set[int]:
        """Every daemon that ever got a line."""
        log = self.home / "standin.log"
        return {json.loads(line)["pid"] for line in log.read_text().splitlines()} if log.exists() else set()

    def wait_end(self, pid: int) -> None:
        """Until that daemon is gone."""
        wait_until(lambda: not alive(pid), what=f"end of {pid}")
