"""What the supervisor and the fork server say to each other over their socketpair.

Owns the messages and the framing: a 4-byte big-endian length, then a tagged msgpack Struct. Never
touches a socket. With the first byte of each ``Fork`` travels exactly one descriptor (SCM_RIGHTS): the
worker's end of its lifeline, which reads end-of-file when the supervisor is gone.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

DEFAULT_TARGET: Final = "coffer_worker.__main__:worker_main"
EXIT_UNCONFIGURED: Final = 71
"""Exit code of a worker that could not use its configuration; its last ``State`` says why."""
MAX_MESSAGE: Final = 16 * 1024 * 1024
_LENGTH_BYTES: Final = 4


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


class Fork(_Message, frozen=True):
    """Fork a worker. ``opaque`` goes to ``target`` (``module:function``, called with the bytes and the
    lifeline's descriptor); it may hold a one-time secret and is never logged."""

    request: int
    name: str
    incarnation: int
    title: str
    opaque: bytes
    target: str = DEFAULT_TARGET


class Kill(_Message, frozen=True):
    """SIGKILL that worker if it still lives; what it had started follows. Answered by its ``Exited``."""

    pid: int
    incarnation: int


class Ping(_Message, frozen=True):
    """Answered by a ``Pong`` with the same number."""

    number: int


class Quit(_Message, frozen=True):
    """Kill every descendant, then exit. The end of the socket means the same."""


class Ready(_Message, frozen=True):
    """The first message from the fork server: preloaded and frozen."""

    pid: int


class Forked(_Message, frozen=True):
    """The worker runs. Always before its ``Exited``."""

    request: int
    pid: int


class ForkFailed(_Message, frozen=True):
    """No worker came of it; ``message`` says why, for an operator."""

    request: int
    message: str


class Exited(_Message, frozen=True):
    """A worker was reaped: ``status`` is its exit code (0 where it was killed), ``signal`` the number that
    killed it (0 where it exited)."""

    pid: int
    name: str
    incarnation: int
    status: int
    signal: int


class Pong(_Message, frozen=True):
    """The fork server's loop turns. ``workers``: how many it counts as living."""

    number: int
    workers: int


class Boot(msgspec.Struct, frozen=True):
    """What ``Fork.opaque`` holds for a worker: who it is, the one-time ``secret`` its Hello must carry,
    and the ``ipc://`` addresses of the supervisor's two sockets."""

    name: str
    incarnation: int
    secret: str
    control: str
    bulk: str


Command = Fork | Kill | Ping | Quit
Event = Ready | Forked | ForkFailed | Exited | Pong

_encoder: Final = msgspec.msgpack.Encoder()
_commands: Final = msgspec.msgpack.Decoder(Command)
_events: Final = msgspec.msgpack.Decoder(Event)
_boots: Final = msgspec.msgpack.Decoder(Boot)


class FramingError(ValueError):
    """The peer does not speak this protocol; the connection is of no more use."""


def encode(message: Command | Event) -> bytes:
    """One message with its length before it."""
    body = _encoder.encode(message)
    if len(body) > MAX_MESSAGE:
        raise FramingError(f"a fork server message of {len(body)} bytes exceeds the limit of {MAX_MESSAGE}")
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def decode_command(body: bytes) -> Command:
    """What the fork server receives. Raises FramingError."""
    try:
        return _commands.decode(body)
    except msgspec.MsgspecError as error:
        raise FramingError(f"not a command for the fork server: {error}") from error


def decode_event(body: bytes) -> Event:
    """What the supervisor receives. Raises FramingError."""
    try:
        return _events.decode(body)
    except msgspec.MsgspecError as error:
        raise FramingError(f"not an event of the fork server: {error}") from error


def encode_boot(boot: Boot) -> bytes:
    """The bytes for ``Fork.opaque``."""
    return _encoder.encode(boot)


def decode_boot(opaque: bytes) -> Boot:
    """What ``worker_main`` was given. Raises FramingError (which never shows the bytes: they are secret)."""
    try:
        return _boots.decode(opaque)
    except msgspec.MsgspecError as error:
        raise FramingError(f"not a worker's boot message: {error}") from None


class Framer:
    """Turns the bytes of a stream into message bodies, whatever the chunks."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield each body that is now complete. Raises FramingError on a length beyond the limit."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH_BYTES:
            length = int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
            if length > MAX_MESSAGE:
                raise FramingError(f"a fork server message claims {length} bytes; the limit is {MAX_MESSAGE}")
            if len(self._buffer) < _LENGTH_BYTES + length:
                return
            body = bytes(self._buffer[_LENGTH_BYTES : _LENGTH_BYTES + length])
            del self._buffer[: _LENGTH_BYTES + length]
            yield body
