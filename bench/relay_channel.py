"""A ZeroMQ socket driven by its descriptor, for both ends of the bare relay."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import zmq


class Channel:
    """Non-blocking sends; receives whatever is there each time the (edge-triggered) descriptor wakes."""

    def __init__(self, socket: zmq.Socket[bytes], received: Callable[[list[bytes]], None]) -> None:
        self.socket = socket
        self.received = received
        self.waiting: deque[Sequence[bytes]] = deque()
        self.loop = asyncio.get_running_loop()
        self.descriptor = int(socket.getsockopt(zmq.FD))
        self.loop.add_reader(self.descriptor, self.turn)

    def send(self, parts: Sequence[bytes]) -> None:
        """Send, or keep it until there is room; then look again, for the wake-up may have been swallowed."""
        self.waiting.append(parts)
        self.turn()

    def turn(self) -> None:
        """Send and receive all that is possible now."""
        while self.waiting:
            try:
                self.socket.send_multipart(self.waiting[0], zmq.NOBLOCK)
            except zmq.Again:
                break
            self.waiting.popleft()
        while True:
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self.received(parts)

    def close(self) -> None:
        """Stop watching and close."""
        self.loop.remove_reader(self.descriptor)
        self.socket.close(0)
