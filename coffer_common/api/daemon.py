"""The daemon itself: how it is, its end, its token, a copy of its store."""

from typing import Literal

from coffer_common.api.shape import Shape


class DaemonStatus(Shape, frozen=True, kw_only=True):
    """``servers`` counts upstreams by state. ``home`` is the folder it serves."""

    version: str
    pid: int
    port: int
    url: str
    started_at: str
    up_seconds: float
    home: str
    servers: dict[str, int] = {}
    clients: int = 0


class Shutdown(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``restarting`` tells connected shims that another daemon follows at once."""

    reason: Literal["stopped", "restarting"] = "stopped"


class Stopping(Shape, frozen=True, kw_only=True):
    stopping: bool
    pid: int


class Rotated(Shape, frozen=True, kw_only=True):
    """The new token stands in ``daemon.json`` only."""

    rotated_at: str
    daemon_json: str


class Backup(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to; None for a name of its own under ``backups/``."""

    path: str | None = None


class BackupDone(Shape, frozen=True, kw_only=True):
    path: str
    bytes: int
