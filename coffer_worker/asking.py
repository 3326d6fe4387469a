"""Upstreams' asks (sampling, elicitation, roots) on their way to the client whose call caused them, and the answers.

Owns which call an ask belongs to, and the asks that legacy clients have open. Modern clients of legacy upstreams are
``parking``'s, a modern upstream's input requests are ``rounds``'s. Never decides what is lawful or how an ask looks on
the other side (``core.bridge``, ``core.asks``). Source: MCP, Client Features.
"""

import asyncio
import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from coffer_common import errors, frames, jsonrpc, protocol
from coffer_common.resources import Limits
from coffer_worker.connections import Connections
from coffer_worker.core import asks, bridge, translate
from coffer_worker.core.asks import Wish
from coffer_worker.core.bridge import Unlawful
from coffer_worker.core.pool import SHARED, SPARE
from coffer_worker.core.relay import Flight, Refusal, Relay
from coffer_worker.core.translate import View
from coffer_worker.log import UpstreamLog
from coffer_worker.outlet import Outlet
from coffer_worker.parking import Parking, Ways, refuse_ask
from coffer_worker.rounds import COMPLETE, Rounds
from coffer_worker.upstream.connection import Connection

MAX_ASKS: Final = 64
"""Asks of one connection that may wait for an answer; beyond it an ask is refused at once."""
# An ask that comes while a connection is made for a call belongs to that call, which is sent a moment later.
_EARLY_SECONDS: Final = 0.5
_decode: Final = msgspec.json.decode


@dataclass(slots=True, eq=False)
class _Open:
    """What a legacy client was asked. ``connection`` and ``raw_id``: the upstream's request; ``key``: of a modern
    upstream's input request instead. ``flight`` None: it belongs to no call, only to the session; ``certain`` False: it
    may be another one's of the calls on that connection."""

    number: int
    session: str
    wish: Wish
    flight: Flight | None
    connection: Connection | None = None
    raw_id: bytes = b""
    key: str = ""
    certain: bool = True

    def concerns(self, flight: Flight) -> bool:
        """Whether that call may be waiting for the answer."""
        if self.flight is flight:
            return True
        return not self.certain and self.connection is not None and self.connection.number == flight.conn


class Asking:
    """The asks of one upstream."""

    def __init__(
        self,
        server: str,
        limits: Limits,
        relay: Relay,
        connections: Connections,
        ways: Ways,
        *,
        outlet: Outlet,
        log: UpstreamLog,
        run: str,
    ) -> None:
        self._server, self._limits, self._relay, self._connections = server, limits, relay, connections
        self._ways, self._outlet = ways, outlet
        self._loop = asyncio.get_running_loop()
        self.parking = Parking(server, limits, relay, connections, ways, outlet=outlet, run=run)
        self.rounds = Rounds(
            server, limits, relay, ways, ask=self._round_asks, clock=self._clock, outlet=outlet, log=log
        )
        self._numbers = itertools.count(1)
        self._open: dict[int, _Open] = {}
        self._callers: dict[str, frames.Caller] = {}
        self._early: Counter[int] = Counter()

    # ---- a legacy upstream's requests

    def on_request(self, connection: Connection, raw_id: bytes, method: str, params: bytes, related: Any) -> None:
        """A request of the upstream: carried to a client, or answered here."""
        if method not in bridge.ASKS or connection.hop.era == "modern":
            answer = bridge.answer(method if method not in bridge.ASKS else "")
            write = jsonrpc.error_response if answer.error else jsonrpc.response
            if connection.pipe is not None:
                connection.pipe.send(write(raw_id, answer.payload))
            return
        wish = Wish(method, params or b"{}")
        if wish.params[:1] != b"{":
            refuse_ask(connection, raw_id, Unlawful(protocol.INVALID_PARAMS, f"{method}: params must be an object"))
            return
        self._asked(connection, raw_id, wish, related, early=True)

    def _asked(self, connection: Connection, raw_id: bytes, wish: Wish, related: Any, *, early: bool) -> None:
        if connection.gone is not None:
            return
        # During the handshake nothing is agreed on yet; what was declared stands in the hop once it is.
        declared = _decode(connection.hop.capabilities) if connection.negotiated else None
        refused = bridge.unlawful(wish.method, wish.view(), declared) if declared is not None else None
        if refused is None and self._waiting(connection) >= MAX_ASKS:
            message = f"{wish.method}: {MAX_ASKS} requests of this connection wait for an answer already"
            refused = Unlawful(protocol.INTERNAL_ERROR, message)
        if refused is not None:
            refuse_ask(connection, raw_id, refused)
            return
        flight = self._whose(connection, related)
        member = self._connections.pool.members.get(connection.number)
        session = member.key.session if member is not None else SPARE
        caller = self._callers.get(session)
        if flight is not None:
            self._of_call(connection, raw_id, wish, flight, certain=related is not None)
        elif early and (member is None or (session not in (SPARE, SHARED) and not member.answered)):
            self._early[connection.number] += 1
            self._loop.call_later(_EARLY_SECONDS, self._asked_early, connection, raw_id, wish, related)
        elif caller is not None and caller.era == "legacy":
            self._to_client(_Open(next(self._numbers), session, wish, None, connection, raw_id), caller)
        else:
            message = f"{wish.method}: no request of a client is open that this could belong to"
            refuse_ask(connection, raw_id, Unlawful(protocol.INVALID_PARAMS, message))

    def _asked_early(self, connection: Connection, raw_id: bytes, wish: Wish, related: Any) -> None:
        """The connection should be made by now."""
        self._early[connection.number] -= 1
        if not self._early[connection.number]:
            del self._early[connection.number]
        self._asked(connection, raw_id, wish, related, early=False)

    def _waiting(self, connection: Connection) -> int:
        """How many of its asks are open: an upstream that asks without end must not fill our memory."""
        open_asks = sum(asked.connection is connection for asked in self._open.values())
        return open_asks + self.parking.waiting(connection) + self._early[connection.number]

    def _whose(self, connection: Connection, related: Any) -> Flight | None:
        """The call that an ask belongs to: the transport tells, or else the one on its session's own connection."""
        candidates = self._relay.of_connection(connection.number)
        if related is not None:
            return next((flight for flight in candidates if flight.id == related), None)
        if len(candidates) == 1 or (candidates and len({f.caller.session for f in candidates}) == 1):
            legacy = candidates[-1].caller.era == "legacy"
            return candidates[-1] if legacy or len(candidates) == 1 else None
        return None

    def _of_call(self, connection: Connection, raw_id: bytes, wish: Wish, flight: Flight, *, certain: bool) -> None:
        caller = flight.caller
        if caller.era == "legacy":
            number, session = next(self._numbers), caller.session
            self._to_client(_Open(number, session, wish, flight, connection, raw_id, certain=certain), caller)
            return
        refused = bridge.unlawful(wish.method, wish.view(), bridge.declared(caller))
        if refused is None and flight.method not in bridge.MAY_ASK:
            refused = Unlawful(protocol.INVALID_PARAMS, f"{wish.method} cannot be asked during {flight.method}")
        if refused is not None:
            refuse_ask(connection, raw_id, refused)
        else:
            self.parking.asked(flight, connection, raw_id, wish)

    # ---- a legacy client is asked

    def _to_client(self, asked: _Open, caller: frames.Caller, elicitation_id: str = "") -> None:
        view = View(caller.era, caller.naming, self._server)
        params = asks.for_legacy_client(asked.wish, view, elicitation_id)
        flight = asked.flight
        if flight is not None:
            now = self._loop.time()
            for concerned in filter(asked.concerns, self._relay):
                self._relay.asking(concerned, now)
            self._ways.arm(now + self._limits.answer_seconds)
        else:
            self._loop.call_later(self._limits.answer_seconds, self._unanswered, asked)
        self._open[asked.number] = asked
        corr = 0 if flight is None else flight.corr
        self._outlet.send(frames.Ask(asked.number, corr, asked.session, asked.wish.method), params)

    def answer(self, frame: frames.Answer, payload: bytes) -> None:
        """The client's answer; one that nobody waits for any more is dropped."""
        asked = self._open.pop(frame.ask, None)
        if asked is None:
            return
        flight = asked.flight
        if asked.key and flight is not None:
            self.rounds.collected(asked.key, asked.wish, flight, payload, error=frame.error)
            return
        if asked.connection is not None and asked.connection.pipe is not None:
            write = jsonrpc.error_response if frame.error else jsonrpc.response
            asked.connection.pipe.send(write(asked.raw_id, translate.notification_params(payload)))
        self._resume(asked)

    def _resume(self, asked: _Open) -> None:
        for flight in filter(asked.concerns, self._relay):
            self._clock(flight)

    def _clock(self, flight: Flight) -> None:
        """The call's limits run on when nothing is being asked any more."""
        if not any(asked.concerns(flight) for asked in self._open.values()):
            self._relay.answered(flight, self._loop.time())
            self._ways.arm(self._relay.next_deadline())

    def _round_asks(self, wish: Wish, flight: Flight, key: str, elicitation_id: str) -> None:
        caller = flight.caller
        self._to_client(_Open(next(self._numbers), caller.session, wish, flight, key=key), caller, elicitation_id)

    def upstream_cancelled(self, connection: Connection, params: bytes) -> None:
        """``notifications/cancelled`` of the upstream: it takes an ask back."""
        raw_id = asks.cancelled_request(params)
        self.parking.withdrawn(connection, raw_id)
        for asked in list(self._open.values()):
            if asked.connection is connection and asked.raw_id == raw_id:
                self._withdraw(asked, "cancelled by the upstream")
                self._resume(asked)

    def _withdraw(self, asked: _Open, reason: str) -> None:
        del self._open[asked.number]
        self._outlet.send(frames.Withdraw(asked.number, reason))

    def _unanswered(self, asked: _Open) -> None:
        """The limit for answers was reached: the upstream hears of it, the client is not asked any more."""
        if asked.number not in self._open:
            return
        self._withdraw(asked, "nobody answered in time")
        if asked.connection is not None:
            reason = errors.ANSWER_LIMIT
            refuse_ask(asked.connection, asked.raw_id, Unlawful(reason.legacy_code, "Nobody answered in time"))

    # ---- ends

    def sent(self, flight: Flight) -> None:
        """A call goes upstream: from now on its session may be asked."""
        if flight.caller.era == "legacy":
            self._callers[flight.caller.session] = flight.caller

    def overdue(self, flight: Flight, refusal: Refusal) -> None:
        """Nobody answered in time."""
        if flight.parked or flight in self.rounds:
            self._ways.drop(flight, refusal)
            return
        for asked in [asked for asked in self._open.values() if asked.concerns(flight)]:
            self._unanswered(asked)
        self._clock(flight)

    def ending(self, flight: Flight, *, answered: bool = False) -> None:
        """A call is about to end: what its client is still asked is taken back. ``answered``: with a result."""
        self.rounds.ended(flight, answered=answered)
        self.parking.ended(flight)
        if self._open:
            for asked in [asked for asked in self._open.values() if asked.flight is flight]:
                self._orphaned(asked, flight)

    def _orphaned(self, asked: _Open, flight: Flight) -> None:
        """An ask whose call ends: on a session's connection it was another call's then, and becomes that one's."""
        connection = asked.connection
        if connection is None or connection.gone is not None:
            self._withdraw(asked, "the call has ended")
            return
        others = [] if asked.certain else self._relay.of_connection(connection.number)
        others = [other for other in others if other is not flight]
        if others:
            asked.flight, view = others[-1], View("legacy", others[-1].caller.naming, self._server)
            moved = frames.Ask(asked.number, others[-1].corr, asked.session, asked.wish.method)
            self._outlet.send(moved, asks.for_legacy_client(asked.wish, view))
        else:
            self._withdraw(asked, "the call has ended")
            message = f"{asked.wish.method}: the call that this belonged to has ended"
            refuse_ask(connection, asked.raw_id, Unlawful(protocol.INVALID_PARAMS, message))

    def lost(self, connection: Connection) -> None:
        """A connection has ended, and its asks with it."""
        for asked in [asked for asked in self._open.values() if asked.connection is connection]:
            self._withdraw(asked, "the upstream is gone")
            self._resume(asked)

    def close_session(self, session: str) -> None:
        """A session has ended."""
        self._callers.pop(session, None)
        self.rounds.forget_roots(session)
        for asked in [asked for asked in self._open.values() if asked.session == session and asked.flight is None]:
            del self._open[asked.number]
            if asked.connection is not None:
                refuse_ask(asked.connection, asked.raw_id, Unlawful(protocol.INVALID_PARAMS, "The client has left"))

    # ---- notices

    def roots_changed(self, session: str) -> None:
        """The client's roots changed: its own connections are told, where they declared that it tells."""
        self.rounds.forget_roots(session)
        for member in self._connections.pool.of_session(session):
            connection = self._connections.open.get(member.number)
            if connection is not None and tells_roots(connection):
                connection.notify("notifications/roots/list_changed")

    def completed(self, connection: Connection, params: bytes) -> None:
        """``notifications/elicitation/complete``: a legacy client hears of its own; a modern one has no such notice."""
        self.parking.completed(asks.completed_id(params))
        member = self._connections.pool.members.get(connection.number)
        session = SPARE if member is None else member.key.session
        if session in self._callers:
            self._outlet.send(frames.Notify(COMPLETE, sessions=(session,)), translate.notification_params(params))


def tells_roots(connection: Connection) -> bool:
    """Whether a connection declared that changes of the roots are announced."""
    declared = _decode(connection.hop.capabilities)
    return connection.hop.era == "legacy" and bool(declared.get("roots", {}).get("listChanged"))
