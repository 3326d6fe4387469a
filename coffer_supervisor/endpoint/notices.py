"""What belongs to no call, brought to the clients concerned: list changes, resource updates, session notices.

Owns the hearers (legacy sessions and modern listen streams) and one timer. Which notice is due when is decided in
``core.subscriptions``. Never blocks; a hearer that does not read loses notices, not the daemon its memory.
Source: MCP 2025-11-25, list changed and resource updated notifications; MCP 2026-07-28, Subscriptions.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from coffer_common import jsonrpc, names, protocol
from coffer_supervisor.core.calls import Principal, Scope
from coffer_supervisor.core.subscriptions import METHODS, SETTLE_SECONDS, UPDATED, Coalescer
from coffer_supervisor.endpoint.asked import ask_id, withdrawal

ELICITATION_COMPLETE: Final = "notifications/elicitation/complete"


@dataclass(slots=True)
class Hearer:
    """Someone who is told. ``deliver`` takes one whole message; ``ready``: whether it can be told now (otherwise it
    is kept until ``Notices.released``). ``stamp``: the raw id of a listen request, None for a legacy session.
    ``session``: under which name its calls go to upstreams; empty where that is ``id``."""

    id: str
    principal: Principal
    scope: Scope
    deliver: Callable[[bytes], object]
    ready: Callable[[], bool]
    kinds: frozenset[str]
    stamp: bytes | None = None
    uris: set[str] = field(default_factory=set)
    session: str = ""
    asks: dict[bytes, int] | None = None
    """Where a legacy session keeps what it is asked, by id; None where it cannot be."""

    def notification(self, method: str, uri: str | None = None) -> bytes:
        """The message in this hearer's form."""
        params = {} if uri is None else {"uri": uri}
        if self.stamp is not None:
            meta = {protocol.META_SUBSCRIPTION_ID: msgspec.Raw(self.stamp)}
            return jsonrpc.notification(method, msgspec.json.encode({"_meta": meta, **params}))
        return jsonrpc.notification(method, msgspec.json.encode(params) if params else b"")


class Notices:
    """The router's ``NoticeSink``. ``sees``: whether a principal at an endpoint can see anything of a server.
    ``settle``: for how many seconds a change of lists waits for others now."""

    def __init__(
        self, sees: Callable[[Principal, Scope, str], bool], settle: Callable[[], float] = lambda: SETTLE_SECONDS
    ) -> None:
        self._sees, self._settle = sees, settle
        self._hearers: dict[str, Hearer] = {}
        self._coalescer: Coalescer[str] = Coalescer()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, hearer: Hearer) -> None:
        """From now on it is told."""
        self._hearers[hearer.id] = hearer

    def remove(self, hearer_id: str) -> Hearer | None:
        """It is told no more."""
        self._coalescer.forget(hearer_id)
        return self._hearers.pop(hearer_id, None)

    def released(self, hearer_id: str) -> None:
        """It can be told now: what was kept for it follows."""
        self._coalescer.release(hearer_id, self._now())
        self._arm()

    def close(self) -> None:
        """No more timers."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._hearers.clear()

    def group_changed(self, group: str) -> None:
        """Those who listen at that group's endpoint may see other lists now."""
        now = self._now()
        for hearer in self._hearers.values():
            if hearer.scope.group == group:
                for kind in sorted(hearer.kinds):
                    self._coalescer.mark(hearer.id, hearer.notification(METHODS[kind]), now, held=not hearer.ready())
        self._arm()

    def _concerned(self, hearer: Hearer, server: str) -> bool:
        """Whether what happens at ``server`` can be seen at the hearer's endpoint."""
        if hearer.scope.server is not None:
            return hearer.scope.server == server
        return self._sees(hearer.principal, hearer.scope, server)

    # ---- NoticeSink

    def lists_changed(self, server: str, kinds: frozenset[str], session: str = "") -> None:
        """See ``core.calls.NoticeSink``."""
        now = self._now()
        settle = self._settle()
        for hearer in self._hearers.values():
            if session in ("", hearer.session or hearer.id) and self._concerned(hearer, server):
                for kind in sorted(kinds & hearer.kinds):
                    notice = hearer.notification(METHODS[kind])
                    self._coalescer.mark(hearer.id, notice, now, settle=settle, held=not hearer.ready())
        self._arm()

    def resource_updated(self, server: str, subscribers: tuple[str, ...], uri: str) -> None:
        """See ``core.calls.NoticeSink``."""
        now = self._now()
        exposed = names.exposed_uri(server, uri)
        if subscribers:
            hearers = [self._hearers[name] for name in subscribers if name in self._hearers]
        else:
            hearers = [h for h in self._hearers.values() if h.uris and self._concerned(h, server)]
        for hearer in hearers:
            if self._concerned(hearer, server):
                shown = uri if hearer.scope.server is not None else exposed
                notice = hearer.notification(UPDATED, shown)
                self._coalescer.mark(hearer.id, notice, now, held=not hearer.ready())
        self._arm()

    def session_notice(self, server: str, sessions: tuple[str, ...], method: str, params: bytes) -> None:
        """See ``core.calls.NoticeSink``. Only sessions hear it; a listen stream did not ask for it."""
        message = jsonrpc.notification(method, params)
        for name in sessions or tuple(self._hearers):
            hearer = self._hearers.get(name)
            if hearer is None or hearer.stamp is not None or not hearer.ready():
                continue
            # What was asked on the aggregate is reported as done there too; all else is the pass-through endpoint's.
            if hearer.scope.server == server or (sessions and method == ELICITATION_COMPLETE):
                hearer.deliver(message)

    def session_ask(self, session: str, ask: int, method: str, params: bytes) -> bool:
        """See ``core.calls.NoticeSink``."""
        hearer = self._hearers.get(session)
        if hearer is None or hearer.asks is None or not hearer.ready():
            return False
        raw_id = ask_id(ask)
        hearer.asks[raw_id] = ask
        hearer.deliver(jsonrpc.request(raw_id, method, params))
        return True

    def session_withdraw(self, session: str, ask: int) -> None:
        """See ``core.calls.NoticeSink``."""
        hearer, raw_id = self._hearers.get(session), ask_id(ask)
        if hearer is not None and hearer.asks is not None and hearer.asks.pop(raw_id, None) is not None:
            hearer.deliver(withdrawal(raw_id))

    # ---- the timer

    def _arm(self) -> None:
        due = self._coalescer.next_due()
        if self._timer is not None:
            if due is not None and self._timer.when() <= due and not self._timer.cancelled():
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = asyncio.get_running_loop().call_at(due, self._tell)

    def _tell(self) -> None:
        self._timer = None
        for name, notice in self._coalescer.take(self._now() + 0.001):
            hearer = self._hearers.get(name)
            if hearer is None:
                continue
            if hearer.ready():
                hearer.deliver(notice)
            else:
                self._coalescer.mark(name, notice, self._now(), held=True)
        self._arm()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
