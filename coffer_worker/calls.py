"""Calls carried to the upstream and back: the shell around ``core.relay`` and ``core.translate``.

Owns each call from its frame to its one Reply or Fail: waiting for a connection, params in, progress, result out,
limits, cancellation. Runs on callbacks, without a task per call. Never opens a connection, never reads a frame.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from coffer_common import errors, frames, protocol
from coffer_common.errors import Reason
from coffer_common.jsonrpc import Envelope
from coffer_common.resources import McpServerConfig
from coffer_common.version import SERVER_INFO
from coffer_worker.asking import Asking
from coffer_worker.connections import Connections
from coffer_worker.core import asks, bridge, headers, translate
from coffer_worker.core.pool import SHARED, Member
from coffer_worker.core.relay import Flight, Refusal, Relay
from coffer_worker.core.translate import View
from coffer_worker.log import UpstreamLog
from coffer_worker.messages import Messages
from coffer_worker.outlet import Outlet
from coffer_worker.parking import Ways
from coffer_worker.upstream.connection import Connection, Problem
from coffer_worker.waiting import Waiter

_METHODS: Final = frozenset({"tools/call", "prompts/get", "resources/read", "completion/complete"})
# After a fault of ours in ending a call at its limit, lest it be met again and again without a pause.
_ONCE_MORE_SECONDS: Final = 1.0


class _ProgressView(msgspec.Struct):
    progressToken: int | str | float | None = None
    progress: float | None = None


_progress: Final = msgspec.json.Decoder(_ProgressView).decode


class Calls:
    """The calls of one upstream."""

    def __init__(
        self,
        server: str,
        config: McpServerConfig,
        relay: Relay,
        connections: Connections,
        messages: Messages,
        *,
        outlet: Outlet,
        answered: Callable[[Member], None],
        log: UpstreamLog,
        run: str,
    ) -> None:
        self._server = server
        self._forward_progress = config.forward_progress
        self._relay = relay
        self._connections = connections
        self._messages = messages
        self._outlet = outlet
        self._answered = answered
        self._loop = asyncio.get_running_loop()
        self.mirrors: dict[str, headers.Mirrors] = {}
        """Tool -> its arguments that modern HTTP clients repeat as headers; kept by who reads the lists."""
        self.relist: Callable[[Connection], Awaitable[Any]] = _nothing_to_list
        """Reads an upstream's lists again; set by who does."""
        self.closed_for = ""
        """Why no new call is taken; empty while they are."""
        self._waiting: dict[int, Waiter] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._idle: asyncio.Future[None] | None = None
        ways = Ways(self._begin, self._end, self._fail, self._drop, self._refuse_frame, self._arm)
        self.asking = Asking(server, config.limits, relay, connections, ways, outlet=outlet, log=log, run=run)

    # ---- in

    def call(self, frame: frames.Call, params: bytes) -> None:
        """A Call frame."""
        if self.closed_for:
            text = f"Upstream {self._server!r} is being stopped: {self.closed_for}"
            self._refuse_frame(frame, Refusal(errors.UPSTREAM_STOPPED, text))
            return
        if frame.method not in _METHODS:
            self._refuse_frame(frame, Refusal(errors.METHOD_NOT_FOUND, f"Method not found: {frame.method}"))
            return
        wrong = self._header_fault(frame, params)
        if wrong is not None:
            self._refuse_frame(frame, Refusal(errors.HEADER_MISMATCH, wrong))
            return
        if frame.caller.era == "modern" and self.asking.parking.retry(frame, params):
            return
        now = self._loop.time()
        found = self._relay.admit(
            frame.corr,
            frame.caller,
            frame.method,
            frame.key,
            params,
            now=now,
            budget=frame.budget,
            log_level=frame.log_level,
        )
        if isinstance(found, Refusal):
            self._refuse_frame(frame, found)
        elif found is not None:
            self._arm(found.total_at)
            if found.stage == "waiting":
                self._begin(found)

    def _header_fault(self, frame: frames.Call, params: bytes) -> str | None:
        """What is wrong with the ``mcp-param-*`` headers of a modern HTTP client's tool call."""
        if frame.method != "tools/call" or frame.caller.wire != "http" or frame.caller.era != "modern":
            return None
        wanted = self.mirrors.get(frame.key)
        return headers.mismatch(wanted, params, frame.headers) if wanted else None

    def _refuse_frame(self, frame: frames.Call, refusal: Refusal) -> None:
        self._send_failure(frame.corr, frame.caller, refusal.reason, refusal.message)

    def _begin(self, flight: Flight) -> None:
        waiter = Waiter(
            flight.caller,
            lambda connection, member: self._go(flight, connection, member),
            lambda refusal: self._fail(flight, refusal.reason, refusal.message),
            call=True,
        )
        self._waiting[flight.corr] = waiter
        self._connections.want(waiter)

    def _go(self, flight: Flight, connection: Connection, member: Member) -> None:
        self._waiting.pop(flight.corr, None)
        id = self._relay.number()
        caller = flight.caller
        level = self._messages.level(flight)
        flight.keep = caller.era != connection.hop.era and bridge.may_be_asked(caller)
        try:
            if caller.era == "modern" and connection.hop.era == "legacy" and asks.is_retry(flight.params):
                raise ValueError("this retry belongs to no call that is open; make the call anew")
            params, flight.client_token = translate.request_params(
                flight.method,
                flight.key,
                flight.params,
                connection.hop,
                id,
                log_level=level,
                capabilities=bridge.encoded_for_modern(caller) if connection.hop.era == "modern" else b"",
                extra=flight.extra,
            )
        except ValueError as error:
            self._fail(flight, errors.INVALID_PARAMS, f"Invalid params for {flight.method}: {error}")
            return
        if level and connection.hop.era == "legacy":
            self._messages.have_level(connection, level, shared=member.key.session == SHARED or caller.era == "modern")
        member.calls += 1
        forgets = connection.pipe is not None and connection.pipe.forgets
        self._relay.sent(flight, connection.number, id, self._loop.time(), keep=forgets)
        self._arm_idle_limit(flight)
        self.asking.sent(flight)
        connection.request(id, flight.method, params, self._reply, (flight, connection, member))

    # ---- out

    def _reply(self, context: tuple[Flight, Connection, Member], answer: Envelope | Problem) -> None:
        """The upstream's answer. A fault of ours in reading it ends the call now rather than at its limit."""
        try:
            self._take(*context, answer)
        except Exception as error:
            text = f"Coffer failed in reading the answer of upstream {self._server!r}: {type(error).__name__}"
            self._fail(context[0], errors.INTERNAL, text)
            raise

    def _take(self, flight: Flight, connection: Connection, member: Member, answer: Envelope | Problem) -> None:
        member.calls -= 1
        member.last_used = self._loop.time()
        if isinstance(answer, Problem):
            if not (answer.again and self._once_more(flight, connection)):
                self._fail(flight, answer.reason, answer.message, answer.data)
            return
        if answer.error and self._headers_disagree(flight, connection, bytes(answer.error)):
            return
        if (
            answer.error
            and connection.hop.era == "legacy"
            and self.asking.parking.url_required(flight, bytes(answer.error))
        ):
            return
        member.answered += 1
        self._answered(member)
        caller = flight.caller
        info = connection.server_info if caller.naming == "raw" else SERVER_INFO
        view = View(caller.era, caller.naming, self._server, info, bridge.extended(caller))
        if answer.error:
            failure = translate.error(flight.method, bytes(answer.error), connection.hop.era, view, flight.key)
            frame = frames.Fail(flight.corr, failure.code, failure.message, "", failure.status)
            self._end(flight, frame, failure.error)
            return
        if connection.hop.era == "modern" and asks.asks_for_input(bytes(answer.result)):
            self.asking.rounds.required(flight, bytes(answer.result))
            return
        try:
            result = translate.result(flight.method, bytes(answer.result), connection.hop.era, view)
        except translate.BadResult as error:
            what = f"Upstream {self._server!r} answered {flight.method} {flight.key!r}, but {error}"
            self._fail(flight, errors.BAD_ANSWER, what)
            return
        is_error = flight.method == "tools/call" and translate.is_error(result)
        self._end(flight, frames.Reply(flight.corr, is_error), result)

    # ---- once more

    def _once_more(self, flight: Flight, connection: Connection) -> bool:
        """Send a call again that was surely not executed, on the same connection."""
        if not self._relay.once_more(flight):
            return False
        member = self._connections.pool.members.get(connection.number)
        if member is None or connection.gone is not None:
            self._begin(flight)
        else:
            self._go(flight, connection, member)
        return True

    def _headers_disagree(self, flight: Flight, connection: Connection, error: bytes) -> bool:
        """A modern upstream refuses the headers that repeat arguments: its schemas are not the ones we know. Then they
        are read again, and the call goes once more."""
        refused = connection.hop.era == "modern" and translate.code_of(error) == protocol.HEADER_MISMATCH
        if not refused or flight.method != "tools/call" or not self._relay.once_more(flight):
            return False
        self._connections.spawn(self._relisted(flight, connection))
        return True

    async def _relisted(self, flight: Flight, connection: Connection) -> None:
        await self.relist(connection)
        if flight.stage == "waiting":
            self._begin(flight)

    def _fail(self, flight: Flight, reason: Reason, message: str, data: Mapping[str, Any] | None = None) -> None:
        if flight.stage == "done":
            return
        era = flight.caller.era
        error = errors.error_object(reason, message, server=self._server, era=era, data=dict(data) if data else None)
        self._end(flight, frames.Fail(flight.corr, reason.code_for(era), message, reason.name, reason.status), error)

    def _send_failure(self, corr: int, caller: frames.Caller, reason: Reason, message: str) -> None:
        error = errors.error_object(reason, message, server=self._server, era=caller.era)
        self._outlet.send(frames.Fail(corr, reason.code_for(caller.era), message, reason.name, reason.status), error)

    def _end(self, flight: Flight, frame: frames.Reply | frames.Fail, payload: bytes) -> None:
        if flight.stage == "done" or self.asking.parking.keeps(flight, frame, payload):
            return
        self.asking.ending(flight, answered=type(frame) is frames.Reply)
        self._outlet.send(frame, payload)
        self._finish(flight)

    def _drop(self, flight: Flight, refusal: Refusal) -> None:
        """Give a call up: the upstream is told, and the client where a request of its is open."""
        self.asking.ending(flight)
        self._give_up(flight, f"{refusal.reason.name} reached")
        if flight.parked:
            self._finish(flight)
        else:
            self._fail(flight, refusal.reason, refusal.message)

    def _finish(self, flight: Flight) -> None:
        self.asking.ending(flight)
        waiter = self._waiting.pop(flight.corr, None)
        if waiter is not None:
            waiter.withdrawn = True
        for following in self._relay.finish(flight):
            self._begin(following)
        self._connections.released()
        if not len(self._relay) and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    # ---- progress

    def paused(self, connection: Connection, id: int | str) -> None:
        """The upstream closed a call's event stream, and will go on with it: its client may do likewise."""
        for flight in self._relay.of_connection(connection.number):
            if flight.id == id:
                self._outlet.send(frames.Paused(flight.corr))

    def progress(self, connection: Connection, params: bytes) -> None:
        """A ``notifications/progress``: its call's idle limit begins anew, and the client may hear of it."""
        try:
            view = _progress(params)
        except (msgspec.DecodeError, RecursionError):
            return
        token = view.progressToken
        if isinstance(token, str) and token.isascii() and token.isdigit() and len(token) < 19:
            token = int(token)
        flight = self._relay.progress(connection.number, token, self._loop.time()) if isinstance(token, int) else None
        if flight is None:
            self._relay.late += 1
            return
        flight.progress = params[:500]
        if flight.rounds and view.progress is not None and flight.top is not None and view.progress <= flight.top:
            return  # each round of a modern upstream may begin at 0; what the client sees must rise
        flight.top = view.progress
        if flight.client_token is not None and self._forward_progress:
            try:
                mapped = translate.progress_params(params, flight.client_token)
            except ValueError:
                return
            self._outlet.send(frames.Progress(flight.corr), mapped)
            connection.passed_on()

    # ---- cancellation and limits

    def cancel(self, corr: int, reason: str) -> None:
        """A Cancel frame: nothing more is sent for that call, and the upstream is told."""
        flight = self._relay.cancelled(corr)
        if flight is not None:
            self._give_up(flight, reason or "cancelled by the client")
            self._finish(flight)

    def close_session(self, session: str, reason: str) -> None:
        """The end of a session cancels its calls."""
        for flight in self._relay.of_session(session):
            self._give_up(flight, reason or "the session ended")
            self._finish(flight)

    def _give_up(self, flight: Flight, reason: str) -> None:
        if flight.stage == "sent" and (connection := self._connections.open.get(flight.conn)) is not None:
            connection.cancel(flight.id, reason)
            if (member := self._connections.pool.members.get(flight.conn)) is not None:
                member.calls -= 1
                member.last_used = self._loop.time()

    def _arm_idle_limit(self, flight: Flight) -> None:
        if self._relay.idle_seconds is not None:
            self._arm(flight.active + self._relay.idle_seconds)

    def _arm(self, at: float | None) -> None:
        if at is not None and at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = self._loop.call_at(at, self._check)

    def _check(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        now = self._loop.time()
        soonest = now + _ONCE_MORE_SECONDS
        try:
            for late in self._relay.expired(now + 0.001):
                if late.flight.asked_at is not None:
                    self.asking.overdue(late.flight, late.refusal)
                else:
                    self._drop(late.flight, late.refusal)
            soonest = now
        finally:
            # Whatever failed, the limits of the other calls hold.
            at = self._relay.next_deadline()
            self._arm(at if at is None else max(at, soonest))

    def fail_all(self, reason: Reason, message: str) -> None:
        """End every open call with the same words."""
        for flight in self._relay:
            self._drop(flight, Refusal(reason, message))

    async def drained(self, seconds: float) -> bool:
        """Wait until no call is open, ``seconds`` at most. Parked ones cannot be resumed any more."""
        for flight in [flight for flight in self._relay if flight.parked]:
            self._drop(flight, Refusal(errors.UPSTREAM_STOPPED, self.closed_for))
        if not len(self._relay):
            return True
        self._idle = self._loop.create_future()
        await asyncio.wait([self._idle], timeout=seconds)
        return self._idle.done()


async def _nothing_to_list(connection: Connection) -> None:
    """Until somebody reads lists."""
