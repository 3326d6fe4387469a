"""The management API's one flat table: method, path, who may, and the handler.

Owns the paths. A path is added here or it does not exist.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

from coffer_common.api import PREFIX
from coffer_common.resources import MIB
from coffer_supervisor.management import clients, credentials, daemon, events, logs, ps, resources, servers
from coffer_supervisor.management.request import Handler

Permission = Literal["open", "token"]
"""Over TCP: ``open`` needs no token (the endpoint lets it through), ``token`` needs the daemon's. The socket in
``run/`` belongs to the user alone and asks for neither."""

_BODY: Final = MIB
_CALL_BODY: Final = 64 * MIB
_SERVER: Final = "/resources/mcp_server/{name}"


@dataclass(frozen=True, slots=True)
class Route:
    """One line of the table. ``body_limit`` in bytes."""

    method: str
    path: str
    permission: Permission
    handler: Handler
    pattern: re.Pattern[str]
    body_limit: int


def _route(method: str, path: str, handler: Handler, *, permission: Permission = "token", body: int = _BODY) -> Route:
    pattern = re.compile(PREFIX + re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))
    return Route(method, path, permission, handler, pattern, body)


ROUTES: Final[tuple[Route, ...]] = (
    _route("GET", "/daemon/status", daemon.status, permission="open"),
    _route("POST", "/daemon/shutdown", daemon.shutdown),
    _route("POST", "/daemon/rotate-token", daemon.rotate_token),
    _route("POST", "/daemon/backup", daemon.backup),
    # The servers' own paths stand before those of every kind: the first match wins.
    _route("GET", f"{_SERVER}/capabilities", servers.capabilities),
    _route("POST", f"{_SERVER}/capabilities/{{type}}/enable", servers.enable_capability),
    _route("POST", f"{_SERVER}/capabilities/{{type}}/disable", servers.disable_capability),
    _route("POST", f"{_SERVER}/refresh", servers.refresh),
    _route("POST", f"{_SERVER}/test", servers.test),
    _route("POST", f"{_SERVER}/restart", servers.restart),
    _route("POST", f"{_SERVER}/call", servers.call, body=_CALL_BODY),
    _route("GET", f"{_SERVER}/invocations", logs.server_invocations),
    _route("GET", f"{_SERVER}/logs", servers.logs),
    _route("GET", "/resources", resources.list_all),
    _route("POST", "/resources", resources.create),
    _route("GET", "/resources/{kind}/{name}", resources.get),
    _route("PATCH", "/resources/{kind}/{name}", resources.patch),
    _route("DELETE", "/resources/{kind}/{name}", resources.delete),
    _route("POST", "/resources/{kind}/{name}/enable", resources.enable),
    _route("POST", "/resources/{kind}/{name}/disable", resources.disable),
    _route("POST", "/clients", clients.create),
    _route("POST", "/clients/{name}/rotate", clients.rotate),
    _route("GET", "/ps", ps.list_all),
    _route("GET", "/ps/{name}", ps.show),
    _route("DELETE", "/ps/calls/{id}", ps.kill),
    _route("GET", "/events", events.follow),
    _route("GET", "/credential-store", credentials.store),
    _route("POST", "/credential-store/use-file", credentials.use_file),
    _route("GET", "/credentials/{ref}", credentials.get),
    _route("PUT", "/credentials/{ref}", credentials.put),
    _route("DELETE", "/credentials/{ref}", credentials.delete),
    _route("POST", "/credentials/{ref}/reveal", credentials.reveal),
    _route("GET", "/audit", logs.audit),
    _route("GET", "/invocations", logs.invocations),
    _route("GET", "/retention/policies", logs.policies),
    _route("GET", "/retention/policies/{table}", logs.policy),
    _route("PATCH", "/retention/policies/{table}", logs.set_policy),
    _route("POST", "/retention/prune", logs.prune),
    _route("GET", "/stats", logs.stats),
)

OPEN_PATHS: Final = frozenset(PREFIX + route.path for route in ROUTES if route.permission == "open")
