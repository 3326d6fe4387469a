"""Calls of modern clients to legacy upstreams that ask something meanwhile: parked, shown, resumed.

Owns the effects of ``core.parked``: the answer that asks, the answers that go to the upstream, the ``-32042`` of an
upstream that wants a URL opened first. Never runs a call twice, save after a ``-32042``, which ran nothing.
Source: MCP 2026-07-28, Multi Round-Trip Requests; MCP 2025-11-25, Elicitation.
"""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from coffer_common import errors, frames, jsonrpc, protocol
from coffer_common.errors import Reason
from coffer_common.resources import Limits
from coffer_worker.connections import Connections
from coffer_worker.core import asks, bridge, sealed, translate
from coffer_worker.core.asks import Wish
from coffer_worker.core.bridge import Unlawful
from coffer_worker.core.parked import Owner, Parked, Refused, Resumed
from coffer_worker.core.relay import Flight, Refusal, Relay
from coffer_worker.core.sealed import Sealer, State
from coffer_worker.core.translate import View
from coffer_worker.outlet import Outlet
from coffer_worker.upstream.connection import Connection

# Several asks made at once are shown at once.
_TOGETHER_SECONDS: Final = 0.05
_COMPLETE_SECONDS: Final = 10.0

Outcome = tuple[frames.Reply | frames.Fail, bytes]


@dataclass(frozen=True, slots=True)
class Ways:
    """What becomes of a call: ``begin`` sends it (again), ``end`` and ``fail`` answer it, ``drop`` gives it up at the
    upstream and answers it where somebody waits, ``refuse`` answers one that never began, ``arm`` sets the clock."""

    begin: Callable[[Flight], None]
    end: Callable[[Flight, frames.Reply | frames.Fail, bytes], None]
    fail: Callable[[Flight, Reason, str], None]
    drop: Callable[[Flight, Refusal], None]
    refuse: Callable[[frames.Call, Refusal], None]
    arm: Callable[[float | None], None]


@dataclass(slots=True, eq=False)
class _Ask:
    """One ask. Without a connection it comes from a ``-32042``, which names the elicitation."""

    wish: Wish
    connection: Connection | None = None
    raw_id: bytes = b""
    elicitation_id: str = ""


@dataclass(slots=True, eq=False)
class _Call:
    """``again``: the upstream refused before it did anything; ``incomplete``: what it has not reported as done."""

    flight: Flight
    parked: Parked[_Ask, Outcome]
    again: bool = False
    soon: asyncio.TimerHandle | None = None
    incomplete: set[str] = field(default_factory=set)
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class Parking:
    """The parked calls of one upstream."""

    def __init__(
        self,
        server: str,
        limits: Limits,
        relay: Relay,
        connections: Connections,
        ways: Ways,
        *,
        outlet: Outlet,
        run: str,
    ) -> None:
        self._server, self._limits, self._relay, self._connections = server, limits, relay, connections
        self._ways, self._outlet = ways, outlet
        self._loop = asyncio.get_running_loop()
        self._sealer = Sealer(secrets.token_bytes(sealed.KEY_BYTES), run)
        self._calls: dict[int, _Call] = {}
        self._numbers: dict[Flight, int] = {}

    # ---- asks

    def _call_of(self, flight: Flight) -> _Call:
        number = self._numbers.get(flight)
        if number is None:
            number = self._numbers[flight] = self._relay.number()
            digest = asks.digest(flight.method, flight.key, flight.params)
            owner = Owner(flight.caller.principal, flight.caller.endpoint, digest)
            self._calls[number] = _Call(flight, Parked(owner, self._limits.rounds))
        return self._calls[number]

    def asked(self, flight: Flight, connection: Connection, raw_id: bytes, wish: Wish) -> None:
        """A lawful ask during a call."""
        call = self._call_of(flight)
        _, show = call.parked.asked(_Ask(wish, connection, raw_id))
        if show and call.soon is None:
            call.soon = self._loop.call_later(_TOGETHER_SECONDS, self._show, call)

    def url_required(self, flight: Flight, error: bytes) -> bool:
        """An upstream's ``-32042``: whether it became a question to the client, who may open URLs."""
        caller = flight.caller
        if caller.era != "modern" or flight.method not in bridge.MAY_ASK:
            return False
        if translate.code_of(error) != translate.URL_ELICITATION_REQUIRED:
            return False
        if "url" not in bridge.declared(caller).get("elicitation", {}):
            return False
        wishes = asks.url_wishes(error)
        if not wishes:
            return False
        self._relay.between(flight)
        call = self._call_of(flight)
        call.again = True
        for found in wishes:
            call.parked.asked(_Ask(found.wish, elicitation_id=found.elicitation_id))
            if found.elicitation_id:
                call.incomplete.add(found.elicitation_id)
        self._show(call)
        return True

    def _show(self, call: _Call) -> None:
        """Answer the client's open request with what is asked."""
        call.soon = None
        flight, parked = call.flight, call.parked
        if flight.stage == "done" or parked.stage not in ("running", "resumed") or not parked.unanswered:
            return
        now = self._loop.time()
        shown = parked.show(now, self._limits.answer_seconds)
        if shown is None:
            text = f"Upstream {self._server!r} asked for input more than {self._limits.rounds} times, its limit rounds"
            text += f", during {flight.method} {flight.key!r}"
            self._ways.drop(flight, Refusal(errors.ROUNDS_LIMIT, text))
            return
        view = View("modern", flight.caller.naming, self._server)
        requests = {key: asks.for_modern_client(ask.wish, view) for key, ask in shown.items()}
        state = self._sealer.seal(State(self._numbers[flight], parked.round, parked.expiry))
        self._outlet.send(frames.Reply(flight.corr), asks.input_required(requests, state))
        self._relay.asking(flight, now)
        self._relay.park(flight)
        flight.client_token = None
        self._ways.arm(parked.expiry)

    def waiting(self, connection: Connection) -> int:
        """How many asks of that connection nobody has answered yet."""
        found = (ask for call in self._calls.values() for ask in call.parked.waiting)
        return sum(ask.connection is connection for ask in found)

    def withdrawn(self, connection: Connection, raw_id: bytes) -> None:
        """The upstream cancelled an ask."""
        for call in self._calls.values():
            for key, ask in (*call.parked.shown.items(), *call.parked.fresh.items()):
                if ask.connection is connection and ask.raw_id == raw_id:
                    call.parked.withdrawn(key)
                    return

    # ---- retries

    def retry(self, frame: frames.Call, params: bytes) -> bool:
        """Whether a call is the retry of a parked one; it is then resumed or refused."""
        text = asks.retry_state(params)
        if text is None or not sealed.is_ours(text):
            return False
        state = self._sealer.open(text)
        call = self._calls.get(state.call) if state is not None else None
        if state is None or call is None:
            self._refuse(frame, "it is not one that was given out, or its call has ended")
            return True
        owner = Owner(frame.caller.principal, frame.caller.endpoint, asks.digest(frame.method, frame.key, params))
        found = call.parked.retry(state.round, owner, asks.retry_answers(params), self._loop.time())
        if isinstance(found, Refused):
            self._refuse(frame, found.why)
        elif not self._relay.resume(call.flight, frame.corr, frame.caller):
            self._ways.drop(call.flight, Refusal(errors.CANCELLED, "cancelled by the client"))
        else:
            call.flight.client_token, call.flight.log_level = asks.progress_token(params), frame.log_level
            self._resumed(call, found, params)
        return True

    def _refuse(self, frame: frames.Call, why: str) -> None:
        text = f"This requestState of upstream {self._server!r} is not valid: {why}. Make the call anew"
        self._ways.refuse(frame, Refusal(errors.INVALID_PARAMS, text))

    def _resumed(self, call: _Call, found: Resumed[_Ask], params: bytes) -> None:
        flight, parked = call.flight, call.parked
        self._relay.answered(flight, self._loop.time())
        agreed = all([self._give(ask, answer) for ask, answer in found.given])
        if not (self._still_lawful(call) and agreed):
            what = f"Upstream {self._server!r} needs a URL to be opened before {flight.method} {flight.key!r}"
            self._ways.fail(flight, errors.CANCELLED, f"{what}, and the person did not agree")
        elif parked.outcome is not None:
            frame, payload = parked.outcome
            self._ways.end(flight, msgspec.structs.replace(frame, corr=flight.corr), payload)
        elif parked.unanswered:
            self._show(call)
        elif call.again:
            call.again = False
            flight.params = asks.first_try(params)
            self._connections.spawn(self._when_complete(call))
        else:
            self._report(flight)
            self._ways.arm(self._relay.next_deadline())

    @staticmethod
    def _still_lawful(call: _Call) -> bool:
        """A retry may declare less: what may not be asked any more is refused. False where nothing works without it."""
        declared = bridge.declared(call.flight.caller)
        for key, ask in (*call.parked.shown.items(), *call.parked.fresh.items()):
            refused = bridge.unlawful(ask.wish.method, ask.wish.view(), declared)
            if refused is not None:
                call.parked.withdrawn(key)
                if ask.connection is None:
                    return False
                refuse_ask(ask.connection, ask.raw_id, refused)
        return True

    @staticmethod
    def _give(ask: _Ask, answer: bytes) -> bool:
        """Pass an answer on; False where a person refused what nothing works without."""
        if ask.connection is None:
            return asks.action(answer) == "accept"
        if ask.connection.pipe is not None and ask.connection.gone is None:
            ask.connection.pipe.send(jsonrpc.response(ask.raw_id, asks.answer(answer)))
        return True

    def _report(self, flight: Flight) -> None:
        """The last progress while nobody had a token for it."""
        if flight.client_token is None or not flight.progress:
            return
        try:
            mapped = translate.progress_params(flight.progress, flight.client_token)
        except ValueError:
            return
        self._outlet.send(frames.Progress(flight.corr), mapped)

    async def _when_complete(self, call: _Call) -> None:
        """Consent is not completion: wait a while for the upstream's word, then try again in any case."""
        try:
            async with asyncio.timeout(_COMPLETE_SECONDS):
                while call.incomplete:
                    call.complete.clear()
                    await call.complete.wait()
        except TimeoutError:
            pass
        if call.flight.stage == "waiting":
            self._ways.begin(call.flight)

    def completed(self, elicitation_id: str | None) -> None:
        """The upstream reports an elicitation as done."""
        for call in self._calls.values():
            if elicitation_id in call.incomplete:
                call.incomplete.discard(elicitation_id)
                call.complete.set()

    # ---- ends

    def keeps(self, flight: Flight, frame: frames.Reply | frames.Fail, payload: bytes) -> bool:
        """Whether a call's outcome is kept, for the retry to fetch it."""
        number = self._numbers.get(flight)
        if number is None or self._calls[number].parked.replied((frame, payload)):
            return False
        self._relay.between(flight)
        return True

    def ended(self, flight: Flight) -> None:
        """A call is over: the upstream hears that nobody will answer."""
        number = self._numbers.pop(flight, None)
        if number is None:
            return
        call = self._calls.pop(number)
        if call.soon is not None:
            call.soon.cancel()
        for ask in call.parked.end():
            if ask.connection is not None:
                message = f"{ask.wish.method}: the call that this belonged to has ended"
                refuse_ask(ask.connection, ask.raw_id, Unlawful(protocol.INVALID_PARAMS, message))


def refuse_ask(connection: Connection, raw_id: bytes, refused: Unlawful) -> None:
    """Answer an upstream's ask with an error."""
    if connection.pipe is not None and connection.gone is None:
        connection.pipe.send(jsonrpc.error_response(raw_id, jsonrpc.error(refused.code, refused.message)))
