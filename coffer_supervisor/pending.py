"""The calls in flight: one table for the router that fills it and the supervision that shows it.

Owns the table, its indexes by session and server, the supervisor's own requests with where their answers go, and
correlation numbers, which are never reused. Never sends anything, nor answers a client.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from coffer_common.frames import CapabilityType
from coffer_supervisor.channel import Peer
from coffer_supervisor.core.calls import CallRequest, CallSink, Failure
from coffer_supervisor.core.deadlines import Deadlines

TYPE_OF: Final[dict[str, CapabilityType]] = {
    "tools/call": "tool",
    "resources/read": "resource",
    "prompts/get": "prompt",
}


@dataclass(slots=True, eq=False)
class Pending:
    """One call. ``server`` and ``key`` are empty until it is routed; ``peer`` is None until it is sent. ``started``
    is monotonic. ``awaited``: the upstreams whose catalogues must come first, ``refusal`` what is said if they do
    not. ``server_hint``: which upstream was meant by a call that never got to one.
    """

    corr: int
    request: CallRequest
    sink: CallSink
    started: float
    server: str = ""
    key: str = ""
    awaited: tuple[str, ...] = ()
    peer: Peer | None = None
    asks: list[int] = field(default_factory=list)
    refusal: object = None
    server_hint: str = ""

    @property
    def session(self) -> str:
        """The session it belongs to."""
        return self.request.caller.session


class RefusedByWorker(Exception):
    """A worker answered a request of the supervisor's own with an error (``failure``), or was lost before it did."""

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        super().__init__(message)
        self.failure = failure


class Calls:
    """The table."""

    def __init__(self) -> None:
        self.table: dict[int, Pending] = {}
        self.by_session: dict[str, dict[int, Pending]] = {}
        self.by_server: dict[str, dict[int, Pending]] = {}
        self.touched: dict[str, set[str]] = {}
        """Session -> the servers whose workers know it."""
        self.deadlines = Deadlines()
        self.requests: dict[int, tuple[str, asyncio.Future[bytes]]] = {}
        """Requests of the supervisor's own (subscribe, refresh, dump): server, and where the answer goes."""
        self._last = 0
        self._drained: asyncio.Event | None = None

    def number(self) -> int:
        """A correlation number."""
        self._last += 1
        return self._last

    def add(self, call: Pending) -> None:
        """A call begins."""
        self.table[call.corr] = call
        self.by_session.setdefault(call.session, {})[call.corr] = call

    def awaited(self, server: str) -> bool:
        """Whether a worker of that server has a call to answer."""
        return any(call.peer is not None for call in self.by_server.get(server, {}).values())

    def route(self, call: Pending, server: str, key: str) -> None:
        """It is known which upstream it is for."""
        call.server, call.key, call.awaited = server, key, ()
        self.by_server.setdefault(server, {})[call.corr] = call

    def remove(self, corr: int) -> Pending | None:
        """A call ends; None if it already has."""
        call = self.table.pop(corr, None)
        if call is None:
            return None
        self.deadlines.drop(corr)
        mine = self.by_session[call.session]
        del mine[corr]
        if not mine:
            del self.by_session[call.session]
        if call.server:
            del self.by_server[call.server][corr]
        if self._drained is not None and not self.table:
            self._drained.set()
        return call

    def touch(self, session: str, server: str) -> None:
        """A worker hears of a session."""
        touched = self.touched.get(session)
        if touched is None:
            self.touched[session] = {server}
        else:
            touched.add(server)

    async def drained(self) -> None:
        """Returns when no call is open."""
        self._drained = asyncio.Event()
        if self.table:
            await self._drained.wait()

    def request(self, server: str) -> tuple[int, "asyncio.Future[bytes]"]:
        """A request of the supervisor's own: its number, and its answer to come."""
        corr = self.number()
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.requests[corr] = (server, future)
        return corr, future

    def answered(self, server: str, corr: int, answer: bytes | Failure) -> bool:
        """A worker's answer to such a request. False if there is none of that number (any more) for that server."""
        owner, future = self.requests.get(corr, ("", None))
        if future is None or owner != server:
            return False
        if not future.done():
            if isinstance(answer, Failure):
                future.set_exception(RefusedByWorker(answer.message, answer))
            else:
                future.set_result(answer)
        return True

    def unanswered(self, server: str, reason: str, corr: int | None = None) -> None:
        """No answer will come from that server's worker: to any such request, or to ``corr`` alone."""
        for number, (owner, future) in list(self.requests.items()):
            if owner == server and corr in (None, number) and not future.done():
                future.set_exception(RefusedByWorker(reason))
