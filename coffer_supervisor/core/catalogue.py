"""What every upstream offers, as one list for each endpoint, era and principal: curated, in order, in pages.

Owns the catalogues that workers sent, the choices of what is switched on, and the joined pages made of both.
Never decodes an entry (save to compare two eras' lists once), never reads a clock or a database: times (monotonic
seconds) and choices are passed in.
Source: MCP server features (tools, resources, prompts: listing), utilities/pagination, caching hints.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from coffer_common import names
from coffer_common.frames import CapabilityType, CatalogueEntry, Naming
from coffer_common.protocol import Era
from coffer_supervisor.core import cursors

Key = tuple[CapabilityType, str]
CacheScope = Literal["private", "public"]

ERAS: Final[tuple[Era, ...]] = ("legacy", "modern")
TYPES: Final[tuple[CapabilityType, ...]] = ("tool", "resource", "template", "prompt")
KIND_OF: Final[Mapping[CapabilityType, str]] = {
    "tool": "tools",
    "resource": "resources",
    "template": "resources",
    "prompt": "prompts",
}
MEMBER_OF: Final[Mapping[CapabilityType, bytes]] = {
    "tool": b'"tools"',
    "resource": b'"resources"',
    "template": b'"resourceTemplates"',
    "prompt": b'"prompts"',
}
PAGE_ENTRIES: Final = 1000
PAGE_BYTES: Final = 4 * 1024 * 1024
RECORDED_SECONDS: Final = 60.0
"""How long it need not be recorded again that a capability is still listed."""
KEPT_BYTES: Final = 32 * 1024 * 1024
"""Joined lists that are kept, over all clients' scopes; the longest unused go first."""


class Base:
    """One complete catalogue as a worker sent it, with the look-ups that routing needs."""

    __slots__ = ("_by_uri", "by_name", "by_type", "expires", "left_out", "read_at", "scope")

    def __init__(
        self,
        entries: Iterable[CatalogueEntry],
        *,
        read_at: float = 0.0,
        ttl_ms: int = -1,
        scope: CacheScope = "private",
        left_out: tuple[str, ...] = (),
    ) -> None:
        self.by_type: dict[CapabilityType, dict[str, CatalogueEntry]] = {type_: {} for type_ in TYPES}
        self.by_name: dict[Key, str] = {}
        self._by_uri: dict[str, str] | None = None
        self.read_at, self.left_out = read_at, left_out
        # An upstream that says nothing promises nothing: fresh for no time, for nobody else.
        self.expires = read_at + ttl_ms / 1000 if ttl_ms >= 0 else 0.0
        self.scope: CacheScope = scope if ttl_ms >= 0 else "private"
        for entry in entries:
            self.by_type[entry.type].setdefault(entry.key, entry)
            self.by_name.setdefault((entry.type, entry.exposed), entry.key)

    @property
    def by_uri(self) -> dict[str, str]:
        """Normalised URI, the upstream's or the aggregate's -> key; made when first needed: most never are."""
        if self._by_uri is None:
            self._by_uri = {}
            for entry in self.by_type["resource"].values():
                self._by_uri.setdefault(names.normalised_uri(entry.key), entry.key)
                self._by_uri.setdefault(names.normalised_uri(entry.exposed), entry.key)
        return self._by_uri

    def __iter__(self) -> Iterator[CatalogueEntry]:
        for entries in self.by_type.values():
            yield from entries.values()


@dataclass(slots=True)
class Server:
    """One registered upstream: whether it is switched on, what it offers in each era, and what is chosen of it.

    ``waiting``: its first catalogue may still come, so that an answer without it would be premature.
    """

    name: str
    on: bool = True
    waiting: bool = True
    auto_enable: bool = True
    bases: dict[Era, Base] = field(default_factory=dict)
    overlays: dict[str, Base] = field(default_factory=dict)
    choices: dict[Key, bool] = field(default_factory=dict)
    _recorded: dict[Key, float] = field(default_factory=dict)

    def base(self, era: Era, session: str = "") -> Base | None:
        """The catalogue for a client: its session's own, else its era's, else the other era's."""
        if session and (overlay := self.overlays.get(session)) is not None:
            return overlay
        other: Era = "legacy" if era == "modern" else "modern"
        return self.bases.get(era) or self.bases.get(other)

    def records(self, base: Base) -> bool:
        """Whether what ``base`` lists is to be recorded: something of it was not, or not for a while."""
        since = base.read_at - RECORDED_SECONDS
        return any(self._recorded.get((entry.type, entry.key), since) <= since for entry in base)

    def recorded(self, base: Base) -> None:
        """It has been."""
        since = base.read_at - RECORDED_SECONDS
        self._recorded = {key: at for key, at in self._recorded.items() if at > since}
        self._recorded.update({(entry.type, entry.key): base.read_at for entry in base})

    def enabled(self, type_: CapabilityType, key: str) -> bool:
        """Whether a capability is switched on; one never seen before follows the server's policy."""
        return self.choices.get((type_, key), self.auto_enable)


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What a principal and a group leave of everything. ``tag`` tells two different ones apart. ``described`` gives a
    group's own words for a capability, which take the place of the upstream's."""

    tag: str
    servers: frozenset[str] | None = None
    admits: Callable[[str, CapabilityType, str], bool] | None = None
    described: Callable[[str, CapabilityType, str], str | None] | None = None

    def server(self, name: str) -> bool:
        """Whether anything of that server can be seen."""
        return self.servers is None or name in self.servers

    def entry(self, server: str, type_: CapabilityType, key: str) -> bool:
        """Whether that capability can be seen."""
        return self.server(server) and (self.admits is None or self.admits(server, type_, key))


EVERYTHING: Final = Narrowing("")


@dataclass(frozen=True, slots=True)
class Query:
    """Which list: of one upstream (``server``) or of all, in which form, for whom."""

    type: CapabilityType
    naming: Naming
    era: Era
    server: str | None = None
    session: str = ""
    narrowing: Narrowing = EVERYTHING


@dataclass(slots=True)
class _Page:
    body: bytes
    last: cursors.Position


@dataclass(slots=True)
class _Joined:
    pages: list[_Page]
    expires: float
    scope: CacheScope

    @property
    def size(self) -> int:
        """Bytes, with something for a list that is empty."""
        return 1000 + sum(len(page.body) for page in self.pages)


class UnknownCursor(Exception):
    """The cursor is none that this list gave out."""


class Catalogues:
    """All upstreams' catalogues. Every change returns the kinds (``tools``, ...) whose lists differ by it."""

    def __init__(self) -> None:
        self.servers: dict[str, Server] = {}
        self._joined: OrderedDict[tuple[str, ...], _Joined] = OrderedDict()

    # ---- changes

    def register(self, name: str, *, on: bool, auto_enable: bool, choices: Mapping[Key, bool]) -> frozenset[str]:
        """Add an upstream, or bring one to what its configuration now says."""
        server = self.servers.get(name)
        before = {} if server is None else _seen(server)
        if server is None:
            server = self.servers[name] = Server(name)
        elif on and not server.on:
            server.waiting = True
        server.on, server.auto_enable, server.choices = on, auto_enable, dict(choices)
        return self._changed(before, _seen(server))

    def remove(self, name: str) -> frozenset[str]:
        """Forget an upstream."""
        server = self.servers.pop(name, None)
        return frozenset() if server is None else self._changed(_seen(server), {})

    def put(self, name: str, era: Era, base: Base) -> frozenset[str]:
        """A complete catalogue from the discovery connection of ``era``.

        The first of an era replaces the other era's, which was shown until then: that members stand in another order
        is no change that anyone need be told of.
        """
        server = self.servers[name]
        before, first = _seen(server), era not in server.bases
        server.bases[era] = base
        server.waiting = False
        after = _seen(server)
        kinds = self._changed(before, after)
        if first and kinds:
            kinds = frozenset(KIND_OF[t] for t in TYPES if _decoded(before.get(t)) != _decoded(after.get(t)))
        return kinds

    def overlay(self, name: str, session: str, base: Base) -> frozenset[str]:
        """A complete catalogue that one session alone sees."""
        server = self.servers[name]
        before = self._overlaid(server, session)
        server.overlays[session] = base
        return self._changed(before, self._overlaid(server, session))

    def _overlaid(self, server: Server, session: str) -> dict[CapabilityType, object]:
        base = server.base("legacy", session)
        return {type_: _shape(server, base, type_, "legacy") for type_ in TYPES}

    def forget_session(self, session: str) -> None:
        """Drop what only an ended session saw."""
        dropped = [s.overlays.pop(session, None) for s in self.servers.values()]
        if any(base is not None for base in dropped):
            self._joined.clear()

    def settle(self, name: str) -> None:
        """Nobody need wait for this upstream's first catalogue any longer."""
        if (server := self.servers.get(name)) is not None:
            server.waiting = False

    def invalidate(self) -> None:
        """What narrows the lists (a group, a client's scope) changed."""
        self._joined.clear()

    def _changed(
        self, before: Mapping[CapabilityType, object], after: Mapping[CapabilityType, object]
    ) -> frozenset[str]:
        kinds = frozenset(KIND_OF[type_] for type_ in TYPES if before.get(type_, ()) != after.get(type_, ()))
        if kinds:
            self._joined.clear()
        return kinds

    # ---- lists

    def concerned(self, query: Query) -> list[Server]:
        """The upstreams that a list is made of, in its order."""
        if query.server is not None:
            found = self.servers.get(query.server)
            return [found] if found is not None and found.on else []
        seen = query.narrowing.server
        return [self.servers[name] for name in sorted(self.servers) if self.servers[name].on and seen(name)]

    def page(self, query: Query, cursor: str | None, now: float, *, complete: bool = True, meta: bytes = b"") -> bytes:
        """One page as a result object in the shape of the client's era. Raises UnknownCursor.

        ``complete`` False: an upstream is missing from it, so that a modern client may keep it for no time.
        ``meta``: raw ``_meta`` object for a modern result.
        """
        joined = self._join(query)
        number = 0 if cursor is None else _page_after(self, query, joined, cursor)
        body, tail = b"", b""
        if number < len(joined.pages):
            body = joined.pages[number].body
            if number + 1 < len(joined.pages):
                tail = b',"nextCursor":"' + cursors.encode(query.type, joined.pages[number].last) + b'"'
        if query.era == "modern":
            left = max(0, int((joined.expires - now) * 1000)) if complete else 0
            tail += b',"resultType":"complete","ttlMs":%d,"cacheScope":"%s"' % (left, joined.scope.encode())
            tail += b',"_meta":' + meta if meta else b""
        return b"{" + MEMBER_OF[query.type] + b":[" + body + b"]" + tail + b"}"

    def _join(self, query: Query) -> _Joined:
        concerned = self.concerned(query)
        own = query.session if any(query.session in server.overlays for server in concerned) else ""
        key = (query.type, query.naming, query.era, query.server or "", own, query.narrowing.tag)
        joined = self._joined.get(key)
        if joined is None:
            joined = self._joined[key] = _joined(query, concerned)
            kept = sum(one.size for one in self._joined.values())
            while kept > KEPT_BYTES and len(self._joined) > 1:
                kept -= self._joined.popitem(last=False)[1].size
        else:
            self._joined.move_to_end(key)
        return joined


def _seen(server: Server) -> dict[CapabilityType, object]:
    """What clients of each era can see of a server, for comparison, by type."""
    if not server.on:
        return {}
    found: dict[CapabilityType, object] = {}
    for type_ in TYPES:
        shapes = [_shape(server, server.base(era), type_, era) for era in ERAS]
        if any(shapes):
            found[type_] = shapes
    return found


def _decoded(shapes: object) -> object:
    """Shapes without regard to the order of members; as they are, where an entry cannot be decoded."""
    if not isinstance(shapes, list):
        return shapes
    try:
        return [[(key, msgspec.json.decode(form)) for key, form in shape] for shape in shapes]
    except (msgspec.MsgspecError, RecursionError):
        return shapes


def _shape(server: Server, base: Base | None, type_: CapabilityType, era: Era) -> list[tuple[str, bytes]]:
    if base is None:
        return []
    forms = ((key, entry.form("raw", era)) for key, entry in base.by_type[type_].items() if server.enabled(type_, key))
    return [(key, form) for key, form in forms if form]


def _forms(query: Query, server: Server) -> Iterator[tuple[int, str, bytes]]:
    base = server.base(query.era, query.session)
    for index, (key, entry) in enumerate(base.by_type[query.type].items() if base is not None else ()):
        if not server.enabled(query.type, key) or not query.narrowing.entry(server.name, query.type, key):
            continue
        if form := entry.form(query.naming, query.era):
            yield index, key, _described(query, server.name, key, form)


def _described(query: Query, server: str, key: str, form: bytes) -> bytes:
    """An entry under the group's own description; every other member stays byte for byte."""
    own = None if query.narrowing.described is None else query.narrowing.described(server, query.type, key)
    if own is None:
        return form
    try:
        members = msgspec.json.decode(form, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):  # it passed the worker, so only msgspec refuses it, or only here
        return form
    members["description"] = msgspec.Raw(msgspec.json.encode(own))
    return msgspec.json.encode(members)


def _joined(query: Query, concerned: Iterable[Server]) -> _Joined:
    pages: list[_Page] = []
    forms: list[bytes] = []
    size, last = 0, cursors.Position("", 0, "")
    expires: list[float] = []
    public = query.narrowing == EVERYTHING
    for server in concerned:
        base = server.base(query.era, query.session)
        expires.append(0.0 if base is None else base.expires)
        public = public and (base is None or base.scope == "public")
        for index, key, form in _forms(query, server):
            if forms and (len(forms) >= PAGE_ENTRIES or size + len(form) > PAGE_BYTES):
                pages.append(_Page(b",".join(forms), last))
                forms, size = [], 0
            forms.append(form)
            size += len(form)
            last = cursors.Position(server.name, index, key)
    if forms:
        pages.append(_Page(b",".join(forms), last))
    return _Joined(pages, min(expires, default=0.0), "public" if public and expires else "private")


def _page_after(catalogues: Catalogues, query: Query, joined: _Joined, cursor: str) -> int:
    """The number of the page that follows a cursor; the list may have changed since it was given out."""
    position = cursors.decode(query.type, cursor)
    if position is None:
        raise UnknownCursor
    for number, page in enumerate(joined.pages):
        if page.last == position:
            return number + 1
    return next((n for n, page in enumerate(joined.pages) if cursors.before(position, page.last)), len(joined.pages))
