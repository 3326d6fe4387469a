"""What an operator sees: workers, processes, calls in flight."""

from typing import Any

from coffer_common.api.shape import Shape
from coffer_common.frames import UpstreamState


class Process(Shape, frozen=True, kw_only=True):
    """One process. ``state``: the kernel's letter (``T`` stopped, ``Z`` zombie, ...). ``command``: the program's name,
    with its arguments where the worker could mask what is secret in them. ``depth`` below the worker's own children.
    ``cpu_percent``: since somebody last looked, of one core; None where the worker did not say.
    """

    pid: int
    ppid: int
    state: str
    command: str
    rss: int = 0
    cpu_seconds: float = 0.0
    depth: int = 0
    cpu_percent: float | None = None


class PsRow(Shape, frozen=True, kw_only=True):
    """One worker and its upstream. ``oldest_seconds`` and ``oldest_key``: the call in flight for longest.
    ``worker_stopped``: the worker's process itself is stopped (SIGSTOP). ``projects``: the directories that it has
    connections for, where it is started for each.
    """

    name: str
    state: UpstreamState
    transport: str = ""
    worker_pid: int | None = None
    worker_stopped: bool = False
    upstreams: list[Process] = []
    started_at: str | None = None
    up_seconds: float | None = None
    restarts: int = 0
    connections: int = 0
    in_flight: int = 0
    oldest_seconds: float | None = None
    oldest_key: str = ""
    rss: int | None = None
    loop_lag: float | None = None
    last_error: str = ""
    retry_in: float | None = None
    projects: list[str] = []


class CallView(Shape, frozen=True, kw_only=True):
    """One call in flight; ``id`` is what ``DELETE /ps/calls/{id}`` takes. ``project``: the directory it is served in,
    where the server is started for each."""

    id: str
    server: str
    type: str
    key: str
    seconds: float
    session: str = ""
    client: str = ""
    state: str = ""
    method: str = ""
    project: str = ""


class ServerRemoved(Shape, frozen=True, kw_only=True):
    """The event of ``/events`` for a server that is no longer registered."""

    name: str


class PsList(Shape, frozen=True, kw_only=True):
    workers: list[PsRow]


class ConnectionView(Shape, frozen=True, kw_only=True):
    """One open connection to an upstream. ``session``: whose it is alone; empty for one that serves all, or nobody yet.
    ``idle_seconds`` is None while anything depends on it.
    """

    number: int
    revision: str = ""
    session: str = ""
    project: str = ""
    pids: list[int] = []
    calls: int = 0
    idle_seconds: float | None = None


class PsDetail(Shape, frozen=True, kw_only=True):
    """One server for an operator. ``worker_calls``, ``tasks`` and ``connections`` are the worker's own words;
    ``dump_error`` says why they are missing.
    """

    worker: PsRow
    calls: list[CallView] = []
    tree: list[Process] = []
    worker_calls: list[Any] = []
    tasks: list[Any] = []
    stderr: list[str] = []
    dump_error: str = ""
    connections: list[ConnectionView] = []


class Killed(Shape, frozen=True, kw_only=True):
    killed: str
