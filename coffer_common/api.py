"""The management API ``/api/v1``: what goes over its wire, as msgspec Structs.

Owns the shapes that the daemon writes and the command line reads; ``--json`` prints them as they are, so a
member, once there, keeps its name and meaning. Times are RFC 3339 UTC, durations seconds, sizes bytes. Never
holds a secret, and does no I/O.
"""

from typing import Any, Final, Literal

import msgspec

from coffer_common.frames import CapabilityType, UpstreamState
from coffer_common.resources import Kind

PREFIX: Final = "/api/v1"
ACTOR_HEADER: Final = "X-Coffer-Actor"
VERSION_HEADER: Final = "X-Coffer-Version"
PATH_HEADER: Final = "X-Coffer-Path"
"""The PATH of the caller's own environment, captured when a server is added or its command changes."""

Actor = Literal["cli", "api", "ui", "system"]
LogTable = Literal["audit_log", "mcp_invocations"]
LOG_TABLES: Final[tuple[LogTable, ...]] = ("audit_log", "mcp_invocations")
SETTLED: Final[frozenset[str]] = frozenset({"ready", "failed", "needs_login", "disabled", "backoff"})
"""States in which waiting for a server's discovery has an outcome."""


class _Shape(msgspec.Struct, frozen=True, kw_only=True):
    pass


# ---- errors


class ErrorDetail(_Shape, frozen=True, kw_only=True):
    """``code`` is stable and for programs; ``message`` says what happened, ``hint`` what to do next."""

    code: str
    message: str
    hint: str = ""


class ErrorBody(_Shape, frozen=True, kw_only=True):
    """The one error model: every answer outside 2xx is this."""

    error: ErrorDetail


# ---- resources


class Count(_Shape, frozen=True, kw_only=True):
    """Capabilities of one type: switched on, and listed in all."""

    enabled: int
    total: int


class ServerStatus(_Shape, frozen=True, kw_only=True):
    """How an upstream is now. ``era`` and ``revision`` are empty before it was ever reached; ``retry_in`` seconds
    until the next attempt in ``backoff`` and ``failed``; ``missing`` why its lists are incomplete; ``stderr`` its
    last lines where it failed.
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


class ResourceView(_Shape, frozen=True, kw_only=True):
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


class Unreadable(_Shape, frozen=True, kw_only=True):
    """A stored resource that does not fit its kind's schema, and why; it can be removed."""

    kind: str
    name: str
    reason: str


class ResourceList(_Shape, frozen=True, kw_only=True, omit_defaults=True):
    """``unreadable`` stands only where there are any."""

    resources: list[ResourceView]
    unreadable: list[Unreadable] = []


class CreateResource(_Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``allow_plaintext`` lets values that look like secrets pass into the configuration."""

    kind: Kind
    name: str
    config: dict[str, Any]
    description: str = ""
    enabled: bool = True
    allow_plaintext: bool = False


class PatchResource(_Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change. ``config`` is a JSON merge patch (RFC 7386) of the configuration: null removes a member."""

    config: dict[str, Any] | None = None
    description: str | None = None
    enabled: bool | None = None
    allow_plaintext: bool = False


class Removed(_Shape, frozen=True, kw_only=True, omit_defaults=True):
    """``broken``: what referred to it and cannot work without it; left out where there is nothing."""

    removed: str
    broken: list[str] = []


# ---- servers


class CapabilityView(_Shape, frozen=True, kw_only=True):
    """One capability. ``exposed`` is its name or URI on the aggregate; ``listed``: the upstream has it now."""

    type: CapabilityType
    key: str
    exposed: str
    enabled: bool
    listed: bool


class CapabilityList(_Shape, frozen=True, kw_only=True):
    capabilities: list[CapabilityView]


class SwitchCapability(_Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys, as the upstream spells them, to switch on or off."""

    keys: list[str]


class TestServer(_Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``timeout``: seconds to wait for a discovery in progress; ``fresh``: try again first if it is not ready."""

    __test__ = False  # not a test class, whatever its name suggests to a collector

    timeout: float = 30.0
    fresh: bool = False


class CallTool(_Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``arguments`` go to the tool byte for byte; ``timeout`` seconds in all, None for the server's own limits."""

    tool: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    timeout: float | None = None


class CallOutcome(_Shape, frozen=True, kw_only=True):
    """``result`` where the upstream answered (``isError`` included), else null; ``error``: a JSON-RPC error object."""

    ok: bool
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: msgspec.Raw = msgspec.Raw(b"null")


class LogLines(_Shape, frozen=True, kw_only=True):
    """The last lines of a log, oldest first. ``end`` is where they end in the file: ``?after=`` brings what follows."""

    lines: list[str]
    end: int = 0


# ---- ps


class Process(_Shape, frozen=True, kw_only=True):
    """One process. ``state``: the kernel's letter (``T`` stopped, ``Z`` zombie, ...). ``command``: the program's name,
    with its arguments where the worker could mask what is secret in them. ``depth`` below the worker's own children.
    """

    pid: int
    ppid: int
    state: str
    command: str
    rss: int = 0
    cpu_seconds: float = 0.0
    depth: int = 0


class PsRow(_Shape, frozen=True, kw_only=True):
    """One worker and its upstream. ``oldest_seconds`` and ``oldest_key``: the call in flight for longest.
    ``worker_stopped``: the worker's process itself is stopped (SIGSTOP).
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


class CallView(_Shape, frozen=True, kw_only=True):
    """One call in flight; ``id`` is what ``DELETE /ps/calls/{id}`` takes."""

    id: str
    server: str
    type: str
    key: str
    seconds: float
    session: str = ""
    client: str = ""
    state: str = ""


class ServerRemoved(_Shape, frozen=True, kw_only=True):
    """The event of ``/events`` for a server that is no longer registered."""

    name: str


class PsList(_Shape, frozen=True, kw_only=True):
    workers: list[PsRow]


class PsDetail(_Shape, frozen=True, kw_only=True):
    """One server for an operator. ``worker_calls`` and ``tasks`` are the worker's own words; ``dump_error`` says why
    they are missing.
    """

    worker: PsRow
    calls: list[CallView] = []
    tree: list[Process] = []
    worker_calls: list[Any] = []
    tasks: list[Any] = []
    stderr: list[str] = []
    dump_error: str = ""


class Killed(_Shape, frozen=True, kw_only=True):
    killed: str


# ---- logs


class AuditRow(_Shape, frozen=True, kw_only=True):
    id: int
    when: str
    event: str
    kind: str | None
    name: str | None
    actor: str
    details: dict[str, Any] = {}


class AuditList(_Shape, frozen=True, kw_only=True):
    audit: list[AuditRow]


class InvocationRow(_Shape, frozen=True, kw_only=True):
    """One tool call, resource read or prompt get; never its arguments or result."""

    id: int
    when: str
    server: str
    type: str
    key: str
    duration_seconds: float
    status: str
    error: str | None = None
    session: str | None = None
    client: str | None = None
    trace_id: str | None = None


class InvocationList(_Shape, frozen=True, kw_only=True):
    invocations: list[InvocationRow]


class RetentionPolicy(_Shape, frozen=True, kw_only=True):
    """``days`` None: for ever."""

    table: LogTable
    days: int | None


class RetentionList(_Shape, frozen=True, kw_only=True):
    policies: list[RetentionPolicy]


class SetRetention(_Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    days: int | None


class Pruned(_Shape, frozen=True, kw_only=True):
    """Rows removed, by table."""

    pruned: dict[str, int]


class StatsRow(_Shape, frozen=True, kw_only=True):
    """Calls of one capability since the time asked for. Durations in seconds."""

    server: str
    type: str
    key: str
    calls: int
    errors: int
    p50_seconds: float | None = None
    p95_seconds: float | None = None


class StatsList(_Shape, frozen=True, kw_only=True):
    since: str
    stats: list[StatsRow]


# ---- credentials


class SetCredential(_Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The only shape that carries a secret, inwards."""

    value: str

    def __repr__(self) -> str:
        return "SetCredential(value=***)"


class CredentialView(_Shape, frozen=True, kw_only=True):
    """A reference and its metadata; never the secret. ``used_by``: the servers whose configuration names it."""

    ref: str
    backend: str
    updated_at: str
    length: int
    used_by: list[str] = []


class RevealedCredential(_Shape, frozen=True, kw_only=True):
    """The only shape that carries a secret outwards; each one is in the audit log."""

    ref: str
    value: str

    def __repr__(self) -> str:
        return f"RevealedCredential(ref={self.ref!r}, value=***)"


class CredentialStore(_Shape, frozen=True, kw_only=True):
    """Where secrets are kept. ``path``: the folder of Coffer's own file, where that was chosen. ``usable`` False:
    ``message`` says why, ``hint`` what to do.
    """

    backend: str
    path: str | None = None
    usable: bool = True
    message: str = ""
    hint: str = ""


class FileChosen(_Shape, frozen=True, kw_only=True):
    """Secrets are in the encrypted file from now on. ``moved``: those that were taken over from the keychain;
    ``left``: those it does not give, to be stored again.
    """

    backend: str
    path: str
    moved: list[str] = []
    left: list[str] = []


# ---- clients


class ClientToken(_Shape, frozen=True, kw_only=True):
    """A client's token, shown this once: only its hash is kept."""

    client: ResourceView
    token: str

    def __repr__(self) -> str:
        return f"ClientToken(client={self.client.name!r}, token=***)"


class CreateClient(_Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A downstream identity. ``servers`` and ``groups``: what it may reach; None for all of them."""

    name: str
    servers: list[str] | None = None
    groups: list[str] | None = None
    description: str = ""


# ---- the daemon


class DaemonStatus(_Shape, frozen=True, kw_only=True):
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


class Shutdown(_Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``restarting`` tells connected shims that another daemon follows at once."""

    reason: Literal["stopped", "restarting"] = "stopped"


class Stopping(_Shape, frozen=True, kw_only=True):
    stopping: bool
    pid: int


class Rotated(_Shape, frozen=True, kw_only=True):
    """The new token stands in ``daemon.json`` only."""

    rotated_at: str
    daemon_json: str


class Backup(_Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to; None for a name of its own under ``backups/``."""

    path: str | None = None


class BackupDone(_Shape, frozen=True, kw_only=True):
    path: str
    bytes: int
