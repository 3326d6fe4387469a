"""The supervisor's end of the channel: two ZeroMQ ROUTERs, control and bulk, and who may speak on them.

Owns ``zmq``, the sockets, the check of each worker's Hello, and the order of sending. Sending never blocks and
never waits; what cannot be sent is reported, for that frame alone. Never decodes a payload, never knows what a
frame is for. ``docs/frames.md`` describes the frames.

A ROUTER's descriptor is edge-triggered: it tells of news once, whoever looks. So after every send, and after
every bounded batch of receives, the socket itself is asked again.
"""

import asyncio
import hmac
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec
import zmq

from coffer_common import frames

Trouble = Literal["busy", "gone", "unfit"]
Frame = Any

SEND_MESSAGES: Final = 4096
RECEIVE_MESSAGES: Final = 1024
MAX_HEADER: Final = 4 * 1024 * 1024
_UNCOPIED_BYTES: Final = 256 * 1024
_TURN: Final = 128
_LINGER_MS: Final = 500

# As plain numbers: an enum's `|` costs more than the rest of a send.
_LAST: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)

_log: Final = logging.getLogger(__name__)
_CONTROL: Final = frozenset(frames.CONTROL)


@dataclass(slots=True)
class Peer:
    """One incarnation of a worker, from the moment it may say Hello."""

    name: str
    incarnation: int
    identity: bytes
    secret: str = field(repr=False)
    pid: int = 0
    control: bool = False
    bulk: bool = False

    @property
    def greeted(self) -> bool:
        """Whether both its Hellos were good."""
        return self.control and self.bulk


Handler = Callable[[Peer, Any, Any], None]
"""Takes a frame and its payload part: ``bytes``, or a view of them where a Reply is large."""


class Channel:
    """The two sockets. All methods and callbacks run on the loop that ``open`` was called on.

    Give it its ``callbacks`` before it is opened.
    """

    _greeted: Callable[[Peer], None]
    _unsent: Callable[[Peer, Frame, Trouble], None]

    def __init__(self) -> None:
        self._context = zmq.Context(io_threads=1)
        self._peers: dict[bytes, Peer] = {}
        self._handlers: dict[type, Handler] = {}
        self._sockets: list[_Router] = []
        self.dropped = 0
        """Frames of unknown or older incarnations, and bad ones."""

    def callbacks(self, *, greeted: Callable[[Peer], None], unsent: Callable[[Peer, Frame, Trouble], None]) -> None:
        """``greeted(peer)``: a worker has said Hello on both sockets. ``unsent(peer, frame, trouble)``: a frame could
        not be sent: ``busy`` (its queue is full), ``gone`` (no such worker) or ``unfit`` (it holds what no frame can).
        Neither may raise."""
        self._greeted, self._unsent = greeted, unsent

    def open(self, control: str, bulk: str) -> None:
        """Bind both sockets (``ipc://`` addresses) and begin to receive."""
        self._control = _Router(self._context, control, self._receive_control, self._report)
        self._bulk = _Router(self._context, bulk, self._receive_bulk, self._report)
        self._sockets = [self._control, self._bulk]

    def listen_again(self, control: str = "", bulk: str = "") -> None:
        """Bind one or both addresses anew, their files having been removed. What is connected stays: an unbind would
        end it, so the old listener is left, unreachable, until the end. Raises OSError."""
        for router, address in ((self._control, control), (self._bulk, bulk)):
            if address:
                router.bind(address)

    def close(self) -> None:
        """Flush what can be flushed, then close the sockets."""
        for sock in self._sockets:
            sock.close()
        self._sockets = []
        self._context.term()

    def on(self, frame_type: type, handler: Handler) -> None:
        """Let ``handler(peer, frame, payload)`` take each frame of this type. It must not raise."""
        self._handlers[frame_type] = handler

    def expect(self, name: str, incarnation: int, secret: str) -> Peer:
        """Let that worker say Hello with ``secret``, once on each socket."""
        peer = Peer(name, incarnation, f"{name}.{incarnation}".encode(), secret)
        self._peers[peer.identity] = peer
        return peer

    def forget(self, peer: Peer) -> None:
        """That worker is gone: what still comes from it is dropped."""
        self._peers.pop(peer.identity, None)

    def send(self, peer: Peer, frame: Frame, payload: bytes = b"") -> None:
        """Send at the end of this turn of the loop. Never raises: see ``unsent``."""
        router = self._control if type(frame) in _CONTROL else self._bulk
        router.send(peer, frame, payload)

    # ---- receiving

    def _receive_control(self, parts: list[Any]) -> None:
        self._receive(parts, control=True)

    def _receive_bulk(self, parts: list[Any]) -> None:
        self._receive(parts, control=False)

    def _receive(self, parts: list[Any], *, control: bool) -> None:
        peer = self._peers.get(parts[0])
        if peer is None or len(parts[1]) > MAX_HEADER:
            self.dropped += 1
            return
        try:
            frame = frames.decode_from_worker(parts[1])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self.dropped += 1
            _log.warning("worker '%s' sent a frame that is none: %s", peer.name, error)
            return
        if type(frame) is frames.Hello:
            self._hello(peer, frame, control=control)
            return
        handler = self._handlers.get(type(frame))
        if handler is None or not peer.greeted:
            self.dropped += 1
            return
        try:
            handler(peer, frame, _payload(frame, parts[2]) if len(parts) > 2 else b"")
        except Exception:
            # One worker's frame must not end the reading of all the others'.
            _log.exception("a %s frame of worker '%s' was not handled", type(frame).__name__, peer.name)

    def _hello(self, peer: Peer, hello: frames.Hello, *, control: bool) -> None:
        right = hmac.compare_digest(hello.secret.encode(), peer.secret.encode())
        seen = peer.control if control else peer.bulk
        if not right or seen or hello.incarnation != peer.incarnation or hello.name != peer.name:
            self.dropped += 1
            _log.error("a Hello in the name of worker '%s' was refused", peer.name)
            return
        if hello.protocol != frames.PROTOCOL_VERSION:
            self.dropped += 1
            _log.error(
                "worker '%s' speaks version %d of the frame protocol, this daemon %d: restart the daemon",
                peer.name,
                hello.protocol,
                frames.PROTOCOL_VERSION,
            )
            return
        peer.pid = hello.pid
        if control:
            peer.control = True
        else:
            peer.bulk = True
        if peer.greeted:
            peer.secret = ""
            self._greeted(peer)

    def _report(self, peer: Peer, frame: Frame, trouble: Trouble) -> None:
        self._unsent(peer, frame, trouble)


def _payload(frame: Frame, part: zmq.Frame) -> bytes | memoryview:
    """A payload part. A large result stays where ZeroMQ received it; all else is small, or needed as bytes."""
    if type(frame) is frames.Reply and len(part) >= _UNCOPIED_BYTES:
        return part.buffer
    return part.bytes


class _Router:
    """One bound ROUTER, driven by its descriptor."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        receive: Callable[[list[Any]], None],
        unsent: Callable[[Peer, Frame, Trouble], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._receive = receive
        self._unsent = unsent
        self._outgoing: deque[tuple[Peer, Frame, bytes]] = deque()
        self._flushing = False
        self._reading = False
        sock = self._socket = context.socket(zmq.ROUTER)
        sock.setsockopt(zmq.ROUTER_MANDATORY, 1)
        sock.setsockopt(zmq.ROUTER_HANDOVER, 0)
        sock.setsockopt(zmq.SNDHWM, SEND_MESSAGES)
        sock.setsockopt(zmq.RCVHWM, RECEIVE_MESSAGES)
        sock.setsockopt(zmq.LINGER, _LINGER_MS)
        sock.bind(address)
        self._fd = int(sock.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._readable)
        self._look_again()

    def bind(self, address: str) -> None:
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            raise OSError(error.errno, f"cannot bind {address}: {error.strerror}") from error

    def close(self) -> None:
        self._flush()
        self._loop.remove_reader(self._fd)
        self._socket.close()

    def send(self, peer: Peer, frame: Frame, payload: bytes) -> None:
        self._outgoing.append((peer, frame, payload))
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send all of this turn in one go: ZeroMQ's I/O thread is woken once, not for each frame.

        Payloads are copied: without that pyzmq needs a thread and sockets of its own to give them back, and large
        params are rare.
        """
        self._flushing = False
        outgoing, sock = self._outgoing, self._socket
        if sock.closed:
            outgoing.clear()
            return
        while outgoing:
            peer, frame, payload = outgoing.popleft()
            try:
                header = frames.encode(frame)  # before the first part goes: half a message would spoil the next one
                # The first part chooses the worker; once it is taken, so are the others.
                sock.send(peer.identity, _MORE)
                if payload:
                    sock.send(header, _MORE)
                    sock.send(payload, _LAST)
                else:
                    sock.send(header, _LAST)
            except (ValueError, TypeError, OverflowError):
                _log.exception("a %s frame to worker '%s' cannot be written", type(frame).__name__, peer.name)
                self._unsent(peer, frame, "unfit")
            except zmq.Again:
                self._unsent(peer, frame, "busy")
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    _log.error("sending to worker '%s' failed: %s", peer.name, error)
                self._unsent(peer, frame, "gone")
        self._look_again()

    def _look_again(self) -> None:
        if not self._reading and not self._socket.closed and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._reading = True
            self._loop.call_soon(self._read_on)

    def _readable(self) -> None:
        if not self._reading:
            self._read_on()

    def _read_on(self) -> None:
        """Receive a bounded batch; the rest in the next turn, so that a flood does not own the loop."""
        self._reading = False
        sock, receive = self._socket, self._receive
        try:
            for _ in range(_TURN):
                if sock.closed:
                    return
                # A ROUTER puts the identity before what was sent.
                parts: list[Any] = [sock.recv(_LAST), sock.recv(_LAST)]
                while sock.getsockopt(zmq.RCVMORE):
                    parts.append(sock.recv(_LAST, False))
                receive(parts)
        except zmq.Again:
            return
        self._reading = True
        self._loop.call_soon(self._read_on)
