"""Keeps the daemon findable while it lives: ``daemon.json`` is put back where it was removed or spoilt.

Owns that watch. Never writes once the daemon is leaving, nor over the file of another release. Only the holder of
``daemon.alive`` may run it, so that no two daemons write against each other.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Final

from coffer_common import discovery, log
from coffer_common.discovery import DaemonInfo
from coffer_supervisor.daemon import Claimed

WATCH_SECONDS: Final = 2.0
_log = log.get(__name__)


@contextlib.asynccontextmanager
async def watching(claimed: Claimed) -> AsyncIterator[None]:
    """The watch runs within."""
    task = asyncio.create_task(_watch(claimed), name="daemon.json")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _watch(claimed: Claimed) -> None:
    seen = None
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        try:
            if seen is None or _identity(claimed) != seen:
                put_back(claimed)
                seen = _identity(claimed)
        except (OSError, discovery.DiscoveryError) as error:
            _log.warning("daemon.json cannot be kept: commands may not find this daemon", error=str(error))


def _identity(claimed: Claimed) -> tuple[int, int] | None:
    """What changes when somebody writes the file; None where it is gone."""
    with contextlib.suppress(FileNotFoundError):
        found = os.stat(claimed.home.daemon_json)
        return found.st_ino, found.st_mtime_ns
    return None


def put_back(claimed: Claimed) -> bool:
    """Writes ``daemon.json`` anew where it is not this daemon's; whether it did. Raises OSError, DiscoveryError."""
    found = discovery.read_info(claimed.home)
    if found == "other_version" or (isinstance(found, DaemonInfo) and found == claimed.info):
        return False
    copy = discovery.keep_backup(claimed.home)
    discovery.write_info(claimed.home, claimed.info)
    _log.warning("daemon.json was removed or changed while the daemon runs: put back", copy=str(copy or ""))
    return True
