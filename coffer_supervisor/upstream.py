"""What the supervision knows of one upstream, and how that looks to an operator.

Owns the record and its views. Never starts, sends or decides anything.
"""

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from coffer_common import frames, names
from coffer_common.frames import CapabilityType, UpstreamState
from coffer_common.resources import HttpServer, McpServerConfig, StdioServer
from coffer_supervisor.channel import Peer
from coffer_supervisor.core import gate
from coffer_supervisor.core.catalogue import TYPES, Server
from coffer_supervisor.core.lifecycle import Lifecycle
from coffer_supervisor.pending import Pending
from coffer_supervisor.templates import Filled


@dataclass(frozen=True, slots=True)
class UpstreamView:
    """One upstream now. Seconds and bytes; ``server_info`` is raw JSON; ``counts``: type -> (enabled, total)."""

    name: str
    state: UpstreamState
    message: str
    reason: str
    transport: str
    era: str
    revision: str
    server_info: bytes
    worker_pid: int
    upstream_pids: tuple[int, ...]
    started_at: datetime | None
    up_seconds: float | None
    restarts: int
    connections: int
    in_flight: int
    oldest_seconds: float
    oldest_key: str
    rss: int
    loop_lag: float
    last_error: str
    retry_in: float | None
    counts: dict[str, tuple[int, int]]
    stderr: tuple[str, ...]
    missing: str
    queued: int = 0
    projects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CallView:
    """One call in flight. ``state``: ``held`` (no worker to take it yet), ``running`` or ``asking``.
    ``project``: the directory it is served in, where the server is started for each."""

    id: str
    server: str
    type: str
    key: str
    seconds: float
    session: str
    client: str
    state: str
    method: str = ""
    project: str = ""


@dataclass(frozen=True, slots=True)
class CapabilityView:
    """One capability, listed now or known from before."""

    type: CapabilityType
    key: str
    exposed: str
    enabled: bool
    listed: bool


@dataclass(slots=True, eq=False)
class Upstream:
    """The record. ``peer`` is its worker on the channel once one is expected; ``facts`` the last State frame,
    ``beat`` the last Heartbeat, of that worker. ``resolved`` holds secrets, from fork to Configure only."""

    name: str
    config: McpServerConfig
    life: Lifecycle
    peer: Peer | None = None
    resolved: Filled | None = field(default=None, repr=False)
    facts: frames.State | None = None
    known: frames.State | None = None
    beat: frames.Heartbeat | None = None
    started_at: datetime | None = None
    up_since: float | None = None
    last_error: str = ""
    slow: bool = False
    refreshing: bool = False
    remembering: int = 0
    refreshed_at: float = 0.0
    legacy_asked: int = 0
    timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict)

    def gate(self) -> gate.Gate:
        """What a call for it meets now."""
        return gate.gate(self.life, self.facts)

    @property
    def settled(self) -> bool:
        """Whether its first attempt has an outcome, whatever it is."""
        return self.life.state in ("ready", "backoff", "failed", "needs_login", "disabled")

    def missing(self, server: Server | None) -> str:
        """Why its lists are missing or incomplete; empty where they are not."""
        base = None if server is None else server.base("legacy")
        if base is not None:
            return "; ".join(base.left_out)
        if self.life.state == "disabled":
            return ""
        return self.message() or f"it has not listed anything yet ({self.life.state})"

    def message(self) -> str:
        """What there is to say about its state."""
        if self.life.phase == "running" and self.facts is not None:
            return self.facts.message
        return self.life.message

    def retry_in(self, now: float) -> float | None:
        """Seconds until the next attempt in backoff and failed."""
        if self.life.phase == "waiting" and self.life.retry_at is not None:
            return max(0.0, self.life.retry_at - now)
        return self.facts.retry_in if self.life.phase == "running" and self.facts is not None else None

    def view(self, server: Server | None, now: float, calls: Collection[Pending] = ()) -> UpstreamView:
        """The record as an operator sees it at ``now`` (monotonic), with the ``calls`` it has in flight."""
        facts = self.facts or self.known or frames.State(state="stopped")
        beat = self.beat
        alive = self.peer is not None
        oldest = min(calls, key=lambda call: call.started, default=None)
        return UpstreamView(
            name=self.name,
            state=self.life.state,
            message=self.message(),
            reason=self.facts.reason if self.facts is not None else "",
            transport=self.config.url.partition(":")[0] if isinstance(self.config, HttpServer) else "stdio",
            era=facts.era,
            revision=facts.revision,
            server_info=facts.server_info,
            worker_pid=self.life.pid if alive else 0,
            upstream_pids=beat.pids if alive and beat is not None else (),
            started_at=self.started_at if alive else None,
            up_seconds=now - self.up_since if alive and self.up_since is not None else None,
            restarts=self.life.restarts.total + (self.facts.restarts if self.facts is not None else 0),
            connections=beat.connections if alive and beat is not None else 0,
            in_flight=len(calls),
            oldest_seconds=0.0 if oldest is None else now - oldest.started,
            oldest_key="" if oldest is None else oldest.key,
            rss=beat.rss if alive and beat is not None else 0,
            loop_lag=beat.loop_lag if alive and beat is not None else 0.0,
            last_error=self.last_error,
            retry_in=self.retry_in(now),
            counts=_counts(server),
            stderr=self.facts.stderr if self.facts is not None else (),
            missing=self.missing(server),
            queued=beat.queued if alive and beat is not None else 0,
            projects=beat.projects if alive and beat is not None else (),
        )


def _counts(server: Server | None) -> dict[str, tuple[int, int]]:
    base = None if server is None else server.base("legacy")
    if server is None or base is None:
        return {}
    counts: dict[str, tuple[int, int]] = {}
    for type_ in TYPES:
        keys = base.by_type[type_]
        counts[type_] = (sum(server.enabled(type_, key) for key in keys), len(keys))
    return counts


def capabilities(server: Server) -> list[CapabilityView]:
    """What it lists (in its order), then what is only remembered of it."""
    listed: dict[tuple[CapabilityType, str], str] = {}
    for base in server.bases.values():
        for entry in base:
            listed.setdefault((entry.type, entry.key), entry.exposed)
    found = [
        CapabilityView(type_, key, exposed, server.enabled(type_, key), True)
        for (type_, key), exposed in listed.items()
    ]
    for (type_, key), enabled in sorted(server.choices.items()):
        if (type_, key) not in listed:
            found.append(CapabilityView(type_, key, _exposed(server.name, type_, key), enabled, False))
    return found


def _exposed(server: str, type_: CapabilityType, key: str) -> str:
    return names.exposed_uri(server, key) if type_ in ("resource", "template") else names.exposed_name(server, key)


def call_view(call: Pending, type_: str, now: float, config: McpServerConfig | None = None) -> CallView:
    """A call in flight as an operator sees it."""
    state = "held" if call.peer is None else "asking" if call.asks else "running"
    request = call.request
    per_project = isinstance(config, StdioServer) and config.per_project
    return CallView(
        f"c-{call.corr}",
        call.server,
        type_,
        call.key,
        now - call.started,
        call.session,
        request.shown_client,
        state,
        request.method,
        request.caller.cwd if per_project else "",
    )


def utc_now() -> datetime:
    """The wall clock, for what is shown and stored only."""
    return datetime.fromtimestamp(time.time(), UTC)


def needs_restart(before: Any, after: Any) -> bool:
    """Whether a changed configuration concerns the worker (what is merely curated does not)."""
    if type(before) is not type(after):
        return True
    return bool(replace(before, auto_enable=True) != replace(after, auto_enable=True))
