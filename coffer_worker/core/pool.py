"""Which connection to the upstream serves which caller.

Owns the keys of connections, how many there may be, the handing over of the one that discovery left warm, and when one
has been idle long enough to be closed. Never opens or closes one: it says what is to be done. Times are monotonic.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import msgspec

from coffer_common import errors, protocol
from coffer_common.frames import Caller
from coffer_common.protocol import Era
from coffer_common.resources import Isolation, Limits
from coffer_worker.core import bridge
from coffer_worker.core.relay import Refusal

SPARE: Final = "\0spare"
SHARED: Final = ""
RECENT: Final = 1.0


@dataclass(frozen=True, slots=True)
class Key:
    """Calls with equal keys share a connection. ``session`` is SHARED for one that serves all, SPARE for the warm one
    that serves nobody yet. ``project``: the directory it is started in; empty for the configured one."""

    era: Era
    revision: str
    session: str
    capabilities: str = ""
    project: str = ""

    @property
    def whose(self) -> str:
        """Whom its failures concern: a session, a project, or (SHARED, SPARE) everybody."""
        return self.project if self.session == SHARED else self.session

    @property
    def declared(self) -> dict[str, Any]:
        """What is told to the upstream when such a connection is opened."""
        found: dict[str, Any] = msgspec.json.decode(self.capabilities) if self.capabilities else bridge.declared(None)
        return found


@dataclass(slots=True, eq=False)
class Member:
    """An open connection. ``asked``: the revision it was opened with; ``key.revision``: what was agreed on."""

    number: int
    key: Key
    asked: str
    last_used: float
    calls: int = 0
    answered: int = 0
    subscriptions: int = 0

    @property
    def busy(self) -> bool:
        """Whether anything depends on it now."""
        return self.calls > 0 or self.subscriptions > 0


@dataclass(frozen=True, slots=True)
class Use:
    """Serve the caller on this connection. ``handed_over``: it was the warm one, and is the caller's from now on."""

    member: Member
    handed_over: bool = False


@dataclass(frozen=True, slots=True)
class Join:
    """Such a connection is being opened: wait for it."""

    key: Key


@dataclass(frozen=True, slots=True)
class Open:
    """Open one; ``evict`` is to be closed for it (warm, idle, and of no use to this caller)."""

    key: Key
    evict: Member | None = None


@dataclass(slots=True)
class Pool:
    """The connections of one upstream. ``era`` is the verdict of negotiation ("" before it)."""

    server: str
    isolation: Isolation
    limits: Limits
    era: Literal["", "legacy", "modern"] = ""
    legacy_side: bool | None = None
    over_http: bool = False
    per_project: bool = False
    seen: str = field(default_factory=lambda: bridge.capability_set(None))
    """The capability set of the client seen last: what a warm connection declares."""
    members: dict[int, Member] = field(default_factory=dict)
    opening: dict[Key, None] = field(default_factory=dict)

    def spare_key(self, era: Era) -> Key:
        """The key under which discovery opens its connection."""
        return self._key(era, None)

    def key_for(self, caller: Caller) -> Key:
        """The key of the connection that serves ``caller``; needs the verdict."""
        era = bridge.served_in(caller.era, self.era or "legacy", legacy_side=self.legacy_side)
        return self._key(era, caller)

    def _key(self, era: Era, caller: Caller | None) -> Key:
        own = SPARE if caller is None else caller.session
        project = caller.cwd if caller is not None and self.per_project else ""
        if era == "modern":
            # Capabilities travel with each request there.
            own = own if self.isolation == "session" else SHARED
            return Key("modern", protocol.LATEST_MODERN, own, project=project)
        if self.isolation == "shared":
            return Key("legacy", protocol.LATEST_LEGACY, SHARED, bridge.capability_set(None), project)
        declared = self.seen if caller is None else bridge.capability_set(caller)
        return Key("legacy", bridge.legacy_revision(caller), own, declared, project)

    def exclusive(self, caller: Caller) -> bool:
        """Whether a call of this caller must own its connection: a legacy upstream's ask over a pipe names no call, and
        a modern client has no session that it could go to."""
        if self.over_http or self.isolation == "shared" or caller.era != "modern" or not bridge.may_be_asked(caller):
            return False
        return self.key_for(caller).era == "legacy"

    def find(self, caller: Caller, *, call: bool = False) -> Use | Join | Open | Refusal:
        """What serves ``caller``; ``call``: for a call."""
        key = self.key_for(caller)
        alone = call and self.exclusive(caller)
        if key.era == "legacy" and self.isolation != "shared":
            self.seen = key.capabilities
        spare: Member | None = None
        for member in self.members.values():
            if member.key.session == SPARE and member.key.era == key.era:
                spare = member
            elif _serves(member, key) and not (alone and member.calls):
                return Use(member)
        if key in self.opening:
            return Join(key)
        if spare is not None and _serves(spare, key, any_session=True):
            spare.key = replace(spare.key, session=key.session)
            return Use(spare, handed_over=True)
        if self._spare_opening(key):
            return Join(self.spare_key(key.era))
        return self._open(key)

    def _spare_opening(self, key: Key) -> bool:
        """Whether discovery is opening just what this caller needs: better to wait than to start a second one."""
        spare = self.spare_key(key.era)
        return spare in self.opening and spare == replace(key, session=spare.session)

    def _open(self, key: Key) -> Open | Refusal:
        if len(self.members) + len(self.opening) < self.limits.max_connections:
            return Open(key)
        evict = self._dispensable()
        if evict is not None:
            return Open(key, evict)
        return Refusal(
            errors.CONNECTION_LIMIT,
            f"Upstream {self.server!r} already has {self.limits.max_connections} connections, its limit: each session "
            "has its own. Close a client, raise max_connections, or use `--isolation shared`",
        )

    def _dispensable(self) -> Member | None:
        """What may be closed for another: the warm one, else the project's that has been idle for longest."""
        idle = [m for m in self.members.values() if not m.busy]
        spare = [m for m in idle if m.key.session == SPARE]
        projects = [m for m in idle if m.key.session == SHARED and m.key.project]
        return next(iter(spare or sorted(projects, key=lambda m: m.last_used)), None)

    def discovered(self, guess: Key, era: Era) -> Key:
        """The key of the connection that discovery opened under ``guess``."""
        if era == guess.era:
            return guess
        key = self._key(era, None)
        return key if era == "modern" else replace(key, capabilities=bridge.encoded(guess.declared).decode())

    def opened(self, key: Key, number: int, agreed: str, now: float) -> Member:
        """A connection of that key is open, at the revision ``agreed``."""
        self.opening.pop(key, None)
        made = replace(key, revision=agreed)
        member = self.members[number] = Member(number, made, key.revision, now)
        return member

    def not_opened(self, key: Key) -> None:
        """Opening it failed."""
        self.opening.pop(key, None)

    def gone(self, number: int) -> Member | None:
        """That connection is no more."""
        return self.members.pop(number, None)

    def of_session(self, session: str) -> list[Member]:
        """The connections that belong to one session alone."""
        return [m for m in self.members.values() if m.key.session == session]

    def projects(self) -> tuple[str, ...]:
        """The directories that connections are open for, each once."""
        return tuple(sorted({m.key.project for m in self.members.values() if m.key.project}))

    def idle(self, now: float) -> list[Member]:
        """The connections to close: nothing depends on them, and nothing has for the idle time."""
        limit = self.limits.idle_close_seconds
        return [m for m in self.members.values() if not m.busy and now - m.last_used >= limit]

    def working(self, now: float) -> bool:
        """Whether a call runs on any connection, or has just ended: what the upstream then says may be its doing."""
        return any(m.calls or (m.answered and now - m.last_used <= RECENT) for m in self.members.values())

    def next_idle(self) -> float | None:
        """When the first connection may become idle for long enough."""
        limit = self.limits.idle_close_seconds
        return min((m.last_used + limit for m in self.members.values() if not m.busy), default=None)


def _serves(member: Member, key: Key, *, any_session: bool = False) -> bool:
    have = member.key
    return (
        (any_session or have.session == key.session)
        and have.era == key.era
        and have.capabilities == key.capabilities
        and have.project == key.project
        and key.revision in (have.revision, member.asked)
    )
