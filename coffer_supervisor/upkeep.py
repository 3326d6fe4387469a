"""Keeps the daemon findable while it lives: what was removed or spoilt of the files by which others find it is put
back. Those are ``daemon.json``, ``daemon.alive``, the sockets in ``run/`` and the folders.

Owns that watch (a cleaner of temporary files may pass at any time). Never ends what is connected, never writes once
the daemon is leaving, nor over the ``daemon.json`` of another release. Only the holder of ``daemon.alive`` may run
it, so that no two daemons write against each other.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

from coffer_common import discovery, log
from coffer_common.discovery import DaemonInfo
from coffer_common.paths import UnsafeDirectory, check_private
from coffer_supervisor.channel import Channel
from coffer_supervisor.daemon import Claimed, StartError, listen_unix
from coffer_supervisor.endpoint.server import Endpoint

WATCH_SECONDS: Final = 2.0
_IPC: Final = "ipc://"
_log = log.get(__name__)

Identity = tuple[int, int] | None
Binder = Callable[[], Awaitable[None]]


@contextlib.asynccontextmanager
async def watching(claimed: Claimed, endpoint: Endpoint, channel: Channel) -> AsyncIterator[None]:
    """The watch runs within."""
    sockets = Sockets(claimed, endpoint, channel)
    task = asyncio.create_task(_watch(claimed, sockets), name="upkeep")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _watch(claimed: Claimed, sockets: "Sockets") -> None:
    seen, trouble, root = None, "", _inode(claimed.home.root)
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        if _inode(claimed.home.root) != root:
            return  # the whole home was taken away, or is another's now: nothing of it is to come back
        try:
            keep_folders(claimed)
            if claimed.keep_alive():
                _log.warning("daemon.alive was removed while the daemon runs: made and locked anew")
            await sockets.keep()
            if seen is None or _changes(claimed.home.daemon_json) != seen:
                put_back(claimed)
                seen = _changes(claimed.home.daemon_json)
            trouble = ""
        except (OSError, UnsafeDirectory, StartError, discovery.DiscoveryError) as error:
            if str(error) != trouble:
                trouble = str(error)
                _log.warning("the daemon's files cannot be kept: commands may not find it", error=trouble)


def keep_folders(claimed: Claimed) -> None:
    """Makes the folders anew that are missing, but not the home. Raises OSError, UnsafeDirectory."""
    home = claimed.home
    for folder in (home.run, home.logs, home.upstream_pids):
        if not folder.exists():
            folder.mkdir(mode=0o700)
    check_private(home.run)


class Sockets:
    """The four sockets of ``run/``, as they were when this was made."""

    def __init__(self, claimed: Claimed, endpoint: Endpoint, channel: Channel) -> None:
        home = claimed.home

        async def api() -> None:
            claimed.api = listen_unix(home.api_sock)
            await endpoint.replace_api(claimed.api)

        async def mcp() -> None:
            claimed.mcp = listen_unix(home.mcp_sock)
            await endpoint.shims.start(claimed.mcp)

        async def control() -> None:
            channel.listen_again(control=home.control_ipc)

        async def bulk() -> None:
            channel.listen_again(bulk=home.bulk_ipc)

        self._binders: dict[Path, Binder] = {
            home.api_sock: api,
            home.mcp_sock: mcp,
            Path(home.control_ipc.removeprefix(_IPC)): control,
            Path(home.bulk_ipc.removeprefix(_IPC)): bulk,
        }
        self._bound = {path: _inode(path) for path in self._binders}

    async def keep(self) -> list[str]:
        """Binds those anew that were removed, and names them. Raises OSError, StartError."""
        gone = [path for path, inode in self._bound.items() if inode is None or _inode(path) != inode]
        for path in gone:
            await self._binders[path]()
            self._bound[path] = _inode(path)
        names = [path.name for path in gone]
        if names:
            _log.warning("sockets were removed while the daemon runs: made anew", sockets=", ".join(names))
        return names


def put_back(claimed: Claimed) -> bool:
    """Writes ``daemon.json`` anew where it is not this daemon's; whether it did. Raises OSError, DiscoveryError."""
    found = discovery.read_info(claimed.home)
    if found == "other_version" or (isinstance(found, DaemonInfo) and found == claimed.info):
        return False
    copy = discovery.keep_backup(claimed.home)
    discovery.write_info(claimed.home, claimed.info)
    _log.warning("daemon.json was removed or changed while the daemon runs: put back", copy=str(copy or ""))
    return True


def _inode(path: Path) -> Identity:
    """Which file that is; None where there is none."""
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(path)
        return found.st_dev, found.st_ino
    return None


def _changes(path: Path) -> Identity:
    """What changes when somebody writes the file; None where it is gone."""
    with contextlib.suppress(FileNotFoundError):
        found = os.stat(path)
        return found.st_ino, found.st_mtime_ns
    return None
