"""The messages between supervisor and worker, and their encoding. ``docs/frames.md`` explains each field and order.

Owns the vocabulary of the channel: one msgpack header (a tagged, array-like Struct), then raw payload parts.
Never decodes a payload part. Fields added later go last, with a default; ``PROTOCOL_VERSION`` goes up when
that is not enough. One long room on purpose: it is read beside that page, in the same order.
"""

import hashlib
from typing import Final, Literal

import msgspec

from coffer_common.protocol import MODERN_REVISIONS, Era
from coffer_common.resources import McpServerConfig

PROTOCOL_VERSION: Final = 1
LOGIN_REF: Final = "oauth"  # the one secret that an upstream's worker may load and store

Naming = Literal["prefixed", "raw"]
CapabilityType = Literal["tool", "resource", "template", "prompt"]
UpstreamState = Literal["disabled", "stopped", "starting", "ready", "backoff", "failed", "needs_login", "stopping"]


class _Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


class Caller(_Frame, frozen=True):
    """On whose behalf a frame travels. ``session`` is unique among live sessions; for a modern HTTP client, which
    has none, it stands for (principal, endpoint). ``capabilities`` and ``client_info`` are the client's own, raw JSON.
    ``cwd``: the directory in which its shim runs; empty over HTTP.
    """

    session: str
    principal: str
    endpoint: str
    naming: Naming
    revision: str
    wire: Literal["http", "shim"]
    capabilities: bytes = b"{}"
    client_info: bytes = b"{}"
    cwd: str = ""

    @property
    def era(self) -> Era:
        """The era of the client's side."""
        return "modern" if self.revision in MODERN_REVISIONS else "legacy"


# ---- from the supervisor


class Configure(_Frame, frozen=True, tag="configure"):
    """Once, after Hello: all a worker needs. ``config`` has its secrets resolved; it is kept in memory only.

    ``secrets``: those that were filled in, by themselves, so that no log or error of the worker's shows one.
    ``seen``: the client seen last, for one like which the first connection is prepared.
    """

    config: McpServerConfig
    run: str
    coffer_version: str
    logs_dir: str
    records_dir: str
    era_hint: Literal["", "legacy", "modern"] = ""
    secrets: tuple[str, ...] = ()
    seen: Caller | None = None


class Call(_Frame, frozen=True, tag="call"):
    """One request for the upstream; part 2 is its params. ``key`` is the upstream's own name or URI.

    ``budget``: seconds the caller still waits at most (None: the server's limits alone). ``headers``: the
    ``mcp-param-*`` headers of a modern HTTP client (lower case), to be checked against the arguments.
    """

    corr: int
    caller: Caller
    method: str
    key: str
    budget: float | None = None
    headers: dict[str, str] = {}
    log_level: str = ""


class Cancel(_Frame, frozen=True, tag="cancel"):
    """Ends a call; no Reply or Fail follows that the supervisor would wait for. May overtake its Call."""

    corr: int
    reason: str = ""


class Answer(_Frame, frozen=True, tag="answer"):
    """The client's answer to an Ask; part 2 is the result, or the error object where ``error``."""

    ask: int
    error: bool = False


class Subscribe(_Frame, frozen=True, tag="subscribe"):
    """``subscriber`` wants ``resources/updated`` of the upstream's ``uri``; answered by Reply ``{}`` or Fail."""

    corr: int
    caller: Caller
    subscriber: str
    uri: str


class Unsubscribe(_Frame, frozen=True, tag="unsubscribe"):
    """The reverse; an empty ``uri`` means all of the subscriber's. ``corr`` 0: no answer is wanted."""

    corr: int
    subscriber: str
    uri: str = ""


class CloseSession(_Frame, frozen=True, tag="close-session"):
    """A session has ended: its calls are cancelled, its connections closed, its subscriptions dropped."""

    session: str
    reason: str = ""


class Refresh(_Frame, frozen=True, tag="refresh"):
    """Read the lists again (of the connection of ``era``, opened if need be); then Catalogue frames, then Reply."""

    corr: int
    era: Literal["", "legacy", "modern"] = ""


class SetLevel(_Frame, frozen=True, tag="set-level"):
    """The log level a session wants from now on (pass-through endpoint)."""

    caller: Caller
    level: str


class RootsChanged(_Frame, frozen=True, tag="roots-changed"):
    """The client said ``notifications/roots/list_changed``."""

    session: str


class Dump(_Frame, frozen=True, tag="dump"):
    """Asks for the worker's calls, tasks, stacks and process tree; answered by Dumped."""

    corr: int


class Stop(_Frame, frozen=True, tag="stop"):
    """No new calls; open ones may end within ``drain`` seconds; then the upstream is ended and the worker exits 0."""

    drain: float
    reason: str


class Secret(_Frame, frozen=True, tag="secret"):
    """Answer to LoadSecret or acknowledgement of StoreSecret. ``changed``: nothing was stored, since what was to be
    replaced is not there any more."""

    corr: int
    value: str = ""
    error: str = ""
    changed: bool = False


class LoginCode(_Frame, frozen=True, tag="login-code"):
    """What the browser brought back to the callback, for the login ``login``."""

    login: str
    code: str
    state: str
    issuer: str = ""
    error: str = ""


class Login(_Frame, frozen=True, tag="login"):
    """Begin a login: LoginUrl follows, and LoginResult at the end. ``metadata_url``: where Coffer describes itself to
    authorization servers that look such a description up; empty where there is none."""

    login: str
    redirect_uri: str
    metadata_url: str = ""


# ---- from the worker


class Hello(_Frame, frozen=True, tag="hello"):
    """First on both sockets. ``secret`` is the one-time secret the supervisor gave this incarnation."""

    protocol: int
    name: str
    incarnation: int
    pid: int
    secret: str


class State(_Frame, frozen=True, tag="state"):
    """The upstream's state and what is known of it. ``server_info``, ``capabilities`` are raw JSON as the upstream
    declared them; ``retry_in`` seconds in backoff and failed; ``stderr`` its last lines where it failed.
    """

    state: UpstreamState
    message: str = ""
    reason: str = ""
    retry_in: float | None = None
    era: Literal["", "legacy", "modern"] = ""
    revision: str = ""
    server_info: bytes = b"{}"
    capabilities: bytes = b"{}"
    instructions: str = ""
    stderr: tuple[str, ...] = ()
    restarts: int = 0


class Heartbeat(_Frame, frozen=True, tag="heartbeat"):
    """Every second from the control thread. Seconds and bytes; ``pids`` are the upstream's own processes,
    ``projects`` the directories that it has connections for, where it is started for each.
    """

    in_flight: int
    oldest: float
    oldest_key: str
    connections: int
    bytes_in: int
    bytes_out: int
    rss: int
    loop_lag: float
    cpu_seconds: float
    queued: int = 0
    pids: tuple[int, ...] = ()
    projects: tuple[str, ...] = ()


class CatalogueEntry(_Frame, frozen=True):
    """One capability. ``key`` is the upstream's own name or URI (template), ``exposed`` the aggregate's.

    The four raw JSON forms; a None stands for the one before it, ``b""`` for "not listed in this form".
    """

    type: CapabilityType
    key: str
    exposed: str
    raw_legacy: bytes
    prefixed_legacy: bytes | None = None
    raw_modern: bytes | None = None
    prefixed_modern: bytes | None = None

    def form(self, naming: Naming, era: Era) -> bytes:
        """The entry's bytes for one naming and era; empty where it is not listed there."""
        prefixed_legacy = self.raw_legacy if self.prefixed_legacy is None else self.prefixed_legacy
        if era == "legacy":
            return self.raw_legacy if naming == "raw" else prefixed_legacy
        if naming == "raw":
            return self.raw_legacy if self.raw_modern is None else self.raw_modern
        return prefixed_legacy if self.prefixed_modern is None else self.prefixed_modern


class Catalogue(_Frame, frozen=True, tag="catalogue"):
    """A complete catalogue; part 2 is a msgpack array of CatalogueEntry. ``session`` non-empty: it overlays only
    that session. ``ttl_ms`` -1: the upstream said nothing. ``left_out``: what is not listed, and why.
    ``announced``: kinds (``tools``, ``resources``, ``prompts``) whose change the upstream itself announced; clients
    are told even where nothing differs. ``unread``: types that could not be read, and were not before by this worker:
    what was known of them stands. ``same``: nothing differs from what this worker sent last; no entry comes with it.
    """

    era: Era
    session: str = ""
    ttl_ms: int = -1
    scope: Literal["private", "public"] = "private"
    left_out: tuple[str, ...] = ()
    announced: tuple[str, ...] = ()
    unread: tuple[CapabilityType, ...] = ()
    same: bool = False


class Progress(_Frame, frozen=True, tag="progress"):
    """Part 2: the params of ``notifications/progress`` with the client's own token."""

    corr: int


class Reply(_Frame, frozen=True, tag="reply"):
    """Part 2: the result in the shape of the client's revision. ``error``: a tool's result says ``isError``."""

    corr: int
    error: bool = False


class Fail(_Frame, frozen=True, tag="fail"):
    """Part 2: the JSON-RPC error object. ``reason`` is empty for the upstream's own errors, else names one of
    ``coffer_common.errors``. ``status``: of a modern HTTP answer.
    """

    corr: int
    code: int
    message: str
    reason: str = ""
    status: int = 200


class Ask(_Frame, frozen=True, tag="ask"):
    """An upstream's request to the client of call ``corr`` (0: to ``session``, outside any call); part 2 is its params
    in the client's shape."""

    ask: int
    corr: int
    session: str
    method: str


class Paused(_Frame, frozen=True, tag="paused"):
    """The upstream closed the event stream of a call and will go on with it when it is asked for the rest: a client
    that can take up its own stream again may be sent away likewise.
    """

    corr: int


class Withdraw(_Frame, frozen=True, tag="withdraw"):
    """The upstream cancelled its ask."""

    ask: int
    reason: str = ""


class Notify(_Frame, frozen=True, tag="notify"):
    """A notification; part 2 is its params with the upstream's own URIs and names.

    ``corr`` non-zero: it belongs on that call's stream. Else to ``subscribers`` (of resources/updated) and
    ``sessions``; where both are empty, to everyone concerned.
    """

    method: str
    corr: int = 0
    sessions: tuple[str, ...] = ()
    subscribers: tuple[str, ...] = ()
    uri: str = ""


class Dumped(_Frame, frozen=True, tag="dumped"):
    """Part 2: JSON ``{"calls": [...], "connections": [...], "tasks": [...], "tree": [...], "stderr": [...]}``."""

    corr: int


class LoadSecret(_Frame, frozen=True, tag="load-secret"):
    """Asks for a stored secret of this upstream (OAuth tokens)."""

    corr: int
    ref: str


class StoreSecret(_Frame, frozen=True, tag="store-secret"):
    """Stores one; acknowledged by Secret. ``over``: only where this is still stored, as ``secret_digest`` has it (of an
    empty text: nothing); empty: whatever is stored."""

    corr: int
    ref: str
    value: str
    over: str = ""


class LoginUrl(_Frame, frozen=True, tag="login-url"):
    """Where the person must go to log in."""

    login: str
    url: str


class LoginResult(_Frame, frozen=True, tag="login-result"):
    """How a login ended; an empty ``error`` means well."""

    login: str
    error: str = ""


FromSupervisor = (
    Configure
    | Call
    | Cancel
    | Answer
    | Subscribe
    | Unsubscribe
    | CloseSession
    | Refresh
    | SetLevel
    | RootsChanged
    | Dump
    | Stop
    | Secret
    | LoginCode
    | Login
)
FromWorker = (
    Hello
    | State
    | Heartbeat
    | Catalogue
    | Progress
    | Reply
    | Fail
    | Ask
    | Paused
    | Withdraw
    | Notify
    | Dumped
    | LoadSecret
    | StoreSecret
    | LoginUrl
    | LoginResult
)

# What travels on the control pair, so that it never waits behind bulk. All else is bulk.
CONTROL: Final = (
    Configure,
    Cancel,
    CloseSession,
    Refresh,
    Dump,
    Stop,
    Secret,
    LoginCode,
    Login,
    State,
    Heartbeat,
    Dumped,
    LoginResult,
)


def secret_digest(value: str) -> str:
    """Stands for a stored secret where two ends compare what they know of it: SHA-256, hex."""
    return hashlib.sha256(value.encode()).hexdigest()


encode: Final = msgspec.msgpack.Encoder().encode
decode_from_supervisor: Final = msgspec.msgpack.Decoder(FromSupervisor).decode
decode_from_worker: Final = msgspec.msgpack.Decoder(FromWorker).decode
encode_entries: Final = encode
decode_entries: Final = msgspec.msgpack.Decoder(list[CatalogueEntry]).decode
