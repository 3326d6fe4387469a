"""The management API's one flat table: method, path, who may, the handler, and the shapes in and out.

Owns the paths. A path is added here or it does not exist; what stands here is also what ``openapi.json`` says.
"""

import re
from dataclasses import dataclass
from typing import Any, Final, Literal

from coffer_common import api
from coffer_common.api import PREFIX
from coffer_common.resources import MIB
from coffer_supervisor.management import (
    clients,
    credentials,
    daemon,
    events,
    exposition,
    logins,
    logs,
    openapi,
    ps,
    queries,
    resources,
    servers,
)
from coffer_supervisor.management.queries import Query
from coffer_supervisor.management.request import Handler

Permission = Literal["open", "token"]
"""Over TCP: ``open`` needs no token (the endpoint lets it through), ``token`` needs the daemon's. The socket in
``run/`` belongs to the user alone and asks for neither."""

_BODY: Final = MIB
_CALL_BODY: Final = 64 * MIB
_SERVER: Final = "/resources/mcp_server/{name}"


@dataclass(frozen=True, slots=True)
class Route:
    """One line of the table. ``takes``: the body's shape, None for no body; ``gives``: the answer's, or its media
    type; ``statuses``: what a success may be; ``body_limit`` in bytes.
    """

    method: str
    path: str
    handler: Handler
    gives: type | str
    takes: type | None
    query: tuple[Query, ...]
    statuses: tuple[int, ...]
    permission: Permission
    body_limit: int
    pattern: re.Pattern[str]


def _route(
    method: str,
    path: str,
    handler: Handler,
    gives: Any,
    takes: Any = None,
    *,
    query: tuple[Query, ...] = (),
    statuses: tuple[int, ...] = (200,),
    permission: Permission = "token",
    body: int = _BODY,
    prefix: str = PREFIX,
) -> Route:
    pattern = re.compile(re.escape(prefix) + re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))
    return Route(method, prefix + path, handler, gives, takes, query, statuses, permission, body, pattern)


ROUTES: Final[tuple[Route, ...]] = (
    _route("GET", "/daemon/status", daemon.status, api.DaemonStatus, permission="open"),
    _route("POST", "/daemon/shutdown", daemon.shutdown, api.Stopping, api.Shutdown, statuses=(202,)),
    _route("POST", "/daemon/rotate-token", daemon.rotate_token, api.Rotated),
    _route("POST", "/daemon/backup", daemon.backup, api.BackupDone, api.Backup),
    # The servers' own paths stand before those of every kind: the first match wins.
    _route("GET", f"{_SERVER}/capabilities", servers.capabilities, api.CapabilityList, query=queries.CAPABILITIES),
    _route(
        "POST",
        f"{_SERVER}/capabilities/{{type}}/enable",
        servers.enable_capability,
        api.CapabilityList,
        api.SwitchCapability,
    ),
    _route(
        "POST",
        f"{_SERVER}/capabilities/{{type}}/disable",
        servers.disable_capability,
        api.CapabilityList,
        api.SwitchCapability,
    ),
    _route("POST", f"{_SERVER}/refresh", servers.refresh, api.ResourceView),
    _route("POST", f"{_SERVER}/test", servers.test, api.ResourceView, api.TestServer),
    _route("POST", f"{_SERVER}/restart", servers.restart, api.ResourceView),
    _route("POST", f"{_SERVER}/login", logins.begin, api.LoginStarted),
    _route("GET", f"{_SERVER}/login/{{login}}", logins.wait, api.LoginStatus, query=queries.LOGIN),
    _route("POST", f"{_SERVER}/logout", logins.logout, api.LoggedOut),
    _route("POST", f"{_SERVER}/call", servers.call, api.CallOutcome, api.CallTool, body=_CALL_BODY),
    _route(
        "GET", f"{_SERVER}/invocations", logs.server_invocations, api.InvocationList, query=queries.SERVER_INVOCATIONS
    ),
    _route("GET", f"{_SERVER}/logs", servers.logs, api.LogLines, query=queries.LOG_LINES),
    _route("GET", "/resources", resources.list_all, api.ResourceList, query=queries.RESOURCES),
    _route("POST", "/resources", resources.create, api.ResourceView, api.CreateResource, statuses=(201,)),
    _route("GET", "/resources/{kind}/{name}", resources.get, api.ResourceView),
    _route("PATCH", "/resources/{kind}/{name}", resources.patch, api.ResourceView, api.PatchResource),
    _route("DELETE", "/resources/{kind}/{name}", resources.delete, api.Removed, query=queries.FORCE),
    _route("POST", "/resources/{kind}/{name}/enable", resources.enable, api.ResourceView),
    _route("POST", "/resources/{kind}/{name}/disable", resources.disable, api.ResourceView),
    _route("POST", "/clients", clients.create, api.ClientToken, api.CreateClient, statuses=(201,)),
    _route("POST", "/clients/{name}/rotate", clients.rotate, api.ClientToken),
    _route("GET", "/ps", ps.list_all, api.PsList),
    _route("GET", "/ps/{name}", ps.show, api.PsDetail),
    _route("DELETE", "/ps/calls/{id}", ps.kill, api.Killed),
    _route("GET", "/events", events.follow, "text/event-stream", query=queries.EVENTS),
    _route("GET", "/credential-store", credentials.store, api.CredentialStore),
    _route("POST", "/credential-store/use-file", credentials.use_file, api.FileChosen),
    _route("GET", "/credentials/{ref}", credentials.get, api.CredentialView),
    _route("PUT", "/credentials/{ref}", credentials.put, api.CredentialView, api.SetCredential, statuses=(200, 201)),
    _route("DELETE", "/credentials/{ref}", credentials.delete, api.Removed, query=queries.FORCE),
    _route("POST", "/credentials/{ref}/reveal", credentials.reveal, api.RevealedCredential),
    _route("GET", "/audit", logs.audit, api.AuditList, query=queries.AUDIT),
    _route("GET", "/invocations", logs.invocations, api.InvocationList, query=queries.INVOCATIONS),
    _route("GET", "/retention/policies", logs.policies, api.RetentionList),
    _route("GET", "/retention/policies/{table}", logs.policy, api.RetentionPolicy),
    _route("PATCH", "/retention/policies/{table}", logs.set_policy, api.RetentionPolicy, api.SetRetention),
    _route("POST", "/retention/prune", logs.prune, api.Pruned),
    _route("GET", "/stats", logs.stats, api.StatsList, query=queries.STATS),
    _route("GET", "/openapi.json", openapi.show, "application/json"),
    _route("GET", "/metrics", exposition.show, "text/plain", prefix=""),
)

OPEN_PATHS: Final = frozenset(route.path for route in ROUTES if route.permission == "open")
