"""Input requests of a modern upstream, put to a legacy client one by one, and the retry that carries the answers.

Owns the rounds of such calls, the ids of links, and the roots that a client told and has not changed since. Never
decides what is lawful (``core.bridge``) or how an ask looks (``core.asks``); asking is ``asking``'s.
Source: MCP 2026-07-28, Multi Round-Trip Requests; MCP 2025-11-25, Elicitation, Roots.
"""

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from coffer_common import errors, frames
from coffer_common.resources import Limits
from coffer_common.version import SERVER_INFO
from coffer_worker.core import asks, bridge, translate
from coffer_worker.core.asks import Wish
from coffer_worker.core.relay import Flight, Relay
from coffer_worker.core.translate import View
from coffer_worker.log import UpstreamLog
from coffer_worker.outlet import Outlet
from coffer_worker.parking import Ways

COMPLETE: Final = "notifications/elicitation/complete"
_PATIENCE_SECONDS: Final = 30.0

Ask = Callable[[Wish, Flight, str, str], None]


@dataclass(slots=True, eq=False)
class _Round:
    """What a modern upstream wants of a legacy client: its state, the wishes and what came so far. ``agreed``: how
    often each URL was; ``minted``: our ids for them; ``changed``: the client's roots did, since they were asked for."""

    state: bytes | None = None
    wishes: dict[str, Wish] = field(default_factory=dict)
    answers: dict[str, bytes] = field(default_factory=dict)
    agreed: dict[str, int] = field(default_factory=dict)
    minted: dict[str, str] = field(default_factory=dict)
    changed: bool = False


class Rounds:
    """The calls of one modern upstream that wait for a legacy client's input. ``ask(wish, flight, key, id)`` shows one
    wish; ``clock`` lets a call's limits run on."""

    def __init__(
        self,
        server: str,
        limits: Limits,
        relay: Relay,
        ways: Ways,
        *,
        ask: Ask,
        clock: Callable[[Flight], None],
        outlet: Outlet,
        log: UpstreamLog,
    ) -> None:
        self._server, self._limits, self._relay, self._ways = server, limits, relay, ways
        self._ask, self._clock, self._outlet, self._log = ask, clock, outlet, log
        self._loop = asyncio.get_running_loop()
        self._rounds: dict[Flight, _Round] = {}
        self._roots: dict[str, bytes] = {}

    def __contains__(self, flight: Flight) -> bool:
        return flight in self._rounds

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
            view = View("modern", caller.naming, self._server, SERVER_INFO)
            shown = asks.shown_required(translate.answerer(raw, view), view)
            self._ways.end(flight, frames.Reply(flight.corr), shown)
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
        rounds.changed = False
        kept = self._roots.get(flight.caller.session)
        for key, wish in rounds.wishes.items():
            if kept is not None and wish.method == bridge.ROOTS:
                rounds.answers[key] = kept
        if rounds.answers.keys() == rounds.wishes.keys():
            self._again(flight, rounds)
            return
        for key, wish in [(key, wish) for key, wish in rounds.wishes.items() if key not in rounds.answers]:
            identity = rounds.minted.setdefault(wish.url, str(uuid.uuid4())) if wish.url else ""
            self._ask(wish, flight, key, identity)

    def collected(self, key: str, wish: Wish, flight: Flight, payload: bytes, *, error: bool) -> None:
        """The client answered one of the wishes."""
        rounds = self._rounds[flight]
        if not error:
            try:
                rounds.answers[key] = asks.answer(payload)
            except ValueError:
                error = True
        if error and wish.method == bridge.ELICITATION:
            self._log.note(
                f"the client answered an elicitation with an error, told to the upstream as cancel: {flight.key}"
            )
            rounds.answers[key] = asks.CANCELLED
        elif error:
            # An input response has no place for an error: the call ends with it, and the upstream hears nothing more.
            code, message = translate.code_of(payload), asks.message_of(payload)
            self._ways.end(flight, frames.Fail(flight.corr, code, message), payload)
            return
        if wish.url and asks.action(rounds.answers[key]) == "accept":
            rounds.agreed[wish.url] = rounds.agreed.get(wish.url, 0) + 1
        if wish.method == bridge.ROOTS and not rounds.changed and bridge.tells_roots(flight.caller):
            self._roots[flight.caller.session] = rounds.answers[key]
        self._clock(flight)
        if rounds.answers.keys() == rounds.wishes.keys():
            self._again(flight, rounds)

    def _again(self, flight: Flight, rounds: _Round) -> None:
        flight.extra = asks.retried(rounds.answers, rounds.state)
        self._ways.begin(flight)

    def ended(self, flight: Flight, *, answered: bool) -> None:
        """A call ends; where it was ``answered`` with a result, its links are done, and the client is told."""
        rounds = self._rounds.pop(flight, None)
        if rounds is not None and answered:
            for identity in rounds.minted.values():
                params = msgspec.json.encode({"elicitationId": identity})
                self._outlet.send(frames.Notify(COMPLETE, flight.corr), params)

    def forget_roots(self, session: str) -> None:
        """A client's roots changed, or it has left: what it told of them is not true any more."""
        self._roots.pop(session, None)
        for flight, rounds in self._rounds.items():
            rounds.changed = rounds.changed or flight.caller.session == session
