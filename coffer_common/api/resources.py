"""Resources of every kind, and what only a server has: capabilities, a test, a call, its log."""

from typing import Annotated, Any

import msgspec

from coffer_common.api.shape import Shape
from coffer_common.frames import CapabilityType, UpstreamState
from coffer_common.resources import Kind


class Count(Shape, frozen=True, kw_only=True):
    """Capabilities of one type: switched on, and listed in all."""

    enabled: int
    total: int


class ServerStatus(Shape, frozen=True, kw_only=True):
    """How an upstream is now. ``era`` and ``revision`` are empty before it was ever reached; ``retry_in`` seconds
    until the next attempt in ``backoff`` and ``failed``; ``missing`` what there is to say about its lists;
    ``stderr`` its last lines where it failed.
    """

    state: UpstreamState
    message: str = ""
    reason: str = ""
    transport: str = ""
    era: str = ""
    revision: str = ""
    server_info: dict[str, Any] = {}
    counts: dict[str, Count] = {}
    up_seconds: float | None = None
    restarts: int = 0
    retry_in: float | None = None
    last_error: str = ""
    missing: str = ""
    stderr: tuple[str, ...] = ()
    calls_24h: int | None = None


class ResourceView(Shape, frozen=True, kw_only=True):
    """One managed thing. ``ref`` is ``kind:name``; ``status`` stands on ``mcp_server`` only."""

    kind: Kind
    name: str
    ref: str
    description: str
    config: dict[str, Any]
    enabled: bool
    created_at: str
    updated_at: str
    status: ServerStatus | None = None


class Unreadable(Shape, frozen=True, kw_only=True):
    """A stored resource that does not fit its kind's schema, and why; it can be removed."""

    kind: str
    name: str
    reason: str


class ResourceList(Shape, frozen=True, kw_only=True, omit_defaults=True):
    """``unreadable`` stands only where there are any."""

    resources: list[ResourceView]
    unreadable: list[Unreadable] = []


class CreateResource(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``allow_plaintext`` lets values that look like secrets pass into the configuration."""

    kind: Kind
    name: str
    config: dict[str, Any]
    description: str = ""
    enabled: bool = True
    allow_plaintext: bool = False


class PatchResource(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change. ``config`` is a JSON merge patch (RFC 7386) of the configuration: null removes a member."""

    config: dict[str, Any] | None = None
    description: str | None = None
    enabled: bool | None = None
    allow_plaintext: bool = False


class Removed(Shape, frozen=True, kw_only=True, omit_defaults=True):
    """``broken``: what referred to it and cannot work without it; left out where there is nothing."""

    removed: str
    broken: list[str] = []


class CapabilityView(Shape, frozen=True, kw_only=True):
    """One capability. ``exposed`` is its name or URI on the aggregate; ``listed``: the upstream has it now."""

    type: CapabilityType
    key: str
    exposed: str
    enabled: bool
    listed: bool


class CapabilityList(Shape, frozen=True, kw_only=True):
    capabilities: list[CapabilityView]


class SwitchCapability(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys, as the upstream spells them, to switch on or off."""

    keys: list[str]


class TestServer(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``timeout``: seconds to wait for a discovery in progress; ``fresh``: try again first if it is not ready."""

    __test__ = False  # not a test class, whatever its name suggests to a collector

    timeout: float = 30.0
    fresh: bool = False


class CallTool(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``arguments`` go to the tool byte for byte; ``timeout`` seconds in all, None for the server's own limits."""

    tool: str
    arguments: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})] = msgspec.field(
        default_factory=lambda: msgspec.Raw(b"{}")
    )
    timeout: float | None = None


class CallOutcome(Shape, frozen=True, kw_only=True):
    """``result`` where the upstream answered (``isError`` included), else null; ``error``: a JSON-RPC error object."""

    ok: bool
    result: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    error: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))


class LogLines(Shape, frozen=True, kw_only=True):
    """The last lines of a log, oldest first. ``end`` is where they end in the file: ``?after=`` brings what follows."""

    lines: list[str]
    end: int = 0


class LogAppended(Shape, frozen=True, kw_only=True):
    """The event of ``/events`` for new lines of a server's log; ``end`` as in ``LogLines``."""

    server: str
    lines: list[str]
    end: int
