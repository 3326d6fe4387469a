"""Upstreams' asks (sampling, elicitation, roots) on their way to the client whose call caused them, and the answers.

Owns which call an ask belongs to, the asks that legacy clients have open, and the rounds of a modern upstream that a
legacy client answers. Modern clients of legacy upstreams are ``parking``'s. Never decides what is lawful or how an ask
looks on the other side (``core.bridge``, ``core.asks``). Source: MCP, Client Features; Multi Round-Trip Requests.
"""

import asyncio
import itertools
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

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
from coffer_worker.parking import Parking, Ways, refuse_ask
from coffer_worker.upstream.connection import Connection

MAX_ASKS: Final = 64
"""Asks of one connection that may wait for an answer; beyond it an ask is refused at once."""
_COMPLETE: Final = "notifications/elicitation/complete"
# An ask that comes while a connection is made for a call belongs to that call, which is sent a moment later.
_EARLY_SECONDS: Final = 0.5
_PATIENCE_SECONDS: Final = 30.0
_decode: Final = msgspec.json.decode


class Outlet(Protocol):
    """Where frames to the supervisor go."""

    def send(self, frame: Any, payload: bytes = b"") -> None:
        """Queue one bulk frame with its payload part."""


@dataclass(slots=True, eq=False)
class _Open:
    """What a legacy client was asked. ``conn`` and ``raw_id``: the upstream's request; ``key``: of a modern upstream's
    input request instead. ``flight`` None: it belongs to no call, only to the session."""

    number: int
    session: str
    wish: Wish
    flight: Flight | None
    connection: Connection | None = None
    raw_id: bytes = b""
    key: str = ""


@dataclass(slots=True, eq=False)
class _Round:
    """What a modern upstream wants of a legacy client: its state, the wishes and what came so far. ``agreed``: how
    often each URL was; ``minted``: our ids for them."""

    state: bytes | None = None
    wishes: dict[str, Wish] = field(default_factory=dict)
    answers: dict[str, bytes] = field(default_factory=dict)
    agreed: dict[str, int] = field(default_factory=dict)
    minted: dict[str, str] = field(default_factory=dict)


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
        self._ways, self._outlet, self._log = ways, outlet, log
        self._loop = asyncio.get_running_loop()
        self.parking = Parking(server, limits, relay, connections, ways, outlet=outlet, run=run)
        self._numbers = itertools.count(1)
        self._open: dict[int, _Open] = {}
        self._rounds: dict[Flight, _Round] = {}
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
            self._of_call(connection, raw_id, wish, flight)
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

    def _of_call(self, connection: Connection, raw_id: bytes, wish: Wish, flight: Flight) -> None:
        caller = flight.caller
        if caller.era == "legacy":
            self._to_client(_Open(next(self._numbers), caller.session, wish, flight, connection, raw_id), caller)
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
            self._relay.asking(flight, now)
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
            self._collected(asked, flight, payload, error=frame.error)
            return
        if asked.connection is not None and asked.connection.pipe is not None:
            write = jsonrpc.error_response if frame.error else jsonrpc.response
            asked.connection.pipe.send(write(asked.raw_id, translate.notification_params(payload)))
        self._clock(flight)

    def _clock(self, flight: Flight | None) -> None:
        """The call's limits run on when nothing is being asked any more."""
        if flight is not None and not any(asked.flight is flight for asked in self._open.values()):
            self._relay.answered(flight, self._loop.time())
            self._ways.arm(self._relay.next_deadline())

    def upstream_cancelled(self, connection: Connection, params: bytes) -> None:
        """``notifications/cancelled`` of the upstream: it takes an ask back."""
        raw_id = asks.cancelled_request(params)
        self.parking.withdrawn(connection, raw_id)
        for asked in list(self._open.values()):
            if asked.connection is connection and asked.raw_id == raw_id:
                self._withdraw(asked, "cancelled by the upstream")
                self._clock(asked.flight)

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

    # ---- a modern upstream's input requests

    def required(self, flight: Flight, raw: bytes) -> None:
        """A modern upstream answered a call with ``input_required``."""
        what = f"Upstream {self._server!r} answered {flight.method} {flight.key!r}"
        try:
            found = asks.required(raw)
        except ValueError as error:
            self._ways.fail(flight, errors.BAD_ANSWER, f"{what} with an input_required that cannot be read: {error}")
            return
        caller = flight.caller
        declared = bridge.declared(caller, "modern")
        for wish in found.wishes.values():
            known = wish.method in bridge.ASKS and flight.method in bridge.MAY_ASK
            refused = bridge.unlawful(wish.method, wish.view(), declared) if known else None
            if not known or refused is not None:
                why = refused.message if refused is not None else "that cannot be asked here"
                text = f"{what}, but it asks for input ({wish.method[:40]}) that the client cannot give: {why}"
                self._ways.fail(flight, errors.BAD_ANSWER, text)
                return
        if caller.era == "modern":
            view = View("modern", caller.naming, self._server)
            self._ways.end(flight, frames.Reply(flight.corr), asks.shown_required(raw, view))
        else:
            self._round(flight, found)

    def _round(self, flight: Flight, found: asks.Required) -> None:
        flight.rounds += 1
        if flight.rounds > self._limits.rounds:
            text = f"Upstream {self._server!r} asked for input more than {self._limits.rounds} times, its limit rounds"
            self._ways.fail(flight, errors.ROUNDS_LIMIT, f"{text}, during {flight.method} {flight.key!r}")
            return
        self._relay.between(flight)
        rounds = self._rounds.setdefault(flight, _Round())
        rounds.state, rounds.wishes, rounds.answers = found.state, found.wishes, {}
        # A URL that was agreed to and is asked for again: it is not done yet, and asking at once would only annoy.
        repeated = max((rounds.agreed.get(wish.url, 0) for wish in found.wishes.values()), default=0)
        delay = min(2.0 ** (repeated - 1), _PATIENCE_SECONDS) if repeated else 0.0
        if not found.wishes:
            delay = min(2.0 ** (flight.rounds - 1) / 10, _PATIENCE_SECONDS)
        if delay:
            self._loop.call_later(delay, self._ask_round, flight, rounds)
        else:
            self._ask_round(flight, rounds)

    def _ask_round(self, flight: Flight, rounds: _Round) -> None:
        if flight.stage != "waiting" or self._rounds.get(flight) is not rounds:
            return
        if not rounds.wishes:
            self._again(flight, rounds)
        for key, wish in rounds.wishes.items():
            identity = ""
            if wish.url:
                identity = rounds.minted.setdefault(wish.url, str(uuid.uuid4()))
            asked = _Open(next(self._numbers), flight.caller.session, wish, flight, key=key)
            self._to_client(asked, flight.caller, identity)

    def _collected(self, asked: _Open, flight: Flight, payload: bytes, *, error: bool) -> None:
        rounds = self._rounds[flight]
        if not error:
            try:
                rounds.answers[asked.key] = asks.answer(payload)
            except ValueError:
                error = True
        if error and asked.wish.method == bridge.ELICITATION:
            self._log.note(
                f"the client answered an elicitation with an error, told to the upstream as cancel: {flight.key}"
            )
            rounds.answers[asked.key] = asks.CANCELLED
        elif error:
            # An input response has no place for an error: the call ends with it, and the upstream hears nothing more.
            code, message = translate.code_of(payload), asks.message_of(payload)
            self._ways.end(flight, frames.Fail(flight.corr, code, message), payload)
            return
        if asked.wish.url and asks.action(rounds.answers[asked.key]) == "accept":
            rounds.agreed[asked.wish.url] = rounds.agreed.get(asked.wish.url, 0) + 1
        self._clock(flight)
        if rounds.answers.keys() == rounds.wishes.keys():
            self._again(flight, rounds)

    def _again(self, flight: Flight, rounds: _Round) -> None:
        flight.extra = asks.retried(rounds.answers, rounds.state)
        self._ways.begin(flight)

    # ---- ends

    def sent(self, flight: Flight) -> None:
        """A call goes upstream: from now on its session may be asked."""
        if flight.caller.era == "legacy":
            self._callers[flight.caller.session] = flight.caller

    def overdue(self, flight: Flight, refusal: Refusal) -> None:
        """Nobody answered in time."""
        if flight.parked or flight in self._rounds:
            self._ways.drop(flight, refusal)
            return
        for asked in [asked for asked in self._open.values() if asked.flight is flight]:
            self._unanswered(asked)
        self._clock(flight)

    def ending(self, flight: Flight, *, answered: bool = False) -> None:
        """A call is about to end: what its client is still asked is taken back. ``answered``: with a result."""
        rounds = self._rounds.pop(flight, None)
        if rounds is not None and answered:
            for identity in rounds.minted.values():
                params = msgspec.json.encode({"elicitationId": identity})
                self._outlet.send(frames.Notify(_COMPLETE, flight.corr), params)
        self.parking.ended(flight)
        if self._open:
            for asked in [asked for asked in self._open.values() if asked.flight is flight]:
                self._withdraw(asked, "the call has ended")
                self._orphaned(asked, flight)

    def _orphaned(self, asked: _Open, flight: Flight) -> None:
        """An ask whose call has ended: on a session's connection it may have been another call's."""
        connection = asked.connection
        if connection is None or connection.gone is not None:
            return
        others = [other for other in self._relay.of_connection(connection.number) if other is not flight]
        if others:
            self._of_call(connection, asked.raw_id, asked.wish, others[-1])
        else:
            message = f"{asked.wish.method}: the call that this belonged to has ended"
            refuse_ask(connection, asked.raw_id, Unlawful(protocol.INVALID_PARAMS, message))

    def lost(self, connection: Connection) -> None:
        """A connection has ended, and its asks with it."""
        for asked in [asked for asked in self._open.values() if asked.connection is connection]:
            self._withdraw(asked, "the upstream is gone")
            self._clock(asked.flight)

    def close_session(self, session: str) -> None:
        """A session has ended."""
        self._callers.pop(session, None)
        for asked in [asked for asked in self._open.values() if asked.session == session and asked.flight is None]:
            del self._open[asked.number]
            if asked.connection is not None:
                refuse_ask(asked.connection, asked.raw_id, Unlawful(protocol.INVALID_PARAMS, "The client has left"))

    # ---- notices

    def roots_changed(self, session: str) -> None:
        """The client's roots changed: its own connections are told, where they declared that it tells."""
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
            self._outlet.send(frames.Notify(_COMPLETE, sessions=(session,)), translate.notification_params(params))


def tells_roots(connection: Connection) -> bool:
    """Whether a connection declared that changes of the roots are announced."""
    declared = _decode(connection.hop.capabilities)
    return connection.hop.era == "legacy" and bool(declared.get("roots", {}).get("listChanged"))
