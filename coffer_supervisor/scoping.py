"""What a principal and an endpoint leave of everything: scopes of clients, and groups.

Owns the groups and the narrowings made of them. Never reads the store: it is told. Never decides about a call.
"""

from fnmatch import fnmatchcase

from coffer_common.frames import CapabilityType
from coffer_common.resources import CapabilityPattern, GroupConfig
from coffer_supervisor.core.calls import Principal, Scope
from coffer_supervisor.core.catalogue import EVERYTHING, Narrowing

_NOTHING = Narrowing("nothing", frozenset())


class Scoping:
    """The groups, by name."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupConfig] = {}
        self._known: dict[tuple[frozenset[str] | None, str | None], Narrowing] = {}

    def set_groups(self, groups: dict[str, GroupConfig]) -> None:
        """The enabled groups, all of them."""
        self._groups = dict(groups)
        self._known.clear()

    def has_group(self, name: str) -> bool:
        """Whether there is such a group, switched on."""
        return name in self._groups

    def narrowing(self, principal: Principal, scope: Scope) -> Narrowing:
        """What is left for ``principal`` at ``scope``; an unknown or forbidden group leaves nothing."""
        if principal.servers is None and scope.group is None:
            return EVERYTHING
        if scope.group is not None and principal.groups is not None and scope.group not in principal.groups:
            return _NOTHING
        # What a group offers was chosen for those who may use it: the servers of a client's scope do not cut it.
        servers = principal.servers if scope.group is None or principal.groups is None else None
        key = (servers, scope.group)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._made(servers, scope.group)
        return found

    def _made(self, servers: frozenset[str] | None, group: str | None) -> Narrowing:
        tag = f"{group or ''}|{'*' if servers is None else ','.join(sorted(servers))}"
        if group is None:
            return Narrowing(tag, servers)
        config = self._groups.get(group)
        if config is None:
            return _NOTHING
        members = {*config.servers, *(pattern.server for pattern in config.capabilities)}
        holds = _Members(config)
        seen = frozenset(members if servers is None else members & servers)
        return Narrowing(tag, seen, holds.admits, holds.described)


class _Members:
    """What a group holds: servers as a whole, and what its patterns match; the first description that fits is shown."""

    def __init__(self, config: GroupConfig) -> None:
        self._whole = frozenset(config.servers)
        self._patterns = config.capabilities

    def admits(self, server: str, type_: CapabilityType, key: str) -> bool:
        """Whether a capability is in the group."""
        return server in self._whole or any(_matches(pattern, server, type_, key) for pattern in self._patterns)

    def described(self, server: str, type_: CapabilityType, key: str) -> str | None:
        """The group's own description of it."""
        for pattern in self._patterns:
            if pattern.description is not None and _matches(pattern, server, type_, key):
                return pattern.description
        return None


def _matches(pattern: CapabilityPattern, server: str, type_: CapabilityType, key: str) -> bool:
    return pattern.server == server and pattern.type in (None, type_) and fnmatchcase(key, pattern.pattern)
