"""Routed calls on their way to a worker: sent, held until there is one, or refused.

Owns what is held, and the credit in bytes that bounds what one worker is owed. Never waits; never decides what a call
meets (``core.gate`` does).
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from coffer_common import errors, frames
from coffer_supervisor.channel import Channel, Frame, Peer, Trouble
from coffer_supervisor.pending import Calls, Pending
from coffer_supervisor.supervision import Supervision
from coffer_supervisor.upstream import Upstream

CREDIT_BYTES: Final = 128 * 1024 * 1024
"""Params of unanswered calls that one worker may be sent; one call alone may be larger."""
_BACKSTOP_SECONDS: Final = 5.0
_UNSENT: Final[dict[Trouble, tuple[errors.Reason, str]]] = {
    "busy": (errors.WORKER_BUSY, " does not take calls as fast as they come; try again later"),
    "unfit": (errors.INTERNAL, ": the call holds text that cannot be passed on, and was not sent"),
    "gone": (errors.WORKER_GONE, ": its worker is gone, and the call was not sent; try again"),
}


class Fail(Protocol):
    """Ends a call with one of Coffer's own errors."""

    def __call__(self, call: Pending, reason: errors.Reason, message: str, *, server: str | None = None) -> None: ...


class Sending:
    """Part of the router. ``deadline(call, when)``: loop time, None for none."""

    def __init__(
        self,
        calls: Calls,
        channel: Channel,
        supervision: Supervision,
        fail: Fail,
        deadline: Callable[[Pending, float | None], None],
    ) -> None:
        self._calls, self._channel, self._supervision = calls, channel, supervision
        self._fail, self._deadline = fail, deadline
        self._loop = asyncio.get_running_loop()
        self._held: dict[str, dict[int, Pending]] = {}
        self._credit: dict[str, int] = {}

    def dispatch(self, call: Pending) -> None:
        """Send, hold or refuse a routed call."""
        upstream = self._supervision.upstreams.get(call.server)
        if upstream is None:
            self._fail(call, errors.UNKNOWN_SERVER, f"server '{call.server}' is no longer registered")
            return
        gate = upstream.gate()
        if gate.way == "open" and upstream.peer is not None:
            self._send(call, upstream, upstream.peer)
        elif gate.way == "refuse":
            self._fail(call, gate.reason, gate.message)
        else:
            self._hold(call, upstream)

    def gate_changed(self, name: str) -> None:
        """What is held for that upstream may go on, or is refused."""
        held = self._held.get(name)
        if not held:
            return
        upstream = self._supervision.upstreams.get(name)
        if upstream is not None and upstream.gate().way == "hold":
            return
        for corr in list(held):
            # An answer to one may end another (a session that closes), so each is looked for anew.
            if (call := held.pop(corr, None)) is not None:
                self.dispatch(call)

    def ended(self, call: Pending) -> None:
        """A call is over: its credit is free, its place among the held as well."""
        if call.peer is not None:
            self._credit[call.server] -= len(call.request.params)
        elif (held := self._held.get(call.server)) is not None:
            held.pop(call.corr, None)

    def unsent(self, peer: Peer, frame: Frame, trouble: Trouble) -> None:
        """A frame could not be sent (the channel's callback): it fails that call only."""
        corr = getattr(frame, "corr", 0)
        call = self._calls.table.get(corr) if type(frame) is frames.Call else None
        if call is not None:
            reason, text = _UNSENT[trouble]
            self._fail(call, reason, f"server '{peer.name}'{text}", server=peer.name)
        elif corr:
            self._calls.unanswered(peer.name, f"the worker of server '{peer.name}' is {trouble}", corr)

    def _hold(self, call: Pending, upstream: Upstream) -> None:
        held = self._held.setdefault(call.server, {})
        limits = upstream.config.limits
        if len(held) >= limits.in_flight + limits.queue:
            text = f"server '{call.server}' is starting and {len(held)} calls wait for it already; try again later"
            self._fail(call, errors.QUEUE_FULL, text)
            return
        held[call.corr] = call
        self._deadline(call, call.started + limits.start_seconds)
        self._supervision.hasten(call.server)

    def _send(self, call: Pending, upstream: Upstream, peer: Peer) -> None:
        request, name = call.request, call.server
        size, used = len(request.params), self._credit.get(name, 0)
        if used and used + size > CREDIT_BYTES:
            text = f"server '{name}' has {used // 1_000_000} MB of calls unanswered; try again later"
            self._fail(call, errors.WORKER_BUSY, text)
            return
        self._credit[name] = used + size
        call.peer = peer
        self._calls.touch(request.caller.session, name)
        self._deadline(call, self._backstop(upstream))
        frame = frames.Call(
            call.corr, request.caller, request.method, call.key, None, request.headers, request.log_level
        )
        self._channel.send(peer, frame, request.params)

    def rest(self, call: Pending) -> None:
        """Its client is asked, or has answered: the worker's clocks begin anew, and so does ours."""
        upstream = self._supervision.upstreams.get(call.server)
        if upstream is not None:
            self._deadline(call, self._backstop(upstream))

    def _backstop(self, upstream: Upstream) -> float | None:
        """When the worker, which keeps the limits, must have said something; None where there is no limit."""
        limits = upstream.config.limits
        if limits.total_seconds is None:
            return None
        seconds = limits.start_seconds + limits.total_seconds + limits.answer_seconds + _BACKSTOP_SECONDS
        return self._loop.time() + seconds
