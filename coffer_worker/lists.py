"""Keeps the upstream's catalogue current: reads the four lists, page by page, and publishes what changed.

Owns when lists are read (on opening, when they changed, on demand), what stays when a reading fails, and which
connection they are read from. Never decides what an entry looks like (``core.catalogue`` does) or who may see it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from coffer_common import frames, protocol
from coffer_common.protocol import Era
from coffer_common.resources import Limits
from coffer_worker.core import catalogue, headers, splice
from coffer_worker.core.catalogue import KINDS, Entries, ListKind, Page
from coffer_worker.core.pace import Pace
from coffer_worker.log import UpstreamLog
from coffer_worker.outlet import Outlet
from coffer_worker.upstream.connection import Connection, Unanswered, UpstreamError

MAX_PAGES: Final = 1000
# What has answered by then is published; the rest follows when it comes.
FIRST_ANSWERS_SECONDS: Final = 3.0
_LIST_SECONDS: Final = 120.0


class ListFailed(Exception):
    """One list could not be read to its end."""


@dataclass(slots=True)
class Known:
    """What was read last, per list. ``troubles``: what could not be, by list method."""

    lists: dict[str, Entries] = field(default_factory=dict)
    hints: tuple[int, str] = (-1, "private")
    troubles: dict[str, str] = field(default_factory=dict)
    published: bytes = b""


class Lists:
    """The catalogues of one upstream: one per era, and one for each session whose connection shows another."""

    def __init__(
        self,
        server: str,
        limits: Limits,
        outlet: Outlet,
        log: UpstreamLog,
        *,
        spawn: Callable[[Any], None],
        changed: Callable[[], None],
        over_http: bool = False,
    ) -> None:
        self._server = server
        self._seconds = max(limits.idle_seconds or _LIST_SECONDS, 1.0)
        self._outlet = outlet
        self._log = log
        self._spawn = spawn
        self._changed = changed
        self._over_http = over_http
        self._loop = asyncio.get_running_loop()
        self.mirrors: dict[str, headers.Mirrors] = {}
        self.primary: dict[Era, Connection] = {}
        self._known: dict[tuple[Era, str], Known] = {}
        self._pace: dict[int, Pace] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._announced: dict[int, set[str]] = {}
        self._reading: dict[int, asyncio.Task[bool]] = {}
        self._following: dict[int, asyncio.Task[bool]] = {}

    def trouble(self, era: Era) -> str:
        """What is wrong with the base catalogue of an era, for people; empty where all is well."""
        known = self._known.get((era, ""))
        return "; ".join(known.troubles.values()) if known is not None else ""

    def adopt(self, connection: Connection) -> bool:
        """Read the base catalogue of its era from this connection from now on, unless another is there already."""
        if connection.hop.era in self.primary:
            return False
        self.primary[connection.hop.era] = connection
        return True

    def forget(self, connection: Connection) -> None:
        """That connection is gone; what was read from it stays."""
        self._pace.pop(connection.number, None)
        self._announced.pop(connection.number, None)
        self._reading.pop(connection.number, None)
        self._following.pop(connection.number, None)
        if (timer := self._timers.pop(connection.number, None)) is not None:
            timer.cancel()
        if self.primary.get(connection.hop.era) is connection:
            del self.primary[connection.hop.era]

    # ---- when

    def announced(self, connection: Connection, session: str, kind: str, *, busy: bool) -> None:
        """The upstream says that its lists of a kind (``tools``, ...) changed: read soon, but not ever faster.

        ``busy``: calls are under way, one of which may have changed them.
        """
        pace = self._pace.setdefault(connection.number, Pace())
        self._announced.setdefault(connection.number, set()).add(kind)
        at = pace.announced(self._loop.time(), busy=busy)
        if connection.number not in self._timers and at is not None:
            self._timers[connection.number] = self._loop.call_at(at, self._due, connection, session)

    def _due(self, connection: Connection, session: str) -> None:
        self._timers.pop(connection.number, None)
        if connection.gone is None:
            self._spawn(self._read_again(connection, session))

    async def _read_again(self, connection: Connection, session: str) -> None:
        await self.read(connection, session)

    async def read(self, connection: Connection, session: str = "") -> bool:
        """Read all lists and publish what differs; whether anything did. A reading that is under way may have passed
        by what has changed since: then the next one counts, which all who come meanwhile share."""
        number = connection.number
        running = self._reading.get(number)
        if running is None or running.done():
            task = self._reading[number] = self._loop.create_task(self._read(connection, session))
        else:
            following = self._following.get(number)
            task = following or self._loop.create_task(self._after(running, connection, session))
            self._following[number] = task
        return await asyncio.shield(task)

    async def _after(self, running: asyncio.Task[bool], connection: Connection, session: str) -> bool:
        await asyncio.wait([running])
        if (following := self._following.pop(connection.number, None)) is None:
            return False  # the connection is gone
        self._reading[connection.number] = following
        return await self._read(connection, session)

    async def _read(self, connection: Connection, session: str) -> bool:
        pace = self._pace.setdefault(connection.number, Pace())
        pace.began()
        said = self._announced.pop(connection.number, set())
        era = connection.hop.era
        base = self._known.setdefault((era, ""), Known())
        known = base if not session else self._known.setdefault((era, session), Known())
        before = known.published or base.published
        pages: dict[str, list[Page]] = {}
        wanted = [
            kind
            for kind in KINDS
            if catalogue.declares(connection.capabilities, kind) or not self._declared(connection)
        ]
        reads = {self._loop.create_task(self._one(connection, kind, known, pages)): kind for kind in wanted}
        for kind in KINDS:
            if kind not in wanted:
                known.lists[kind.method] = Entries([], [])
                known.troubles.pop(kind.method, None)
        try:
            if reads:
                _, slow = await asyncio.wait(reads, timeout=FIRST_ANSWERS_SECONDS)
                if slow:
                    for task in slow:
                        known.troubles.setdefault(reads[task].method, f"{reads[task].method} is not answered yet")
                    self._publish(era, session, known, base)
                    self._changed()
                    await asyncio.wait(slow)
        finally:
            for task in reads:
                task.cancel()
        if pages:
            known.hints = catalogue.narrowest([p for found in pages.values() for p in found], era)
        believed = sorted(said) if pace.believed else ()
        self._publish(era, session, known, base, tuple(believed))
        changed = known.published != before
        pace.read(self._loop.time(), changed=changed)
        self._changed()
        return changed

    @staticmethod
    def _declared(connection: Connection) -> bool:
        """Whether the upstream declared anything at all; where discovery told nothing, every list is tried."""
        return connection.capabilities != b"{}" or connection.hop.era == "legacy"

    # ---- one list

    async def _one(self, connection: Connection, kind: ListKind, known: Known, pages: dict[str, list[Page]]) -> None:
        """Read one list, or say why not: whatever goes wrong in it, no list goes missing without a word."""
        try:
            pages[kind.method] = await self._read_one(connection, kind, known)
        except (ListFailed, ValueError) as error:
            self._unread(kind, known, str(error) if isinstance(error, ListFailed) else f"{kind.method}: {error}")
        except Exception as error:
            self._unread(kind, known, f"{kind.method}: Coffer itself failed in reading it: {type(error).__name__}")
            self._loop.call_exception_handler({"message": f"{kind.method} was not read", "exception": error})

    def _unread(self, kind: ListKind, known: Known, text: str) -> None:
        if kind.method in known.lists and known.lists[kind.method].entries:
            text += "; the last complete list is shown"
        known.troubles[kind.method] = text
        self._log.note(text)

    async def _read_one(self, connection: Connection, kind: ListKind, known: Known) -> list[Page]:
        found = await self._walk(connection, kind)
        items = [item for page in found for item in page.items]
        made = catalogue.entries(kind, items, self._server, connection.hop.era)
        if self._over_http and kind.type == "tool" and connection.hop.era == "modern":
            made = catalogue.callable_over_http(made)
        if kind.type == "tool" and known is self._known.get((connection.hop.era, "")):
            mirrored = {entry.key: headers.mirrors(entry.form("raw", "modern")) for entry in made.entries}
            self.mirrors.clear()
            self.mirrors.update({key: mirrors for key, mirrors in mirrored.items() if mirrors})
        for reason in made.left_out:
            if reason not in known.lists.get(kind.method, made).left_out or kind.method not in known.lists:
                self._log.note(f"not listed: {reason}")
        known.lists[kind.method] = made
        known.troubles.pop(kind.method, None)
        return found

    async def _walk(self, connection: Connection, kind: ListKind) -> list[Page]:
        """All pages of one list. Raises ListFailed."""
        found: list[Page] = []
        seen: set[str] = set()
        members: dict[str, splice.Slice] = {}
        while len(found) < MAX_PAGES:
            try:
                raw = await connection.ask(kind.method, connection.hop.params(**members), self._seconds)
                page = catalogue.page(kind, raw)
            except UpstreamError as error:
                if error.code == protocol.METHOD_NOT_FOUND and not found:
                    return []
                raise ListFailed(f"{kind.method}, page {len(found) + 1}: the upstream answered {error}") from None
            except Unanswered as error:
                raise ListFailed(f"{kind.method}: {error.problem.message}") from None
            except TimeoutError:
                raise ListFailed(f"{kind.method}: no answer within {self._seconds:g} s") from None
            except ValueError as error:
                raise ListFailed(f"{kind.method}: the answer is {error}") from None
            found.append(page)
            if page.cursor is None:
                return found
            if page.cursor in seen:
                raise ListFailed(f"{kind.method}: the upstream gave the same cursor twice")
            seen.add(page.cursor)
            members = {"cursor": msgspec.json.encode(page.cursor)}
        raise ListFailed(f"{kind.method}: more than {MAX_PAGES} pages")

    # ---- publishing

    def _publish(self, era: Era, session: str, known: Known, base: Known, announced: tuple[str, ...] = ()) -> None:
        """Send the catalogue if it is not what was sent last, or if the upstream announced a change of it."""
        others = (one for one in self._known.values() if one is not known)
        if known.troubles and not known.published and any(one.published for one in others):
            return  # the clients of this era, or session, keep seeing the other list rather than half of their own
        found = [known.lists[kind.method] for kind in KINDS if kind.method in known.lists]
        left_out = tuple(reason for each in found for reason in each.left_out)
        ttl, scope = known.hints
        entries = frames.encode_entries([entry for each in found for entry in each.entries])
        unread = tuple(k.type for k in KINDS if k.method in known.troubles and k.method not in known.lists)
        stamp = entries + repr((ttl, scope, left_out, unread)).encode("utf-8", "replace")
        same = stamp == known.published or (session and not known.published and stamp == base.published)
        if same:
            if announced:
                self._outlet.send(frames.Catalogue(era, session, announced=announced, same=True))
            return
        known.published = stamp
        shared: Literal["public", "private"] = "public" if scope == "public" else "private"
        self._outlet.send(frames.Catalogue(era, session, ttl, shared, left_out, announced, unread), entries)

    def close_session(self, session: str) -> None:
        """A session has ended: its overlay is of no more use."""
        for key in [key for key in self._known if key[1] == session]:
            del self._known[key]
