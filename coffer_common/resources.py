"""The kinds of resource a person manages, as typed configuration.

Owns the msgspec schema of each kind's ``config`` (what is stored, what the management API takes and
gives, what the command line builds) and the rules a value must meet. Never touches a database, a
secret or a process: a credential's config here is a reference, never the secret itself.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from coffer_common.names import SERVER_NAME_PATTERN

MIB: Final = 1024 * 1024

Kind = Literal["mcp_server", "credential", "client", "group"]
KINDS: Final[tuple[Kind, ...]] = ("mcp_server", "credential", "client", "group")

Isolation = Literal["auto", "session", "shared"]

ResourceName = Annotated[str, Meta(pattern=SERVER_NAME_PATTERN, max_length=32)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one upstream may take. Seconds and bytes; ``None`` switches a call limit off.

    ``idle_seconds`` is reset by every progress message of the call; ``total_seconds`` is not. ``max_rss_bytes`` and
    ``max_processes`` (None: no cap) are for all its processes together, what they started included.
    """

    start_seconds: Annotated[float, Meta(gt=0, le=600)] = 30.0
    idle_seconds: Seconds | None = 120.0
    total_seconds: Seconds | None = 600.0
    answer_seconds: Seconds = 600.0
    rounds: Annotated[int, Meta(ge=1, le=100)] = 10
    in_flight: Annotated[int, Meta(ge=1, le=4096)] = 64
    queue: Annotated[int, Meta(ge=0, le=65_536)] = 256
    line_bytes: Annotated[int, Meta(ge=64 * 1024, le=1024 * MIB)] = 64 * MIB
    max_connections: Annotated[int, Meta(ge=1, le=256)] = 8
    idle_close_seconds: Seconds = 600.0
    max_rss_bytes: Annotated[int, Meta(ge=16 * MIB)] | None = None
    max_processes: Annotated[int, Meta(ge=1, le=65_536)] | None = None


class _McpServer(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="transport",
    omit_defaults=True,
):
    """What both transports of an ``mcp_server`` share.

    ``auto_enable``: whether a capability never seen before is switched on. ``forward_progress``: whether
    progress goes on to the client. ``isolation``: how upstream connections are shared between sessions.
    """

    auto_enable: bool = True
    forward_progress: bool = True
    isolation: Isolation = "auto"
    limits: Limits = Limits()


class StdioServer(_McpServer, frozen=True, kw_only=True, tag="stdio"):
    """An upstream that Coffer starts as a child process.

    ``path`` is the PATH captured when the server was added; ``env`` values may hold ``${reference}``.
    ``cwd`` may start with ``~``; None means the user's home directory. ``per_project``: each directory in which a
    client's shim runs has a connection of its own, started there; ``cwd`` is then for everybody else.
    """

    command: Annotated[str, Meta(min_length=1)]
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    path: str | None = None
    per_project: bool = False


class OAuthClient(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Coffer as a person registered it at a server's authorization server; without ``client_id`` it registers itself.

    ``client_secret`` may hold ``${reference}``. ``issuer``: the one authorization server that is shown the secret;
    empty: that of the first login. ``scope`` takes the place of the scopes that the server names (RFC 6749, 3.3).
    """

    client_id: Annotated[str, Meta(pattern=r"^[\x20-\x7e]*$", max_length=512)] = ""
    client_secret: str = ""
    issuer: Annotated[str, Meta(pattern=r"^(https?://\S+)?$")] = ""
    scope: Annotated[str, Meta(pattern=r"^([!#-\[\]-~]+( [!#-\[\]-~]+)*)?$", max_length=2048)] = ""

    def __post_init__(self) -> None:
        if not self.client_id and (self.client_secret or self.issuer):
            raise ValueError("client_secret and issuer belong to a client_id, and there is none")


class HttpServer(_McpServer, frozen=True, kw_only=True, tag="http"):
    """An upstream at a URL. ``headers`` values may hold ``${reference}``; ``oauth`` is for logins to it."""

    url: Annotated[str, Meta(pattern=r"^https?://\S+$")]
    headers: dict[str, str] = {}
    oauth: OAuthClient = OAuthClient()


McpServerConfig = StdioServer | HttpServer


class CredentialConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a secret is kept and when it last changed (RFC 3339 UTC); never the secret."""

    backend: Literal["keychain", "file"]
    updated_at: str
    length: Annotated[int, Meta(ge=0)] = 0


class ClientConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A downstream identity: SHA-256 (hex) of its token, and what it may reach (None: everything)."""

    token_sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    servers: tuple[ResourceName, ...] | None = None
    groups: tuple[ResourceName, ...] | None = None


class CapabilityPattern(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of a group: which capabilities of which server, by glob; ``description`` replaces a tool's own."""

    server: ResourceName
    type: Literal["tool", "resource", "template", "prompt"] | None = None
    pattern: str = "*"
    description: str | None = None


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named set of servers and capabilities with an endpoint of its own."""

    servers: tuple[ResourceName, ...] = ()
    capabilities: tuple[CapabilityPattern, ...] = ()


CONFIG_TYPES: Final[dict[Kind, Any]] = {
    "mcp_server": McpServerConfig,
    "credential": CredentialConfig,
    "client": ClientConfig,
    "group": GroupConfig,
}
