"""``GET /metrics``: the daemon's figures in Prometheus' text format.

Owns ``prometheus_client`` and the metrics' names, which stay as they are. All is gathered when it is asked for, into a
registry of its own: nothing is kept up to date meanwhile but ``core.tally``, and the library is loaded by the first who
asks. Never names a session, a client or an argument.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, get_args

from coffer_common.frames import UpstreamState
from coffer_common.version import VERSION
from coffer_supervisor.management import ps
from coffer_supervisor.management.request import Answer, Document, Management, Request

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from coffer_supervisor.core.tally import Tally

_STATES: Final = get_args(UpstreamState)


@dataclass(frozen=True, slots=True)
class Gauge:
    """One upstream's figures now; sizes in bytes, times in seconds."""

    name: str
    state: UpstreamState
    in_flight: int
    held: int
    queued: int
    oldest: float
    connections: int
    restarts: int
    worker_rss: int
    upstream_rss: int
    processes: int
    loop_lag: float


@dataclass(frozen=True, slots=True)
class Daemon:
    """The daemon's own figures."""

    sessions: int
    log_queued: int
    log_dropped: int
    frames_dropped: int


async def show(request: Request) -> Answer:
    """Calls, errors, latency, in flight, restarts, queues and memory, for Prometheus."""
    gauges, daemon = await _gather(request.management)
    return Document(*await asyncio.to_thread(_rendered, request.management.tally, gauges, daemon))


async def _gather(management: Management) -> tuple[list[Gauge], Daemon]:
    views = management.supervision.views()
    known = await asyncio.to_thread(ps.look, [view.worker_pid for view in views if view.worker_pid])
    gauges = []
    for view in views:
        _, tree = known.get(view.worker_pid, (False, []))
        held = sum(call.state == "held" for call in management.supervision.calls(view.name))
        gauges.append(
            Gauge(
                name=view.name,
                state=view.state,
                in_flight=view.in_flight,
                held=held,
                queued=view.queued,
                oldest=view.oldest_seconds,
                connections=view.connections,
                restarts=view.restarts,
                worker_rss=view.rss,
                upstream_rss=sum(process.rss for process in tree),
                processes=len(tree),
                loop_lag=view.loop_lag,
            )
        )
    log = management.store.invocations
    return gauges, Daemon(management.clients(), log.queued, log.dropped, management.router.frames_dropped)


def _rendered(tally: "Tally", gauges: list[Gauge], daemon: Daemon) -> tuple[str, bytes]:
    """Media type and text. Blocks: some milliseconds, and the library's import the first time."""
    from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest

    class _Collector:
        def collect(self) -> "Iterator[Metric]":
            yield from _calls(tally)
            yield from _upstreams(gauges)
            yield from _own(daemon)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector())
    return CONTENT_TYPE_PLAIN_0_0_4, generate_latest(registry)


def _calls(tally: "Tally") -> "Iterator[Metric]":
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    labels = ["server", "type"]
    calls = CounterMetricFamily("coffer_calls", "Calls that ended, by outcome.", labels=[*labels, "status"])
    errors = CounterMetricFamily("coffer_call_errors", "Calls that ended other than ok.", labels=labels)
    took = HistogramMetricFamily("coffer_call_duration_seconds", "From arrival to answer.", labels=labels)
    for (server, type_), found in sorted(tally.figures.items()):
        for status, count in sorted(found.statuses.items()):
            calls.add_metric([server, type_, status], count)
        errors.add_metric([server, type_], found.calls - found.statuses.get("ok", 0))
        took.add_metric([server, type_], found.cumulated(), found.seconds)
    yield from (calls, errors, took)


def _upstreams(gauges: list[Gauge]) -> "Iterator[Metric]":
    from prometheus_client.core import GaugeMetricFamily

    state = GaugeMetricFamily("coffer_upstream_state", "1 for the state it is in.", labels=["server", "state"])
    for one in gauges:
        for name in _STATES:
            state.add_metric([one.name, name], float(one.state == name))
    yield state
    for name, help_, member in (
        ("coffer_calls_in_flight", "Calls without an answer yet.", "in_flight"),
        ("coffer_calls_held", "Those of them that wait for a worker.", "held"),
        ("coffer_calls_queued", "Those of them that wait in the worker for room.", "queued"),
        ("coffer_oldest_call_seconds", "How long the oldest of them has waited.", "oldest"),
        ("coffer_upstream_connections", "Open connections to the upstream.", "connections"),
        ("coffer_upstream_restarts", "Restarts of worker and upstream, as coffer ps counts them.", "restarts"),
        ("coffer_worker_resident_bytes", "Memory of the worker.", "worker_rss"),
        ("coffer_upstream_resident_bytes", "Memory of the upstream's processes together.", "upstream_rss"),
        ("coffer_upstream_processes", "Processes that the upstream consists of.", "processes"),
        ("coffer_worker_loop_lag_seconds", "How late the worker's loop is.", "loop_lag"),
    ):
        family = GaugeMetricFamily(name, help_, labels=["server"])
        for one in gauges:
            family.add_metric([one.name], float(getattr(one, member)))
        yield family


def _own(daemon: Daemon) -> "Iterator[Metric]":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    yield InfoMetricFamily("coffer_daemon", "The daemon that answers.", value={"version": VERSION})
    yield GaugeMetricFamily("coffer_sessions", "Clients that are connected.", value=daemon.sessions)
    queued = "Rows of the invocation log that are not written yet."
    yield GaugeMetricFamily("coffer_invocations_queued", queued, value=daemon.log_queued)
    lost = "Rows of the invocation log that were lost."
    yield CounterMetricFamily("coffer_invocations_dropped", lost, value=daemon.log_dropped)
    dropped = "Frames that nobody waited for any more."
    yield CounterMetricFamily("coffer_frames_dropped", dropped, value=daemon.frames_dropped)
