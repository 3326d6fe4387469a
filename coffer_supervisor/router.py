"""From the endpoint's requests to the workers and back: every call in flight passes here, undecoded.

Owns what happens to a call between its arrival and its one answer: routed, held, sent, cancelled, timed out,
recorded. Never decodes arguments or results, never waits on a worker, never starts one.

    core.routing   which upstream, which name           core.gate     open, hold or refuse
    pending        the table of calls                   lists         lists and identities
    subscribing    resource subscriptions               asking        upstreams' asks
    sending        what waits for a worker, and what one is owed
"""

import asyncio
import logging
from typing import Final

from coffer_common import errors, frames, protocol
from coffer_supervisor.asking import Asks
from coffer_supervisor.channel import Channel, Peer
from coffer_supervisor.core import routing
from coffer_supervisor.core.calls import (
    CallRequest,
    CallSink,
    Failure,
    Identity,
    Nobody,
    NoticeSink,
    Principal,
    Scope,
    failure,
    passed_failure,
)
from coffer_supervisor.core.catalogue import Catalogues
from coffer_supervisor.core.pieces import Buffer
from coffer_supervisor.lists import Lists
from coffer_supervisor.outcome import management_request, outcome_of
from coffer_supervisor.pending import TYPE_OF, Calls, Pending
from coffer_supervisor.recording import Recorder
from coffer_supervisor.scoping import Scoping
from coffer_supervisor.sending import Sending
from coffer_supervisor.subscribing import Subscriptions
from coffer_supervisor.supervision import Supervision

_log: Final = logging.getLogger(__name__)


class Router:
    """One for the daemon. ``listeners`` is set by the endpoint before the first request; until then nobody hears."""

    def __init__(
        self, calls: Calls, channel: Channel, supervision: Supervision, scoping: Scoping, recorder: Recorder
    ) -> None:
        self._calls, self._channel, self._supervision = calls, channel, supervision
        self._catalogues: Catalogues = supervision.catalogues
        self._scoping, self._recorder = scoping, recorder
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._awaiting: dict[int, Pending] = {}
        self.closed = False
        self.listeners: NoticeSink = Nobody()
        self._sending = Sending(calls, channel, supervision, self._fail, self._deadline)
        self._asks = Asks(calls, channel, lambda: self.listeners, self._sending.rest)
        self.lists = Lists(supervision, scoping)
        self.subscriptions = Subscriptions(calls, channel, supervision, scoping, self._updated)
        for frame_type, handler in (
            (frames.Reply, self._on_reply),
            (frames.Fail, self._on_fail),
            (frames.Progress, self._on_progress),
            (frames.Paused, self._on_paused),
            (frames.Notify, self._on_notify),
        ):
            channel.on(frame_type, handler)
        self.met = supervision.met
        self.unsent = self._sending.unsent
        supervision.attach(self)

    # ---- calls in

    def start_call(self, request: CallRequest, sink: CallSink) -> int:
        """Begin a call; its number. May fail it through the sink before it returns."""
        call = Pending(self._calls.number(), request, sink, self._loop.time())
        self._calls.add(call)
        if self.closed:
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
        self.closed = True

    def fail_all(self) -> None:
        """End the calls that are still open, as the daemon leaves."""
        for call in list(self._calls.table.values()):
            if call.peer is None:
                self._fail(call, errors.STOPPING, "Coffer stopped before this was sent", server=call.server)
                continue
            self._channel.send(call.peer, frames.Cancel(call.corr, "Coffer is stopping"))
            text = "Coffer stopped before the answer came; the call may have been carried out"
            self._fail(call, errors.DAEMON_LOST, text, server=call.server)

    def answer(self, ask: int, payload: bytes, error: bool) -> None:
        """The client's answer to an ask; one that nobody waits for any more is dropped."""
        self._asks.answer(ask, payload, error)

    def close_session(self, session_id: str, reason: str) -> None:
        """A session ended: its calls are cancelled, and every worker that knows it is told."""
        for corr in list(self._calls.by_session.get(session_id, ())):
            self.cancel(corr, reason)
        self._asks.close_session(session_id)
        self.subscriptions.drop(session_id)
        self._catalogues.forget_session(session_id)
        for name in self._calls.touched.pop(session_id, ()):
            upstream = self._supervision.upstreams.get(name)
            if upstream is not None and upstream.peer is not None:
                self._channel.send(upstream.peer, frames.CloseSession(session_id, reason))

    def close_principal(self, principal_id: str, reason: str) -> None:
        """A principal is gone: what stands for its sessions where it has none (modern HTTP) ends as a session does."""
        prefix = f"modern:{principal_id}:"
        known = {session for session in (*self._calls.touched, *self._calls.by_session) if session.startswith(prefix)}
        for session in known:
            self.close_session(session, reason)

    def end_call(self, corr: int) -> bool:
        """An operator ends a call: the upstream is told, the client gets an error."""
        call = self._calls.table.get(corr)
        if call is None:
            return False
        if call.peer is not None:
            self._channel.send(call.peer, frames.Cancel(corr, "ended by an operator"))
        self._fail(call, errors.CANCELLED, f"an operator ended this call of server '{call.server}'")
        return True

    @property
    def frames_dropped(self) -> int:
        """Frames that nobody waited for any more, or that were none."""
        return self._channel.dropped

    # ---- the other requests of the endpoint

    def has_group(self, scope: Scope) -> bool:
        """Whether the group that an endpoint names is there and switched on; True where it names none."""
        return scope.group is None or self._scoping.has_group(scope.group)

    def sees(self, principal: Principal, scope: Scope, server: str) -> bool:
        """Whether anything of ``server`` can be seen by a principal at an endpoint."""
        return self._scoping.narrowing(principal, scope).server(server)

    async def list_page(
        self, caller: frames.Caller, principal: Principal, scope: Scope, kind: frames.CapabilityType, cursor: str | None
    ) -> bytes:
        """One page of a list as a result in the client's era. Raises CallError."""
        return await self.lists.page(caller, principal, scope, kind, cursor)

    async def identity(self, scope: Scope, era: protocol.Era = "legacy", who: Principal | None = None) -> Identity:
        """What an endpoint says it is, to ``who``. Raises CallError, with a failure for a wire of ``era``."""
        return await self.lists.identity(scope, era, who)

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
            self._calls.touch(caller.session, upstream.name)
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
        view = self._supervision.view(server)
        modern = view is not None and view.era == "modern"
        request = management_request(server, tool, arguments, client, modern=modern)
        return await outcome_of(self, request, timeout)

    # ---- routing and sending

    def _route(self, call: Pending) -> None:
        request, caller = call.request, call.request.caller
        where = routing.Where(
            request.scope, self._scoping.narrowing(request.principal, request.scope), caller.era, caller.session
        )
        found = routing.resolve(self._catalogues.servers, where, request.method, request.outline or request.params)
        if type(found) is routing.Target:
            self._calls.route(call, found.server, found.key)
            self._sending.dispatch(call)
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
            if gate is not None and gate.message:
                call.server_hint, call.key = name, awaited.otherwise.key
                self._fail(call, gate.reason, gate.message, server=name)
                return
            self._supervision.hasten(name)
            seconds = 30.0 if upstream is None else upstream.config.limits.start_seconds
        else:
            seconds = self.lists.budget()
        if call.corr not in self._awaiting:
            self._deadline(call, call.started + seconds)
        call.awaited, call.refusal = awaited.servers, awaited.otherwise
        self._awaiting[call.corr] = call

    # ---- ends

    def _end(self, corr: int) -> Pending | None:
        """Take a call out of every table; None if it has ended already."""
        call = self._calls.remove(corr)
        if call is None:
            return None
        if call.awaited:
            self._awaiting.pop(corr, None)
        else:
            self._sending.ended(call)
        if call.asks:
            self._asks.drop(call)
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

    def _on_reply(self, peer: Peer, frame: frames.Reply, payload: Buffer) -> None:
        call = self._calls.table.get(frame.corr)
        if call is None or call.peer is not peer:
            self._answered(peer, frame.corr, bytes(payload))
            return
        self._end(frame.corr)
        self._recorder.ended(call, "error" if frame.error else "ok", None, self._loop.time())
        call.sink.reply(payload)

    def _on_fail(self, peer: Peer, frame: frames.Fail, payload: bytes) -> None:
        found = passed_failure(frame.code, payload, frame.message, frame.reason, frame.status)
        call = self._calls.table.get(frame.corr)
        if call is None or call.peer is not peer:
            self._answered(peer, frame.corr, found)
            return
        self._end(frame.corr)
        self._recorder.failed(call, found, self._loop.time())
        call.sink.fail(found)

    def _answered(self, peer: Peer, corr: int, answer: bytes | Failure) -> None:
        """An answer to a request of the supervisor's own, or one that nobody waits for any more."""
        if not self._calls.answered(peer.name, corr, answer):
            self._channel.dropped += 1

    # ---- what belongs to a call in between

    def _on_progress(self, peer: Peer, frame: frames.Progress, payload: bytes) -> None:
        call = self._calls.table.get(frame.corr)
        if call is not None and call.peer is peer:
            call.sink.progress(payload)

    def _on_paused(self, peer: Peer, frame: frames.Paused, payload: bytes) -> None:
        call = self._calls.table.get(frame.corr)
        if call is not None and call.peer is peer:
            call.sink.pause()

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
        self._sending.gate_changed(name)
        for call in [call for call in self._awaiting.values() if name in call.awaited]:
            if self._awaiting.pop(call.corr, None) is not None:
                self._route(call)

    def worker_lost(self, name: str, peer: Peer, reason: str) -> None:
        """That worker's calls fail; what was to come from it will not."""
        for call in [call for call in self._calls.by_server.get(name, {}).values() if call.peer is peer]:
            text = f"server '{name}': {reason}; whether the call was carried out is not known"
            self._fail(call, errors.WORKER_LOST, text, server=name)
        self._asks.lost(peer)
        self._calls.unanswered(name, reason)

    def ready(self, name: str) -> None:
        """A worker's upstream became ready: subscriptions are made again."""
        self.subscriptions.renew(name)

    def lists_changed(self, name: str, kinds: frozenset[str], session: str = "") -> None:
        """Clients see other lists of that upstream now; ``session``: that one alone."""
        self.listeners.lists_changed(name, kinds, session)

    # ---- deadlines

    def _deadline(self, call: Pending, when: float | None) -> None:
        if when is None:
            self._calls.deadlines.drop(call.corr)
            return
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
            text = f"{refusal.message} (not known yet what is offered by: {', '.join(call.awaited)})"
            self._fail(call, refusal.reason, text, data=refusal.data)
            return
        name = call.server or call.awaited[0]
        call.server_hint = name
        upstream = self._supervision.upstreams.get(name)
        state = "removed" if upstream is None else f"{upstream.life.state}: {upstream.message()}".rstrip(": ")
        text = f"server '{name}' was not ready within its start limit ({state}); see: coffer mcp show {name}"
        self._fail(call, errors.START_LIMIT, text, server=name)
