"""Handlers of ``/daemon/...``: how it is, ending it, its token, a copy of its store."""

import asyncio
from collections import Counter
from http import HTTPStatus
from pathlib import Path

from coffer_common import clock
from coffer_common.api import Backup, BackupDone, DaemonStatus, Rotated, Shutdown, Stopping
from coffer_common.version import VERSION
from coffer_supervisor.management.errors import ApiError, invalid
from coffer_supervisor.management.request import Answer, Request


async def status(request: Request) -> Answer:
    """How the daemon is. Readable without a token: it names no server."""
    management = request.management
    info = management.claimed.info
    up = (clock.now() - clock.parse_rfc3339(info.started_at)).total_seconds()
    return DaemonStatus(
        version=VERSION,
        pid=info.pid,
        port=info.port,
        url=f"http://127.0.0.1:{info.port}",
        started_at=info.started_at,
        up_seconds=max(0.0, up),
        home=str(management.home.root),
        servers=dict(Counter(view.state for view in management.supervision.views())),
        clients=management.clients(),
    )


async def shutdown(request: Request) -> Answer:
    """Begins the daemon's end; the answer comes before it."""
    reason = request.decode(Shutdown).reason
    request.management.shutdown(reason)
    return HTTPStatus.ACCEPTED, Stopping(stopping=True, pid=request.management.claimed.info.pid)


async def rotate_token(request: Request) -> Answer:
    """A new daemon token, in ``daemon.json`` only."""
    management = request.management
    try:
        management.claimed.rotate_token()
    except OSError as error:
        message = f"daemon.json could not be written ({error.strerror}); the old token still holds"
        raise ApiError(
            HTTPStatus.SERVICE_UNAVAILABLE, "not_written", message, "Free some space, then try again."
        ) from error
    await management.store.audit.add("daemon.token_rotated", actor=request.actor)
    return Rotated(rotated_at=clock.now_rfc3339(), daemon_json=str(management.home.daemon_json))


async def backup(request: Request) -> Answer:
    """A copy of the store, made while it is in use."""
    management = request.management
    wished = request.decode(Backup).path
    if wished is None:
        target = management.home.backups / f"coffer-{clock.now():%Y%m%dT%H%M%S%f}.db"
    else:
        target = Path(wished)
        if not target.is_absolute():
            raise invalid("invalid_path", f"{wished} is not an absolute path")
        if await asyncio.to_thread(target.exists):
            raise ApiError(HTTPStatus.CONFLICT, "exists", f"{target} exists already", "Choose another name.")
    await management.store.backup(target)
    await management.store.audit.add("store.backup", actor=request.actor, details={"path": str(target)})
    size = (await asyncio.to_thread(target.stat)).st_size
    return BackupDone(path=str(target), bytes=size)
