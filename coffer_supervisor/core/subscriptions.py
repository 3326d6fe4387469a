"""Who hears of which change: what a listener asked for, and how storms become few notices.

Owns the filter of a ``subscriptions/listen`` request and the coalescing of notices. Pure: time is passed in. Never
writes to a client and never subscribes upstream.
Source: MCP 2026-07-28, Subscriptions; MCP 2025-11-25, list changed notifications.
"""

import heapq
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import msgspec

KINDS: Final = ("tools", "resources", "prompts")
METHODS: Final = {kind: f"notifications/{kind}/list_changed" for kind in KINDS}
UPDATED: Final = "notifications/resources/updated"
MAX_URIS: Final = 1024

SETTLE_SECONDS: Final = 0.05
INTERVAL_SECONDS: Final = 1.0
FIRST_SETTLE_SECONDS: Final = 1.0
"""The same while the daemon's first discovery is under way: one server after the other comes then."""

K = TypeVar("K", bound=Hashable)


class Filter(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a listener opts in to; unknown members are not honoured and so left out of the acknowledgement."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: tuple[str, ...] = ()

    @property
    def kinds(self) -> frozenset[str]:
        """The lists whose changes it hears."""
        wanted = {
            "tools": self.tools_list_changed,
            "resources": self.resources_list_changed,
            "prompts": self.prompts_list_changed,
        }
        return frozenset(kind for kind, asked in wanted.items() if asked)

    def possible(self, kinds: Iterable[str], uris: Iterable[str]) -> "Filter":
        """The part of it that can be honoured: lists of ``kinds`` and the subscriptions ``uris``."""
        can, got = frozenset(kinds), frozenset(uris)
        return Filter(
            tools_list_changed=self.tools_list_changed and "tools" in can,
            prompts_list_changed=self.prompts_list_changed and "prompts" in can,
            resources_list_changed=self.resources_list_changed and "resources" in can,
            resource_subscriptions=tuple(uri for uri in self.wanted_uris if uri in got),
        )

    @property
    def wanted_uris(self) -> tuple[str, ...]:
        """Its URIs, each once, bounded in number."""
        return tuple(dict.fromkeys(self.resource_subscriptions))[:MAX_URIS]


@dataclass(slots=True)
class _Hearer:
    pending: dict[bytes, float | None] = field(default_factory=dict)
    """Notice -> when it is due; None while it is held, because nobody is there to take it."""
    last: dict[bytes, float] = field(default_factory=dict)


class Coalescer(Generic[K]):
    """Pending notices, per hearer: each at most once, soon after the first and not oftener than the interval.

    A hearer that is held (no stream open) keeps its notices until it is released.
    """

    def __init__(self, *, settle: float = SETTLE_SECONDS, interval: float = INTERVAL_SECONDS) -> None:
        self._settle, self._interval = settle, interval
        self._hearers: dict[K, _Hearer] = {}
        self._heap: list[tuple[float, int, K, bytes]] = []
        self._order = 0

    def mark(self, hearer: K, notice: bytes, now: float, *, settle: float | None = None, held: bool = False) -> None:
        """``notice`` (a whole message) is to be told to ``hearer``. ``settle``: seconds for which it waits for others
        like it; None: as always."""
        state = self._hearers.setdefault(hearer, _Hearer())
        if notice not in state.pending:
            state.pending[notice] = None
        if not held and state.pending[notice] is None:
            self._schedule(hearer, state, notice, now, self._settle if settle is None else settle)

    def release(self, hearer: K, now: float) -> None:
        """``hearer`` can be told now: what was held for it becomes due."""
        state = self._hearers.get(hearer)
        if state is None:
            return
        for notice in [notice for notice, due in state.pending.items() if due is None]:
            self._schedule(hearer, state, notice, now, self._settle)

    def forget(self, hearer: K) -> None:
        """``hearer`` is gone."""
        self._hearers.pop(hearer, None)

    def next_due(self) -> float | None:
        """When ``take`` has something, at the earliest."""
        while self._heap and not self._current(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now: float) -> list[tuple[K, bytes]]:
        """What is to be told now, to whom, in the order in which it became due."""
        out: list[tuple[K, bytes]] = []
        while (due := self.next_due()) is not None and due <= now:
            _, _, hearer, notice = heapq.heappop(self._heap)
            state = self._hearers[hearer]
            del state.pending[notice]
            state.last = {n: at for n, at in state.last.items() if now - at < self._interval}
            state.last[notice] = now
            out.append((hearer, notice))
        return out

    def _schedule(self, hearer: K, state: _Hearer, notice: bytes, now: float, settle: float) -> None:
        due = max(now + settle, state.last.get(notice, float("-inf")) + self._interval)
        state.pending[notice] = due
        self._order += 1
        heapq.heappush(self._heap, (due, self._order, hearer, notice))

    def _current(self, entry: tuple[float, int, K, bytes]) -> bool:
        state = self._hearers.get(entry[2])
        return state is not None and state.pending.get(entry[3]) == entry[0]
