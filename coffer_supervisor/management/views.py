"""How stored resources and live upstreams look on the management API's wire.

Owns the turning of one into the other. Pure: what it is given, it shapes; nothing is asked or changed here.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from coffer_common import clock
from coffer_common.api import CallView, CapabilityView, Count, PsRow, ResourceView, ServerStatus
from coffer_common.resources import HttpServer, StdioServer
from coffer_supervisor.store import Resource

if TYPE_CHECKING:
    from coffer_supervisor import upstream


def resource_view(resource: Resource, status: ServerStatus | None = None) -> ResourceView:
    """A stored resource; ``status`` for a server."""
    return ResourceView(
        kind=resource.kind,
        name=resource.name,
        ref=f"{resource.kind}:{resource.name}",
        description=resource.description,
        config=_shown_config(resource.config),
        enabled=resource.enabled,
        created_at=clock.rfc3339(resource.created_at),
        updated_at=clock.rfc3339(resource.updated_at),
        status=status,
    )


def _shown_config(config: Any) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(config)
    shown.pop("token_sha256", None)  # nobody can use it, and nobody needs it
    return shown


def server_status(
    view: "upstream.UpstreamView | None", resource: Resource, calls_24h: int | None = None
) -> ServerStatus:
    """How a registered server is; one that supervision does not know yet is ``stopped`` or ``disabled``."""
    transport = transport_of(resource.config)
    if view is None:
        return ServerStatus(
            state="stopped" if resource.enabled else "disabled", transport=transport, calls_24h=calls_24h
        )
    return ServerStatus(
        state=view.state,
        message=view.message,
        reason=view.reason,
        transport=transport,
        era=view.era,
        revision=view.revision,
        server_info=json_object(view.server_info),
        counts={kind: Count(enabled=on, total=total) for kind, (on, total) in view.counts.items()},
        up_seconds=_rounded(view.up_seconds),
        restarts=view.restarts,
        retry_in=_rounded(view.retry_in),
        last_error=view.last_error,
        missing=view.missing,
        stderr=view.stderr,
        calls_24h=calls_24h,
    )


def transport_of(config: StdioServer | HttpServer) -> str:
    """``stdio``, ``http`` or ``https``."""
    return config.url.partition(":")[0] if isinstance(config, HttpServer) else "stdio"


def json_object(raw: bytes) -> dict[str, Any]:
    """What an upstream said of itself, or nothing where it is no object."""
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def ps_row(view: "upstream.UpstreamView") -> PsRow:
    """One line of ``ps``, without what the kernel knows of its processes."""
    return PsRow(
        name=view.name,
        state=view.state,
        transport=view.transport,
        worker_pid=view.worker_pid or None,
        started_at=None if view.started_at is None else clock.rfc3339(view.started_at),
        up_seconds=_rounded(view.up_seconds),
        restarts=view.restarts,
        connections=view.connections,
        in_flight=view.in_flight,
        oldest_seconds=_rounded(view.oldest_seconds) if view.in_flight else None,
        oldest_key=view.oldest_key,
        rss=view.rss or None,
        loop_lag=_rounded(view.loop_lag),
        last_error=view.last_error,
        retry_in=_rounded(view.retry_in),
        projects=list(view.projects),
    )


def _rounded(seconds: float | None) -> float | None:
    """To the millisecond, which is more than anybody can rely on."""
    return None if seconds is None else round(seconds, 3)


def call_view(call: "upstream.CallView") -> CallView:
    """One call in flight."""
    return CallView(
        id=call.id,
        server=call.server,
        type=call.type,
        key=call.key,
        seconds=round(call.seconds, 3),
        session=call.session,
        client=call.client,
        state=call.state,
        method=call.method,
        project=call.project,
    )


def capability_view(capability: "upstream.CapabilityView") -> CapabilityView:
    """One capability of a server."""
    return CapabilityView(
        type=capability.type,
        key=capability.key,
        exposed=capability.exposed,
        enabled=capability.enabled,
        listed=capability.listed,
    )
