"""The worker's end of the channel: the only module here that knows ZeroMQ.

Owns two DEALERs of identity ``NAME.INCARNATION``: ``Bulk``, driven by the event loop through its descriptor, and
``Control``, which lives in the control thread. Both say Hello first. Never looks into a payload part, never blocks.
"""

import asyncio
import os
import select
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec
import zmq

from coffer_common import frames
from coffer_common.forkproto import Boot

ZERO_COPY: Final = 64 * 1024
BATCH: Final = 200
HIGH_BYTES: Final = 32 * 1024 * 1024
LOW_BYTES: Final = 4 * 1024 * 1024
QUEUE_MESSAGES: Final = 10_000
LINGER_MS: Final = 2000

Received = Callable[[Any, bytes], None]


def _dealer(context: "zmq.Context[zmq.Socket[bytes]]", boot: Boot, address: str) -> "zmq.Socket[bytes]":
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, f"{boot.name}.{boot.incarnation}".encode())
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
    socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES)
    socket.connect(address)
    hello = frames.Hello(frames.PROTOCOL_VERSION, boot.name, boot.incarnation, os.getpid(), boot.secret)
    socket.send(frames.encode(hello))
    return socket


class Link:
    """Both sockets of one worker; made after the fork."""

    def __init__(self, boot: Boot) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._boot = boot

    def bulk(self, received: Received, pressure: Callable[[bool], None]) -> "Bulk":
        """The bulk socket, on the running loop. ``pressure(True)``: the supervisor is slow, take less in."""
        return Bulk(_dealer(self._context, self._boot, self._boot.bulk), received, pressure)

    def control(self) -> "Control":
        """The control socket, for the calling thread alone."""
        return Control(_dealer(self._context, self._boot, self._boot.control))

    def close(self) -> None:
        """Wait, for a bounded time, until what was sent has left."""
        self._context.term()


class Bulk:
    """The bulk DEALER on the event loop. All frames of one loop turn go out together."""

    def __init__(self, socket: "zmq.Socket[bytes]", received: Received, pressure: Callable[[bool], None]) -> None:
        self._socket = socket
        self._received = received
        self._pressure = pressure
        self._pressing = False
        self._loop = asyncio.get_running_loop()
        self._out: deque[tuple[Any, bytes]] = deque()
        self._held = 0
        self._flushing = False
        self._fd = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._turn)
        self._loop.call_soon(self._turn)
        self.dropped = 0

    def send(self, frame: Any, payload: bytes = b"") -> None:
        """Queue one frame."""
        self._out.append((frame, payload))
        self._held += len(payload)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        while self._out:
            frame, payload = self._out[0]
            try:
                self._put(frame, payload)
            except zmq.Again:
                break  # the descriptor tells when there is room
            except (ValueError, TypeError, OverflowError) as error:
                # A frame that cannot be written must not hold up all that follow it.
                self._loop.call_exception_handler({"message": "a frame was not sent", "exception": error})
            self._out.popleft()
            self._held -= len(payload)
        self._weigh()
        # The descriptor is edge-triggered: sending may have eaten the edge of something to read.
        self._turn()

    def _put(self, frame: Any, payload: bytes) -> None:
        header = frames.encode(frame)
        if payload:
            # Once the first part is taken, so is the second.
            self._socket.send(header, zmq.NOBLOCK | zmq.SNDMORE)
            self._socket.send(payload, zmq.NOBLOCK, copy=len(payload) < ZERO_COPY)
        else:
            self._socket.send(header, zmq.NOBLOCK)

    def _weigh(self) -> None:
        if not self._pressing and self._held > HIGH_BYTES:
            self._pressing = True
            self._pressure(True)
        elif self._pressing and self._held < LOW_BYTES:
            self._pressing = False
            self._pressure(False)

    def _turn(self) -> None:
        if self._socket.closed:
            return
        for _ in range(BATCH):
            try:
                parts = [self._socket.recv(zmq.NOBLOCK)]
            except zmq.Again:
                break
            while self._socket.getsockopt(zmq.RCVMORE):
                parts.append(self._socket.recv(zmq.NOBLOCK))
            self._take(parts)
        else:
            self._loop.call_soon(self._turn)
        if self._out and not self._flushing and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _take(self, parts: list[bytes]) -> None:
        try:
            frame = frames.decode_from_supervisor(parts[0])
        except msgspec.MsgspecError:
            self.dropped += 1
            return
        try:
            self._received(frame, parts[1] if len(parts) > 1 else b"")
        except Exception as error:
            # A fault of ours in one frame must not lose the others.
            self._loop.call_exception_handler({"message": "a frame was not handled", "exception": error})

    def close(self) -> None:
        """Send what is queued, as far as there is room, and let go of the socket (it lingers)."""
        self._flush()
        self._loop.remove_reader(self._fd)
        self._socket.close()


class Control:
    """The control DEALER, for one thread; blocking only in ``wait``."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self._fd = int(socket.getsockopt(zmq.FD))

    def wait(self, others: tuple[int, ...], seconds: float) -> set[int]:
        """Wait for a frame or one of the descriptors; which of ``others`` are readable."""
        if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            seconds = 0.0
        poller = select.poll()
        for fd in (self._fd, *others):
            poller.register(fd, select.POLLIN)
        ready = poller.poll(max(0.0, seconds) * 1000)
        return {fd for fd, _ in ready if fd != self._fd}

    def receive(self) -> list[Any]:
        """The frames that are here."""
        found: list[Any] = []
        while True:
            try:
                header = self._socket.recv(zmq.NOBLOCK)
                while self._socket.getsockopt(zmq.RCVMORE):
                    self._socket.recv(zmq.NOBLOCK)  # no control frame has a payload on the way in
                found.append(frames.decode_from_supervisor(header))
            except zmq.Again:
                return found
            except msgspec.MsgspecError:
                continue

    def send(self, frame: Any, payload: bytes = b"") -> None:
        """Send one frame; dropped where the supervisor has not taken thousands before it."""
        try:
            if payload:
                self._socket.send(frames.encode(frame), zmq.NOBLOCK | zmq.SNDMORE)
                self._socket.send(payload, zmq.NOBLOCK)
            else:
                self._socket.send(frames.encode(frame), zmq.NOBLOCK)
        except zmq.Again:
            return

    def close(self) -> None:
        """Let go of the socket (it lingers)."""
        self._socket.close()
