"""From the endpoint's requests to the workers and back: every call in flight passes here, undecoded.

Owns what happens to a call between its arrival and its one answer: routed, held, sent, cancelled, timed out,
recorded. Never decodes arguments or results, never waits on a worker, never starts one.

    core.routing   which upstream, which name           core.gate     open, hold or refuse
    pending        the table of calls                   lists         lists and identities
    subscribing    resource subscriptions
"""

import asyncio
import logging
from typing import Final

import msgspec

from coffer_common import errors, frames, protocol
from coffer_supervisor.channel import Channel, Frame, Peer, Trouble
from coffer_supervisor.core import routing
from coffer_supervisor.core.calls import (
    LOCAL_PRINCIPAL,
    CallRequest,
    CallSink,
    Failure,
    Identity,
    NoticeSink,
    Principal,
    Scope,
    failure,
    passed_failure,
)
from coffer_supervisor.core.catalogue import Catalogues
from coffer_supervisor.lists import Lists
from coffer_supervisor.pending import TYPE_OF, Calls, Pending
from coffer_supervisor.recording import Recorder
from coffer_supervisor.scoping import Scoping
from coffer_supervisor.subscribing import Subscriptions
from coffer_supervisor.supervision import RefusedByWorker, Supervision
from coffer_supervisor.upstream import Upstream

CREDIT_BYTES: Final = 128 * 1024 * 1024
"""Params of unanswered calls that one worker may be sent; one call alone may be larger."""
_BACKSTOP_SECONDS: Final = 5.0
_MANAGEMENT_SESSION: Final = "management"

_log: Final = logging.getLogger(__name__)


class Router:
    """One for the daemon. ``listeners`` is set by the endpoint before the first request."""

    listeners: NoticeSink

    def __init__(
        self, calls: Calls, channel: Channel, supervision: Supervision, scoping: Scoping, recorder: Recorder
    ) -> None:
        self._calls, self._channel, self._supervision = calls, channel, supervision
        self._catalogues: Catalogues = supervision.catalogues
        self._scoping, self._recorder = scoping, recorder
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._held: dict[str, dict[int, Pending]] = {}
        self._awaiting: dict[int, Pending] = {}
        self._credit: dict[str, int] = {}
        self._asks: dict[int, tuple[Pending, Peer, int]] = {}
        self._ask_of: dict[tuple[str, int, int], int] = {}
        self._last_ask = 0
        self._closed = False
        self.lists = Lists(supervision, scoping)
        self.subscriptions = Subscriptions(calls, channel, supervision, scoping, self._updated)
        for frame_type, handler in (
            (frames.Reply, self._on_reply),
            (frames.Fail, self._on_fail),
            (frames.Progress, self._on_progress),
            (frames.Notify, self._on_notify),
            (frames.Ask, self._on_ask),
            (frames.Withdraw, self._on_withdraw),
        ):
            channel.on(frame_type, handler)
        supervision.attach(self)

    # ---- calls in

    def start_call(self, request: CallRequest, sink: CallSink) -> int:
        """Begin a call; its number. May fail it through the sink before it returns."""
        call = Pending(self._calls.number(), request, sink, self._loop.time())
        self._calls.add(call)
        if self._closed:
            self._fail(call, errors.STOPPING, "Coffer is stopping; try again when it runs")
            return call.corr
        self._route(call)
        return call.corr

    def cancel(self, corr: int, reason: str) -> None:
        """The client wants no answer any more; the sink is not called again."""
        call = self._end(corr)
        if call is None:
            return
        if call.peer is not None:
            self._channel.send(call.peer, frames.Cancel(corr, reason))
        self._recorder.ended(call, "cancelled", reason, self._loop.time())

    def close(self) -> None:
        """Take no new calls: the daemon is leaving."""
        self._closed = True

    def fail_all(self) -> None:
        """End the calls that are still open, as the daemon leaves."""
        for call in list(self._calls.table.values()):
            if call.peer is not None:
                self._channel.send(call.peer, frames.Cancel(call.corr, "Coffer is stopping"))
            self._fail(call, errors.STOPPING, "Coffer stopped before the answer came", server=call.server)

    def answer(self, ask: int, payload: bytes, error: bool) -> None:
        """The client's answer to an ask; one that nobody waits for any more is dropped."""
        found = self._asks.pop(ask, None)
        if found is not None:
            call, peer, number = found
            call.asks.remove(ask)
            self._ask_of.pop((peer.name, peer.incarnation, number), None)
            self._channel.send(peer, frames.Answer(number, error), payload)

    def close_session(self, session_id: str, reason: str) -> None:
        """A session ended: its calls are cancelled, and every worker that knows it is told."""
        for corr in list(self._calls.by_session.get(session_id, ())):
            self.cancel(corr, reason)
        self.subscriptions.drop(session_id)
        self._catalogues.forget_session(session_id)
        for name in self._calls.touched.pop(session_id, ()):
            upstream = self._supervision.upstreams.get(name)
            if upstream is not None and upstream.peer is not None:
                self._channel.send(upstream.peer, frames.CloseSession(session_id, reason))

    def end_call(self, corr: int) -> bool:
        """An operator ends a call: the upstream is told, the client gets an error."""
        call = self._calls.table.get(corr)
        if call is None:
            return False
        if call.peer is not None:
            self._channel.send(call.peer, frames.Cancel(corr, "ended by an operator"))
        self._fail(call, errors.CANCELLED, f"an operator ended this call of server '{call.server}'")
        return True

    # ---- the other requests of the endpoint

    async def list_page(
        self, caller: frames.Caller, principal: Principal, scope: Scope, kind: frames.CapabilityType, cursor: str | None
    ) -> bytes:
        """One page of a list as a result in the client's era. Raises CallError."""
        return await self.lists.page(caller, principal, scope, kind, cursor)

    async def identity(self, scope: Scope) -> Identity:
        """What an endpoint says it is. Raises CallError."""
        return await self.lists.identity(scope)

    async def subscribe(
        self, caller: frames.Caller, principal: Principal, scope: Scope, subscriber: str, exposed_uri: str
    ) -> None:
        """``subscriber`` wants updates of a resource. Raises CallError."""
        await self.subscriptions.subscribe(caller, principal, scope, subscriber, exposed_uri)

    def unsubscribe(self, subscriber: str, exposed_uri: str | None) -> None:
        """The reverse; None means all of the subscriber's."""
        self.subscriptions.unsubscribe(subscriber, exposed_uri)

    def set_level(self, caller: frames.Caller, scope: Scope, level: str) -> None:
        """The log level a session wants on a pass-through endpoint."""
        upstream = self._supervision.upstreams.get(scope.server or "")
        if upstream is not None and upstream.peer is not None and upstream.gate().way == "open":
            self._touch(caller.session, upstream.name)
            self._channel.send(upstream.peer, frames.SetLevel(caller, level))

    def roots_changed(self, session_id: str) -> None:
        """The client said that its roots changed."""
        for name in self._calls.touched.get(session_id, ()):
            upstream = self._supervision.upstreams.get(name)
            if upstream is not None and upstream.peer is not None:
                self._channel.send(upstream.peer, frames.RootsChanged(session_id))

    async def call_for_management(
        self, server: str, tool: str, arguments: bytes, timeout: float, client: str = "cli"
    ) -> tuple[bool, bytes]:
        """Call a tool by the upstream's own name: (True, result) or (False, JSON-RPC error object)."""
        caller = frames.Caller(
            session=_MANAGEMENT_SESSION,
            principal=LOCAL_PRINCIPAL,
            endpoint=f"/servers/{server}/mcp",
            naming="raw",
            revision=protocol.LATEST_LEGACY,
            wire="shim",
        )
        params = b'{"name":' + msgspec.json.encode(tool) + b',"arguments":' + arguments + b"}"
        request = CallRequest(
            caller, Principal(LOCAL_PRINCIPAL, client), Scope(caller.endpoint, server=server), "tools/call", params
        )
        request.client_name = client
        sink = _Awaited(self._loop.create_future())
        corr = self.start_call(request, sink)
        try:
            async with asyncio.timeout(timeout):
                return await sink.outcome
        except TimeoutError:
            self.cancel(corr, "the caller's time was up")
            text = f"server '{server}' did not answer within {timeout:g} s"
            return False, failure(errors.TOTAL_LIMIT, text, "legacy", server=server).error
        except asyncio.CancelledError:
            self.cancel(corr, "the caller left")
            raise

    # ---- routing and sending

    def _route(self, call: Pending) -> None:
        request = call.request
        caller = request.caller
        where = routing.Where(
            request.scope, self._scoping.narrowing(request.principal, request.scope), caller.era, caller.session
        )
        found = routing.resolve(self._catalogues.servers, where, request.method, request.params)
        if type(found) is routing.Target:
            self._calls.route(call, found.server, found.key)
            self._dispatch(call)
        elif isinstance(found, routing.Refusal):
            call.server_hint, call.key = found.server or "", found.key
            self._fail(call, found.reason, found.message, server=found.server, data=found.data)
        else:
            assert isinstance(found, routing.Awaited)
            self._await(call, found)

    def _await(self, call: Pending, awaited: routing.Awaited) -> None:
        """It cannot be told yet what is meant: wait for the catalogues it depends on."""
        name = awaited.servers[0]
        if len(awaited.servers) == 1 and awaited.otherwise.server == name:
            upstream = self._supervision.upstreams.get(name)
            gate = None if upstream is None else upstream.gate()
            if gate is not None and gate.way == "refuse":
                call.server_hint, call.key = name, awaited.otherwise.key
                self._fail(call, gate.reason, gate.message, server=name)
                return
            seconds = 30.0 if upstream is None else upstream.config.limits.start_seconds
        else:
            seconds = self.lists.budget()
        if call.corr not in self._awaiting:
            self._deadline(call, call.started + seconds)
        call.awaited, call.refusal = awaited.servers, awaited.otherwise
        self._awaiting[call.corr] = call

    def _dispatch(self, call: Pending) -> None:
        upstream = self._supervision.upstreams.get(call.server)
        if upstream is None:
            self._fail(call, errors.UNKNOWN_SERVER, f"server '{call.server}' is no longer registered")
            return
        gate = upstream.gate()
        if gate.way == "open" and upstream.peer is not None:
            self._send(call, upstream, upstream.peer)
        elif gate.way == "refuse":
            self._fail(call, gate.reason, gate.message, server=call.server)
        else:
            self._hold(call, upstream)

    def _hold(self, call: Pending, upstream: Upstream) -> None:
        """There is no worker to take it yet."""
        held = self._held.setdefault(call.server, {})
        limits = upstream.config.limits
        if len(held) >= limits.in_flight + limits.queue:
            text = f"server '{call.server}' is starting and {len(held)} calls wait for it already; try again later"
            self._fail(call, errors.QUEUE_FULL, text, server=call.server)
            return
        held[call.corr] = call
        self._deadline(call, call.started + limits.start_seconds)

    def _send(self, call: Pending, upstream: Upstream, peer: Peer) -> None:
        request = call.request
        name, size = call.server, len(request.params)
        used = self._credit.get(name, 0)
        if used and used + size > CREDIT_BYTES:
            text = f"server '{name}' has {used // 1_000_000} MB of calls unanswered; try again later"
            self._fail(call, errors.WORKER_BUSY, text, server=name)
            return
        self._credit[name] = used + size
        call.peer = peer
        self._touch(request.caller.session, name)
        limits = upstream.config.limits
        if limits.total_seconds is not None:
            allowed = limits.start_seconds + limits.total_seconds + limits.answer_seconds + _BACKSTOP_SECONDS
            self._deadline(call, self._loop.time() + allowed)
        frame = frames.Call(
            call.corr, request.caller, request.method, call.key, None, request.headers, request.log_level
        )
        self._channel.send(peer, frame, request.params)

    def _touch(self, session: str, name: str) -> None:
        touched = self._calls.touched.get(session)
        if touched is None:
            self._calls.touched[session] = {name}
        else:
            touched.add(name)

    # ---- ends

    def _end(self, corr: int) -> Pending | None:
        """Take a call out of every table; None if it has ended already."""
        call = self._calls.remove(corr)
        if call is None:
            return None
        if call.peer is not None:
            self._credit[call.server] -= len(call.request.params)
        else:
            self._awaiting.pop(corr, None)
            if (held := self._held.get(call.server)) is not None:
                held.pop(corr, None)
        for ask in call.asks:
            _, peer, number = self._asks.pop(ask)
            self._ask_of.pop((peer.name, peer.incarnation, number), None)
        return call

    def _fail(
        self,
        call: Pending,
        reason: errors.Reason,
        message: str,
        *,
        server: str | None = None,
        data: object = None,
    ) -> None:
        if self._end(call.corr) is None:
            return
        found = failure(
            reason,
            message,
            call.request.caller.era,
            server=server or call.server or None,
            data=data,  # type: ignore[arg-type]
        )
        self._recorder.failed(call, found, self._loop.time())
        call.sink.fail(found)

    def _on_reply(self, peer: Peer, frame: frames.Reply, payload: bytes) -> None:
        call = self._calls.table.get(frame.corr)
        if call is None or call.peer is not peer:
            self._answered(peer, frame.corr, payload, None)
            return
        self._end(frame.corr)
        self._recorder.ended(call, "error" if frame.error else "ok", None, self._loop.time())
        call.sink.reply(payload)

    def _on_fail(self, peer: Peer, frame: frames.Fail, payload: bytes) -> None:
        found = passed_failure(frame.code, payload, frame.message, frame.reason, frame.status)
        call = self._calls.table.get(frame.corr)
        if call is None or call.peer is not peer:
            self._answered(peer, frame.corr, payload, found)
            return
        self._end(frame.corr)
        self._recorder.failed(call, found, self._loop.time())
        call.sink.fail(found)

    def _answered(self, peer: Peer, corr: int, payload: bytes, found: Failure | None) -> None:
        """An answer to a request of the supervisor's own, or one that nobody waits for any more."""
        request = self._calls.requests.get(corr)
        if request is None or request[0] != peer.name:
            self._channel.dropped += 1
            return
        if not request[1].done():
            if found is None:
                request[1].set_result(payload)
            else:
                request[1].set_exception(RefusedByWorker(found.message, found))

    # ---- what belongs to a call in between

    def _on_progress(self, peer: Peer, frame: frames.Progress, payload: bytes) -> None:
        call = self._calls.table.get(frame.corr)
        if call is not None and call.peer is peer:
            call.sink.progress(payload)

    def _on_ask(self, peer: Peer, frame: frames.Ask, payload: bytes) -> None:
        call = self._calls.table.get(frame.corr)
        if call is None or call.peer is not peer:
            error = msgspec.json.encode({"code": protocol.METHOD_NOT_FOUND, "message": "the call has ended"})
            self._channel.send(peer, frames.Answer(frame.ask, True), error)
            return
        self._last_ask += 1
        self._asks[self._last_ask] = (call, peer, frame.ask)
        self._ask_of[peer.name, peer.incarnation, frame.ask] = self._last_ask
        call.asks.append(self._last_ask)
        call.sink.ask(self._last_ask, frame.method, payload)

    def _on_withdraw(self, peer: Peer, frame: frames.Withdraw, payload: bytes) -> None:
        ask = self._ask_of.pop((peer.name, peer.incarnation, frame.ask), None)
        if ask is not None:
            call = self._asks.pop(ask)[0]
            call.asks.remove(ask)
            call.sink.withdraw(ask, frame.reason)

    def _on_notify(self, peer: Peer, frame: frames.Notify, payload: bytes) -> None:
        if frame.corr:
            call = self._calls.table.get(frame.corr)
            if call is not None and call.peer is peer:
                call.sink.notify(frame.method, payload)
        elif frame.method == "notifications/resources/updated":
            self.listeners.resource_updated(peer.name, frame.subscribers, frame.uri)
        else:
            self.listeners.session_notice(peer.name, frame.sessions, frame.method, payload)

    def _updated(self, server: str, subscriber: str, uri: str) -> None:
        self.listeners.resource_updated(server, (subscriber,), uri)

    # ---- what the supervision says

    def call_type(self, method: str) -> str:
        """The noun of a call's method."""
        return TYPE_OF.get(method, method)

    def gate_changed(self, name: str) -> None:
        """Calls that wait for that upstream may go on, or are refused."""
        held = self._held.get(name)
        if held:
            upstream = self._supervision.upstreams.get(name)
            gate = None if upstream is None else upstream.gate()
            if gate is None or gate.way != "hold":
                self._held[name] = {}
                for call in held.values():
                    self._calls.deadlines.drop(call.corr)
                    self._dispatch(call)
        for call in [call for call in self._awaiting.values() if name in call.awaited]:
            del self._awaiting[call.corr]
            self._route(call)
            if call.corr in self._awaiting:
                continue
            if call.corr in self._calls.table and call.peer is None and call.server not in self._held:
                continue

    def worker_lost(self, name: str, peer: Peer, reason: str) -> None:
        """That worker's calls fail; what was to come from it will not."""
        for call in [call for call in self._calls.by_server.get(name, {}).values() if call.peer is peer]:
            text = f"server '{name}': {reason}; whether the call was carried out is not known"
            self._fail(call, errors.WORKER_LOST, text, server=name)
        for server, future in list(self._calls.requests.values()):
            if server == name and not future.done():
                future.set_exception(RefusedByWorker(reason))
        self._credit.pop(name, None)

    def ready(self, name: str) -> None:
        """A worker's upstream became ready: subscriptions are made again."""
        self.subscriptions.renew(name)

    def lists_changed(self, name: str, kinds: frozenset[str]) -> None:
        """Clients see other lists of that upstream now."""
        if hasattr(self, "listeners"):
            self.listeners.lists_changed(name, kinds)

    def unsent(self, peer: Peer, frame: Frame, trouble: Trouble) -> None:
        """A frame could not be sent (the channel's callback): it fails that call only."""
        corr = getattr(frame, "corr", 0)
        call = self._calls.table.get(corr) if type(frame) is frames.Call else None
        if call is not None:
            if trouble == "busy":
                text = f"server '{peer.name}' does not take calls as fast as they come; try again later"
                self._fail(call, errors.WORKER_BUSY, text, server=peer.name)
            else:
                self._fail(call, errors.WORKER_LOST, f"the worker of server '{peer.name}' is gone", server=peer.name)
        elif corr in self._calls.requests:
            future = self._calls.requests[corr][1]
            if not future.done():
                future.set_exception(RefusedByWorker(f"the worker of server '{peer.name}' is {trouble}"))

    # ---- deadlines

    def _deadline(self, call: Pending, when: float) -> None:
        self._calls.deadlines.set(call.corr, when)
        if self._timer is None:
            self._timer = self._loop.call_later(1.0, self._tick)

    def _tick(self) -> None:
        self._timer = None
        for corr in self._calls.deadlines.due(self._loop.time()):
            call = self._calls.table.get(corr)
            if call is not None:
                self._overdue(call)
        if len(self._calls.deadlines):
            self._timer = self._loop.call_later(1.0, self._tick)

    def _overdue(self, call: Pending) -> None:
        if call.peer is not None:
            self._channel.send(call.peer, frames.Cancel(call.corr, "its time was up"))
            text = f"server '{call.server}' did not answer within its limits, nor did its worker say so"
            self._fail(call, errors.TOTAL_LIMIT, text, server=call.server)
            return
        refusal = call.refusal
        if call.awaited and isinstance(refusal, routing.Refusal) and refusal.server is None:
            missing = ", ".join(call.awaited)
            text = f"{refusal.message} (not known yet what is offered by: {missing})"
            self._fail(call, refusal.reason, text, data=refusal.data)
            return
        name = call.server or call.awaited[0]
        call.server_hint = name
        upstream = self._supervision.upstreams.get(name)
        state = "removed" if upstream is None else f"{upstream.life.state}: {upstream.message()}".rstrip(": ")
        text = f"server '{name}' was not ready within its start limit ({state}); see: coffer mcp show {name}"
        self._fail(call, errors.START_LIMIT, text, server=name)


class _Awaited:
    """A sink for one who waits for the outcome and nothing else."""

    def __init__(self, outcome: "asyncio.Future[tuple[bool, bytes]]") -> None:
        self.outcome = outcome

    def progress(self, params: bytes) -> None:
        """Not shown."""

    def notify(self, method: str, params: bytes) -> None:
        """Not shown."""

    def ask(self, ask: int, method: str, params: bytes) -> None:
        """Nobody can be asked: no capability was declared, so no ask is lawful."""

    def withdraw(self, ask: int, reason: str) -> None:
        """See ``ask``."""

    def reply(self, result: bytes) -> None:
        """It ended well."""
        if not self.outcome.done():
            self.outcome.set_result((True, result))

    def fail(self, failure: Failure) -> None:
        """It did not."""
        if not self.outcome.done():
            self.outcome.set_result((False, failure.error))
