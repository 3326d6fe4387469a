"""Upstreams' asks on their way to the client whose call caused them, and the answers back.

Owns the numbers under which the endpoint knows them: a worker's own are unique to that worker only. Never decodes an
ask or an answer, and never decides whether one is lawful: the worker did.
"""

from collections.abc import Callable

import msgspec

from coffer_common import frames, protocol
from coffer_supervisor.channel import Channel, Peer
from coffer_supervisor.core.calls import NoticeSink
from coffer_supervisor.pending import Calls, Pending


class Asks:
    """Part of the router. Each ask is answered once; what comes for an ended call is refused or dropped."""

    def __init__(
        self, calls: Calls, channel: Channel, listeners: Callable[[], NoticeSink], rest: Callable[[Pending], None]
    ) -> None:
        """``rest``: a call's last deadline begins anew, for its worker's clocks stand still meanwhile."""
        self._calls, self._channel, self._listeners, self._rest = calls, channel, listeners, rest
        self._open: dict[int, tuple[Pending | str, Peer, int]] = {}
        """Ours -> the call it belongs to (or the session, where it belongs to none), and the worker's."""
        self._numbers: dict[tuple[str, int, int], int] = {}
        self._last = 0
        channel.on(frames.Ask, self._asked)
        channel.on(frames.Withdraw, self._withdrawn)

    def answer(self, ask: int, payload: bytes, error: bool) -> None:
        """The client's answer; one that nobody waits for any more is dropped."""
        found = self._open.pop(ask, None)
        if found is None:
            return
        call, peer, number = found
        if isinstance(call, Pending):
            call.asks.remove(ask)
            self._rest(call)
        self._numbers.pop((peer.name, peer.incarnation, number), None)
        self._channel.send(peer, frames.Answer(number, error), payload)

    def drop(self, call: Pending) -> None:
        """The call has ended: its asks with it."""
        for ask in call.asks:
            self._forget(ask)
        call.asks.clear()

    def close_session(self, session: str) -> None:
        """A session has ended: what it was asked outside any call goes with it."""
        for ask in [ask for ask, (whose, _, _) in self._open.items() if whose == session]:
            self._forget(ask)

    def lost(self, peer: Peer) -> None:
        """That worker is gone: what it asked sessions outside any call is taken back."""
        for ask, (whose, asker, _) in list(self._open.items()):
            if asker is peer and isinstance(whose, str):
                self._forget(ask)
                self._listeners().session_withdraw(whose, ask)

    def _asked(self, peer: Peer, frame: frames.Ask, payload: bytes) -> None:
        if frame.corr == 0:
            self._session_asked(peer, frame, payload)
            return
        call = self._calls.table.get(frame.corr)
        if call is None or call.peer is not peer:
            self._refuse(peer, frame, "the call has ended")
            return
        known = self._numbers.get((peer.name, peer.incarnation, frame.ask))
        if known is not None:
            self._moved(known, call)
            return
        number = self._keep(call, peer, frame)
        call.asks.append(number)
        self._rest(call)
        call.sink.ask(number, frame.method, payload)

    def _moved(self, ask: int, call: Pending) -> None:
        """The call that it was shown on is about to end, and it was another one's all along: nobody is asked twice."""
        before, peer, number = self._open[ask]
        if isinstance(before, Pending):
            before.asks.remove(ask)
            before.sink.release(ask)
        self._open[ask] = (call, peer, number)
        call.asks.append(ask)
        call.sink.adopt(ask)
        self._rest(call)

    def _session_asked(self, peer: Peer, frame: frames.Ask, payload: bytes) -> None:
        number = self._keep(frame.session, peer, frame)
        if not self._listeners().session_ask(frame.session, number, frame.method, payload):
            self._forget(number)
            self._refuse(peer, frame, "the client cannot be asked now: it has no stream open for that")

    def _keep(self, whose: Pending | str, peer: Peer, frame: frames.Ask) -> int:
        self._last += 1
        self._open[self._last] = (whose, peer, frame.ask)
        self._numbers[peer.name, peer.incarnation, frame.ask] = self._last
        return self._last

    def _forget(self, number: int) -> None:
        _, peer, theirs = self._open.pop(number)
        self._numbers.pop((peer.name, peer.incarnation, theirs), None)

    def _refuse(self, peer: Peer, frame: frames.Ask, why: str) -> None:
        error = msgspec.json.encode({"code": protocol.INVALID_PARAMS, "message": f"{frame.method}: {why}"})
        self._channel.send(peer, frames.Answer(frame.ask, True), error)

    def _withdrawn(self, peer: Peer, frame: frames.Withdraw, payload: bytes) -> None:
        ask = self._numbers.pop((peer.name, peer.incarnation, frame.ask), None)
        if ask is not None:
            call = self._open.pop(ask)[0]
            if isinstance(call, Pending):
                call.asks.remove(ask)
                call.sink.withdraw(ask, frame.reason)
            else:
                self._listeners().session_withdraw(call, ask)
