"""The management API ``/api/v1``: what goes over its wire, as msgspec Structs.

Owns the shapes that the daemon writes and the command line reads; ``--json`` prints them as they are, so a
member, once there, keeps its name and meaning. Times are RFC 3339 UTC, durations seconds, sizes bytes. Never
holds a secret, and does no I/O. Importers take every shape from here; the rooms below are the nouns.
"""

from typing import Final, Literal

from coffer_common.api.daemon import (
    Backup,
    BackupDone,
    DaemonStatus,
    Rotated,
    Shutdown,
    Stopping,
)
from coffer_common.api.identity import (
    ClientToken,
    CreateClient,
    CredentialStore,
    CredentialView,
    FileChosen,
    RevealedCredential,
    SetCredential,
)
from coffer_common.api.logins import LoggedOut, LoginStarted, LoginStatus
from coffer_common.api.logs import (
    LOG_TABLES,
    AuditList,
    AuditRow,
    InvocationList,
    InvocationRow,
    LogTable,
    Pruned,
    RetentionList,
    RetentionPolicy,
    SetRetention,
    StatsList,
    StatsRow,
)
from coffer_common.api.ps import (
    CallView,
    ConnectionView,
    Killed,
    Process,
    PsDetail,
    PsList,
    PsRow,
    ServerRemoved,
)
from coffer_common.api.resources import (
    CallOutcome,
    CallTool,
    CapabilityList,
    CapabilityView,
    Count,
    CreateResource,
    LogAppended,
    LogLines,
    PatchResource,
    Removed,
    ResourceList,
    ResourceView,
    ServerStatus,
    SwitchCapability,
    TestServer,
    Unreadable,
)
from coffer_common.api.shape import (
    ErrorBody,
    ErrorDetail,
)

PREFIX: Final = "/api/v1"
ACTOR_HEADER: Final = "X-Coffer-Actor"
VERSION_HEADER: Final = "X-Coffer-Version"
PATH_HEADER: Final = "X-Coffer-Path"
"""The PATH of the caller's own environment, captured when a server is added or its command changes."""

Actor = Literal["cli", "api", "ui", "system"]
SETTLED: Final[frozenset[str]] = frozenset({"ready", "failed", "needs_login", "disabled", "backoff"})
"""States in which waiting for a server's discovery has an outcome."""

__all__ = [
    "ACTOR_HEADER",
    "LOG_TABLES",
    "PATH_HEADER",
    "PREFIX",
    "SETTLED",
    "VERSION_HEADER",
    "Actor",
    "AuditList",
    "AuditRow",
    "Backup",
    "BackupDone",
    "CallOutcome",
    "CallTool",
    "CallView",
    "CapabilityList",
    "CapabilityView",
    "ClientToken",
    "ConnectionView",
    "Count",
    "CreateClient",
    "CreateResource",
    "CredentialStore",
    "CredentialView",
    "DaemonStatus",
    "ErrorBody",
    "ErrorDetail",
    "FileChosen",
    "InvocationList",
    "InvocationRow",
    "Killed",
    "LogAppended",
    "LogLines",
    "LogTable",
    "LoggedOut",
    "LoginStarted",
    "LoginStatus",
    "PatchResource",
    "Process",
    "Pruned",
    "PsDetail",
    "PsList",
    "PsRow",
    "Removed",
    "ResourceList",
    "ResourceView",
    "RetentionList",
    "RetentionPolicy",
    "RevealedCredential",
    "Rotated",
    "ServerRemoved",
    "ServerStatus",
    "SetCredential",
    "SetRetention",
    "Shutdown",
    "StatsList",
    "StatsRow",
    "Stopping",
    "SwitchCapability",
    "TestServer",
    "Unreadable",
]
