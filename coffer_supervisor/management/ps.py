"""Handlers of ``/ps``: what an operator who debugs a hang needs to see, and the end of one call.

Owns the merging of what supervision, the worker and the kernel each know. Works without the store, and with a
worker that does not answer.
"""

import asyncio
import os
from typing import TYPE_CHECKING, Any

import msgspec

from coffer_common import proctree
from coffer_common.api import ConnectionView, Killed, Process, PsDetail, PsList, PsRow
from coffer_supervisor.management import views
from coffer_supervisor.management.errors import missing
from coffer_supervisor.management.request import Answer, Management, Request
from coffer_supervisor.management.servers import tail

if TYPE_CHECKING:
    from collections.abc import Mapping

_DUMP_SECONDS = 3.0
_STDERR_LINES = 5


class _Masked(msgspec.Struct):
    pid: int
    command: str = ""
    cpu_percent: float | None = None


class _Dump(msgspec.Struct):
    calls: list[Any] = []
    connections: list[ConnectionView] = []
    tasks: list[Any] = []
    tree: list[_Masked] = []
    stderr: list[str] = []


async def list_all(request: Request) -> Answer:
    """Every server with its worker and the processes it started."""
    return PsList(workers=await rows(request.management))


async def rows(management: Management) -> list[PsRow]:
    """The rows of all servers now."""
    rows = [views.ps_row(view) for view in management.supervision.views()]
    pids = [row.worker_pid for row in rows if row.worker_pid]
    known = await asyncio.to_thread(look, pids)
    shown = []
    for row in rows:
        stopped, tree = known.get(row.worker_pid or 0, (False, []))
        own = [process for process in tree if process.depth == 0]
        shown.append(msgspec.structs.replace(row, worker_stopped=stopped, upstreams=own))
    return shown


async def show(request: Request) -> Answer:
    """One server: its calls, its worker's own account, its processes, its last lines of stderr."""
    management = request.management
    view = management.supervision.view(request.name)
    if view is None:
        raise missing(f"server {request.name}", "See what there is with: coffer mcp list")
    row = views.ps_row(view)
    known = await asyncio.to_thread(look, [row.worker_pid] if row.worker_pid else [])
    stopped, tree = known.get(row.worker_pid or 0, (False, []))
    dump, error = await _dump(request, row.worker_pid, stopped)
    # Only the worker knows the secrets that a process may have put into its own command line.
    told = {process.pid: process for process in dump.tree}
    tree = [_with(process, told.get(process.pid)) for process in tree]
    stderr, _ = await asyncio.to_thread(tail, management.home.upstream_log(request.name), _STDERR_LINES)
    return PsDetail(
        worker=msgspec.structs.replace(
            row, worker_stopped=stopped, upstreams=[process for process in tree if process.depth == 0]
        ),
        calls=[views.call_view(call) for call in management.supervision.calls(request.name)],
        tree=tree,
        worker_calls=dump.calls,
        tasks=dump.tasks,
        stderr=stderr or dump.stderr or list(view.stderr),
        dump_error=error,
        connections=dump.connections,
    )


def _with(process: Process, told: _Masked | None) -> Process:
    if told is None:
        return process
    return msgspec.structs.replace(process, command=told.command or process.command, cpu_percent=told.cpu_percent)


async def kill(request: Request) -> Answer:
    """Ends one call: the upstream is told, the client gets an error."""
    call = request.params["id"]
    if not request.management.supervision.kill_call(call):
        raise missing(f"call {call} in flight", "It may have ended by itself; see: coffer ps")
    return Killed(killed=call)


async def _dump(request: Request, pid: int | None, stopped: bool) -> tuple[_Dump, str]:
    if pid is None:
        return _Dump(), "it has no worker"
    if stopped:
        return _Dump(), f"its worker (pid {pid}) is stopped and cannot answer"
    try:
        async with asyncio.timeout(_DUMP_SECONDS):
            raw = await request.management.supervision.dump(request.name)
        return msgspec.json.decode(raw, type=_Dump), ""
    except TimeoutError:
        return _Dump(), f"its worker (pid {pid}) did not answer within {_DUMP_SECONDS:g} s"
    except msgspec.DecodeError:
        return _Dump(), f"its worker (pid {pid}) answered what cannot be read"


def look(workers: list[int]) -> dict[int, tuple[bool, list[Process]]]:
    """By worker: whether it is stopped, and what lives below it, parents first. Blocks for some milliseconds."""
    if not workers:
        return {}
    procs = proctree.snapshot()
    found: dict[int, tuple[bool, list[Process]]] = {}
    for pid in workers:
        worker = procs.get(pid)
        if worker is not None:
            found[pid] = (worker.state == "T", _tree(pid, procs))
    return found


def _tree(root: int, procs: "Mapping[int, proctree.Proc]") -> list[Process]:
    tree: list[Process] = []

    def below(pid: int, depth: int) -> None:
        for child in sorted(proctree.children(pid, procs), key=lambda proc: proc.pid):
            tree.append(_process(child, depth))
            below(child.pid, depth + 1)

    below(root, 0)
    return tree


def _process(proc: proctree.Proc, depth: int) -> Process:
    import psutil  # 3 MB that a daemon nobody looks at does not need

    command, rss, cpu = "", 0, 0.0
    try:
        process = psutil.Process(proc.pid)
        with process.oneshot():
            words = process.cmdline()
            command = _program(words) or process.name()
            rss = process.memory_info().rss
            times = process.cpu_times()
            cpu = times.user + times.system
    except psutil.Error:
        pass  # it has just ended, or belongs to somebody else: what the snapshot knows still stands
    return Process(
        pid=proc.pid,
        ppid=proc.ppid,
        state=proc.state,
        command=command,
        rss=rss,
        cpu_seconds=round(cpu, 3),
        depth=depth,
    )


def _program(words: list[str]) -> str:
    """A program's name without what may be private. One that writes its own title puts all of it in one word."""
    first = words[0] if words else ""
    return os.path.basename(first if os.path.isabs(first) else first.partition(" ")[0])
