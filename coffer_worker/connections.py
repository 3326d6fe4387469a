"""The upstream's connections: opened on need, kept within limits, tried again after failures, closed when idle.

Owns the effects of ``core.pool`` and of the restart policy: every start and stop of a connection happens here. Never
looks into a call or a list; who needs to know of a change is told through ``Owner``.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, Literal, Protocol

import msgspec

from coffer_common import errors
from coffer_common.errors import Reason
from coffer_common.frames import State, UpstreamState
from coffer_common.protocol import Era
from coffer_common.resources import McpServerConfig, StdioServer
from coffer_common.restart import Restarts
from coffer_worker.core.pool import SHARED, SPARE, Join, Key, Member, Open, Pool, Use
from coffer_worker.core.relay import Refusal
from coffer_worker.core.trouble import Troubles
from coffer_worker.log import UpstreamLog
from coffer_worker.upstream.connection import Connection
from coffer_worker.upstream.negotiate import StartFailed, Want, outcome
from coffer_worker.upstream.pipe import Gone
from coffer_worker.waiting import Waiter, Waiting, refuse

STOP_GRACE: Final = 4.0
LOGIN_RETRY_SECONDS: Final = 300.0


class Owner(Protocol):
    """What the connections report to."""

    def state_changed(self, state: State) -> None:
        """The upstream's state, as the supervisor is to hear it."""

    def opened(self, connection: Connection, member: Member) -> None:
        """A connection is ready."""

    def lost(self, connection: Connection, member: Member | None, gone: Gone) -> None:
        """A connection has ended; its calls have been failed."""

    def recovered(self) -> None:
        """What failed can be tried again, and the lists' connection lives."""


Opener = Callable[[Want], Awaitable[Connection]]


class Connections:
    """All connections to the upstream ``server``."""

    def __init__(
        self, server: str, config: McpServerConfig, hint: str, *, opener: Opener, owner: Owner, log: UpstreamLog
    ) -> None:
        self._server = server
        self._opener = opener
        self._owner = owner
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._limits = config.limits
        per_project = isinstance(config, StdioServer) and config.per_project
        self.pool = Pool(server, config.isolation, config.limits, per_project=per_project)
        self._verdict = hint
        self.open: dict[int, Connection] = {}
        self.restarts = Restarts()
        self.state = State("stopped")
        self._waiting = Waiting()
        self._troubles = Troubles()
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._discovering = False
        self.stopping = False

    # ---- tasks and state

    def spawn(self, work: Awaitable[None]) -> None:
        """Run something beside the rest, kept and ended with the connections."""

        async def run() -> None:
            await work

        task = self._loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.note(f"internal error: {type(error).__name__}: {error}")
            self._loop.call_exception_handler(
                {"message": "a task of the worker failed", "exception": error, "task": task}
            )

    def say(self, state: State) -> None:
        """Set and report the upstream's state."""
        if state != self.state:
            self.state = state
            self._owner.state_changed(state)

    # ---- discovery

    def discover(self) -> None:
        """Open the connection that the lists are read from (now, or again)."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self.stopping or self._discovering:
            return
        if any(connection.hop.era == self.pool.era for connection in self.open.values()):
            # It was a session's connection that failed; what the lists are read from lives.
            self._owner.recovered()
            self._redo(self._waiting.take_held())
        else:
            self._discovering = True
            self.spawn(self._discover())

    async def _discover(self) -> None:
        self.say(State("starting", restarts=self.restarts.total))
        # Before the verdict nobody knows the key; a guess reserves the place, so that sessions wait for this one.
        guess = self.pool.spare_key(self.pool.era or "legacy")
        self.pool.opening[guess] = None
        try:
            era: Literal["", "legacy"] = "legacy" if self._verdict == "legacy" else ""
            connection = await outcome(self._server, self._opener(Want(era, guess.revision, guess.declared)))
        except StartFailed as error:
            self._start_failed(guess, error)
            return
        finally:
            self._discovering = False
            self.pool.not_opened(guess)
        self.pool.era = self._verdict = connection.hop.era
        self.restarts.up(self._loop.time())
        key = self.pool.discovered(guess, connection.hop.era)
        self._admit(key, connection, [*self._waiting.take(guess), *self._waiting.take_held()])

    def _start_failed(self, key: Key, error: StartFailed) -> None:
        self.pool.not_opened(key)
        self._verdict = ""  # what was found out before may no longer be true: the next try asks again
        if not self.open:
            self.pool.era = ""
        self._log.note(error.message)
        waiting = [*self._waiting.take(key), *self._waiting.take_held()]
        self._fall_back(error.reason, error.message, error.stderr, error.retry_after)
        for waiter in waiting:
            refuse(waiter, Refusal(error.reason, self._with_advice(error.message)))

    def _fall_back(
        self, reason: Reason, message: str, stderr: tuple[str, ...] = (), retry_after: float | None = None
    ) -> None:
        """Try again later: soon and then ever later, or rarely where only a person can mend it."""
        if reason is errors.NEEDS_LOGIN:
            state: UpstreamState = "needs_login"
            delay = LOGIN_RETRY_SECONDS
        else:
            verdict = self.restarts.down(self._loop.time(), random.random())
            state, delay = verdict.state, max(verdict.delay, retry_after or 0.0)
        self._log.note(f"{state}: next try in {delay:.1f} s")
        total = self.restarts.total
        self.say(State(state, message, reason.name, retry_in=delay, stderr=stderr, restarts=total))
        self._retry_in(delay)

    def _retry_in(self, delay: float) -> None:
        if self._retry is not None:
            self._retry.cancel()
        if not self.stopping:
            self._retry = self._loop.call_later(delay, self.discover)

    def _with_advice(self, message: str) -> str:
        if self.state.state == "failed":
            return (
                f"{message}. It failed too often to be tried at once; mend it, then: coffer mcp restart {self._server}"
            )
        return message

    # ---- serving

    def want(self, waiter: Waiter) -> None:
        """Give the waiter a connection: at once where there is one."""
        if waiter.withdrawn:
            return
        if self.stopping:
            refuse(waiter, Refusal(errors.UPSTREAM_STOPPED, f"Upstream {self._server!r} is being stopped"))
        elif not self.pool.era:
            self._want_undiscovered(waiter)
        else:
            found = self.pool.find(waiter.caller, call=waiter.call)
            if isinstance(found, Use):
                self._serve(waiter, found)
            elif isinstance(found, Join):
                self._waiting.join(found.key, waiter)
            elif isinstance(found, Refusal):
                refuse(waiter, found)
            elif not self._kept_waiting(waiter, found.key):
                self._waiting.join(found.key, waiter)
                self._start(found)

    def _want_undiscovered(self, waiter: Waiter) -> None:
        if not self._discovering and (refusal := self._refusal()) is not None:
            refuse(waiter, refusal)
            return
        self._waiting.hold(waiter)
        if not self._discovering and self._retry is None:
            self.discover()

    def _kept_waiting(self, waiter: Waiter, key: Key) -> bool:
        """Whether opening must wait (or is refused) because earlier ones failed."""
        wait = self._troubles.wait(key.whose, self._loop.time())
        if wait is not None:
            if wait.refused:
                what = f"its connections for this session keep failing ({wait.cause})"
                refuse(waiter, Refusal(errors.UPSTREAM_FAILED, f"Upstream {self._server!r}: {what}"))
            else:
                self._loop.call_later(wait.seconds, self.want, waiter)
            return True
        if (refusal := self._refusal()) is not None:
            refuse(waiter, refusal)
            return True
        if self._retry is not None:
            self._waiting.hold(waiter)
            return True
        return False

    def _refusal(self) -> Refusal | None:
        """Why no connection is opened for anybody now."""
        if self.state.state == "failed":
            return Refusal(errors.UPSTREAM_FAILED, self._with_advice(self.state.message))
        return Refusal(errors.NEEDS_LOGIN, self.state.message) if self.state.state == "needs_login" else None

    def _serve(self, waiter: Waiter, found: Use) -> None:
        member = found.member
        connection = self.open.get(member.number)
        if connection is None:  # its end is being dealt with in this very turn
            self._loop.call_soon(self.want, waiter)
            return
        member.last_used = self._loop.time()
        if found.handed_over and "roots" in member.key.declared:
            connection.notify("notifications/roots/list_changed")  # it asked nobody's roots so far
        waiter.ready(connection, member)

    def _redo(self, waiters: list[Waiter]) -> None:
        for waiter in waiters:
            self.want(waiter)

    # ---- opening

    def open_for(self, era: Era) -> None:
        """Open a connection of that era for the lists, where there is none (a dual-era upstream's legacy side)."""
        key = self.pool.spare_key(era)
        if key not in self.pool.opening and not any(c.hop.era == era for c in self.open.values()):
            self._start(Open(key))

    def _start(self, order: Open) -> None:
        self.pool.opening[order.key] = None
        if order.evict is not None:
            connection = self.open.get(order.evict.number)
            self.pool.gone(order.evict.number)
            if connection is not None:
                self.spawn(self.close(connection, "its place is needed for a session"))
        self.spawn(self._open(order.key))

    async def _open(self, key: Key) -> None:
        try:
            want = Want(key.era, key.revision, key.declared, key.project)
            connection = await outcome(self._server, self._opener(want))
        except StartFailed as error:
            self._not_opened(key, error)
            return
        finally:
            self.pool.not_opened(key)
        if key.era == "legacy" and self.pool.era == "modern":
            self.pool.legacy_side = True
        self._admit(key, connection, self._waiting.take(key))

    def _not_opened(self, key: Key, error: StartFailed) -> None:
        self.pool.not_opened(key)
        self._log.note(error.message)
        waiters = self._waiting.take(key)
        if error.verdict and key.era == "legacy" and self.pool.era == "modern" and self.pool.legacy_side is not True:
            # It speaks the modern era only: its legacy callers are served over that.
            self.pool.legacy_side = False
            self._log.note("no legacy side: legacy clients are served over its modern connection")
            self._redo(waiters)
            return
        if self.open and key.whose not in (SPARE, SHARED) and error.reason is not errors.NEEDS_LOGIN:
            self._session_failed(key.whose, Gone(error.message, stderr=error.stderr))
        else:
            self._fall_back(error.reason, error.message, error.stderr, error.retry_after)
        for waiter in waiters:
            refuse(waiter, Refusal(error.reason, self._with_advice(error.message)))

    def _admit(self, key: Key, connection: Connection, waiters: list[Waiter]) -> None:
        now = self._loop.time()
        member = self.pool.opened(key, connection.number, connection.hop.revision, now)
        self.open[connection.number] = connection
        self._arm_idle()
        try:
            self._owner.opened(connection, member)
        finally:
            self._redo(waiters)

    # ---- ends

    def gone(self, connection: Connection, gone: Gone) -> None:
        """A connection has ended, deliberately or not."""
        was_open = self.open.pop(connection.number, None)
        member = self.pool.gone(connection.number)
        if was_open is None:
            return
        if not gone.deliberate:
            self._log.note(gone.message)
        self._owner.lost(connection, member, gone)
        if member is None or gone.deliberate or self.stopping:
            return
        if gone.reason is errors.NEEDS_LOGIN:
            self._fall_back(gone.reason, gone.message)
        elif gone.code == 0 and member.answered:
            # It did its work and left: no failure, and nothing to wait for. It is started again at the next call.
            self.say(
                _with(self.state, f"{gone.message} after {member.answered} answered call(s); started again on need")
            )
        elif member.key.whose in (SPARE, SHARED):
            self._fall_back(gone.reason or errors.UPSTREAM_EXITED, gone.message, gone.stderr)
        else:
            self._session_failed(member.key.whose, gone)

    def _session_failed(self, session: str, gone: Gone) -> None:
        """The crash of one session's connection backs off that session only."""
        verdict = self._troubles.failed(session, gone.message, self._loop.time(), random.random())
        self.restarts.total += 1
        if self.open or self.pool.opening:
            self.say(_with(self.state, gone.message, restarts=self.restarts.total))
        else:
            self.say(
                State(
                    "backoff",
                    gone.message,
                    (gone.reason or errors.UPSTREAM_EXITED).name,
                    retry_in=verdict.delay,
                    stderr=gone.stderr,
                    restarts=self.restarts.total,
                )
            )
            self._retry_in(verdict.delay)

    def session_up(self, member: Member) -> None:
        """A call of that session was answered."""
        self._troubles.worked(member.key.whose, self._loop.time())

    def close_session(self, session: str) -> None:
        """A session has ended: so do the connections that were its own."""
        self._troubles.forget(session)
        for member in self.pool.of_session(session):
            if (connection := self.open.get(member.number)) is not None:
                self.spawn(self.close(connection, "its session ended"))
                self.pool.gone(member.number)

    async def close(self, connection: Connection, reason: str) -> None:
        """End one connection in good order."""
        if connection.pipe is not None:
            await connection.pipe.close(STOP_GRACE, reason)

    def _arm_idle(self) -> None:
        at = self.pool.next_idle()
        if at is not None and self._idle is None and not self.stopping:
            self._idle = self._loop.call_at(max(at, self._loop.time() + 0.05), self._close_idle)

    def _close_idle(self) -> None:
        self._idle = None
        for member in self.pool.idle(self._loop.time()):
            self.pool.gone(member.number)
            if (connection := self.open.get(member.number)) is not None:
                self.spawn(self.close(connection, "it was idle"))
        self._arm_idle()

    def released(self) -> None:
        """Something ended that kept a connection busy."""
        if self._idle is None:
            self._arm_idle()

    async def stop(self, reason: str) -> None:
        """End all connections; nobody is served any more."""
        self.stopping = True
        for handle in (self._retry, self._idle):
            if handle is not None:
                handle.cancel()
        text = f"Upstream {self._server!r} is being stopped: {reason}"
        for waiter in self._waiting.take_all():
            refuse(waiter, Refusal(errors.UPSTREAM_STOPPED, text))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*(self.close(c, reason) for c in list(self.open.values())), return_exceptions=True)
        await asyncio.gather(*list(self._tasks), return_exceptions=True)


def _with(state: State, message: str, restarts: int | None = None) -> State:
    return msgspec.structs.replace(state, message=message, restarts=state.restarts if restarts is None else restarts)
