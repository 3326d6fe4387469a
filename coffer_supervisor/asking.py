"""Upstreams' asks on their way to the client whose call caused them, and the answers back.

Owns the numbers under which the endpoint knows them: a worker's own are unique to that worker only. Never decodes an
ask or an answer, and never decides whether one is lawful: the worker did.
"""

import msgspec

from coffer_common import frames, protocol
from coffer_supervisor.channel import Channel, Peer
from coffer_supervisor.pending import Calls, Pending


class Asks:
    """Part of the router. Each ask is answered once; what comes for an ended call is refused or dropped."""

    def __init__(self, calls: Calls, channel: Channel) -> None:
        self._calls, self._channel = calls, channel
        self._open: dict[int, tuple[Pending, Peer, int]] = {}
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
        call.asks.remove(ask)
        self._numbers.pop((peer.name, peer.incarnation, number), None)
        self._channel.send(peer, frames.Answer(number, error), payload)

    def drop(self, call: Pending) -> None:
        """The call has ended: its asks with it."""
        for ask in call.asks:
            _, peer, number = self._open.pop(ask)
            self._numbers.pop((peer.name, peer.incarnation, number), None)
        call.asks.clear()

    def _asked(self, peer: Peer, frame: frames.Ask, payload: bytes) -> None:
        call = self._calls.table.get(frame.corr)
        if call is None or call.peer is not peer:
            error = msgspec.json.encode({"code": protocol.METHOD_NOT_FOUND, "message": "the call has ended"})
            self._channel.send(peer, frames.Answer(frame.ask, True), error)
            return
        self._last += 1
        self._open[self._last] = (call, peer, frame.ask)
        self._numbers[peer.name, peer.incarnation, frame.ask] = self._last
        call.asks.append(self._last)
        call.sink.ask(self._last, frame.method, payload)

    def _withdrawn(self, peer: Peer, frame: frames.Withdraw, payload: bytes) -> None:
        ask = self._numbers.pop((peer.name, peer.incarnation, frame.ask), None)
        if ask is not None:
            call = self._open.pop(ask)[0]
            call.asks.remove(ask)
            call.sink.withdraw(ask, frame.reason)
