"""One upstream, whole: frames from the supervisor on one side, connections on the other.

Owns the wiring of the worker's rooms, the upstream's state as the supervisor hears it, and the worker's end. Never
speaks a protocol itself and decides nothing that a ``core`` module could.
"""

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from coffer_common import errors, frames
from coffer_common.frames import State
from coffer_common.resources import HttpServer, McpServerConfig
from coffer_worker import caps, discretion, dump, figures, transports
from coffer_worker.calls import Calls
from coffer_worker.connections import Connections
from coffer_worker.control import Figures
from coffer_worker.core import bridge, catalogue
from coffer_worker.core.pool import SHARED, SPARE, Member
from coffer_worker.core.relay import Relay
from coffer_worker.keeping import Keeping
from coffer_worker.lists import Lists
from coffer_worker.log import UpstreamLog
from coffer_worker.logins import Logins
from coffer_worker.messages import Messages
from coffer_worker.outlet import Outlet
from coffer_worker.refreshing import Refreshing
from coffer_worker.subscribing import Subscribing
from coffer_worker.upstream.connection import Connection, number_of
from coffer_worker.upstream.negotiate import Negotiation, Want
from coffer_worker.upstream.oauth import Bearer
from coffer_worker.upstream.pipe import Gone

_CLIENT_NAME: Final = "coffer"


class Runner:
    """The upstream ``name``. ``outlet`` takes bulk frames, ``post`` control frames; ``finished`` is set at the end."""

    def __init__(self, name: str, outlet: Outlet, post: Any) -> None:
        self._name = name
        self._outlet = outlet
        self._discreet = discretion.Discreet(outlet, lambda text: text)
        self._post = post
        self._loop = asyncio.get_running_loop()
        self.finished = asyncio.Event()
        self._early: list[tuple[Any, bytes]] = []
        self._config: McpServerConfig | None = None
        self._state = State("starting")
        self._identity: Connection | None = None
        self._bytes = [0, 0]
        self._stopping: asyncio.Task[None] | None = None
        self._way: transports.Way | None = None

    # ---- beginning

    def configure(self, frame: frames.Configure) -> None:
        """The Configure frame: build the rooms and begin to discover."""
        if self._config is not None or self._stopping is not None:
            return
        config = self._config = frame.config
        self._client_info = msgspec.json.encode({"name": _CLIENT_NAME, "version": frame.coffer_version})
        secrets = discretion.spellings((*frame.secrets, *transports.secrets_of(config)))
        self._log = UpstreamLog(Path(frame.logs_dir) / f"upstream-{self._name}.log", secrets)
        self._discreet = discretion.Discreet(self._outlet, self._log.mask)
        self._outlet = self._discreet
        self._relay = Relay(self._name, config.limits)
        self._connections = Connections(
            self._name, config, frame.era_hint, opener=self._open, owner=self, log=self._log
        )
        self._connections.pool.seen = bridge.capability_set(frame.seen)
        self._messages = Messages(self._relay, self._connections, self._outlet)
        self._lists = Lists(
            self._name,
            config.limits,
            self._outlet,
            self._log,
            spawn=self._connections.spawn,
            changed=self._lists_changed,
            over_http=isinstance(config, HttpServer),
        )
        self._refreshing = Refreshing(self._name, self._connections, self._lists, self._outlet)
        self._keeping = Keeping(self._outlet, self._relay.number)
        bearer = self._reach(config, Path(frame.records_dir))
        self._build_calls(config, frame.run)
        spawn = self._connections.spawn
        self._logins = Logins(
            bearer, self._outlet, self._post, spawn, self._logged_in, server=self._name, mask=self._log.mask
        )
        spawn(caps.watch(self._name, config.limits, self._connections))
        self._begin()

    def _reach(self, config: McpServerConfig, records: Path) -> Bearer | None:
        """The way to the upstream, and the bearer of what a login brings where there is nothing else to show."""
        bearer = None
        if isinstance(config, HttpServer) and not transports.authorized(config):
            bearer = Bearer(
                config.url, self._keeping, lambda found: self._log.learn(discretion.spellings(found)), config.oauth
            )
        self._way = transports.way(
            self._name,
            config,
            records,
            self._log,
            mirrors=self._lists.mirrors,
            new_id=self._relay.number,
            auth=bearer,
        )
        return bearer

    def _build_calls(self, config: McpServerConfig, run: str) -> None:
        self._calls = Calls(
            self._name,
            config,
            self._relay,
            self._connections,
            self._messages,
            outlet=self._outlet,
            answered=self._connections.session_up,
            log=self._log,
            run=run,
        )
        self._connections.pool.over_http = isinstance(config, HttpServer)
        self._calls.mirrors = self._lists.mirrors
        self._calls.relist = self._lists.read
        self._subscribing = Subscribing(self._name, self._connections, self._outlet, self._log, self._relay.number)
        self._subscribing.missed = self._refreshing.again

    def _begin(self) -> None:
        self._connections.discover()
        early, self._early = self._early, []
        for held, payload in early:
            self.bulk(held, payload)

    async def _open(self, want: Want) -> Connection:
        """A negotiated connection. Raises StartFailed."""
        config, way = self._config, self._way
        assert config is not None
        assert way is not None

        async def start() -> Connection:
            connection = Connection(self._relay.number(), self._name, self._relay.number, self)
            connection.on_request = partial(self._calls.asking.on_request, connection)
            await way.begin(connection, want.project)
            return connection

        making = Negotiation(self._name, start, self._client_info, config.limits, over_http=way.over_http)
        connection = await making.run(want)
        if connection.deviations:
            self._log.fault(connection.deviations)
        return connection

    # ---- frames

    def bulk(self, frame: Any, payload: bytes) -> None:
        """A bulk frame; what comes before Configure waits for it."""
        if self._config is None:
            self._early.append((frame, payload))
            return
        match frame:
            case frames.Call():
                if frame.caller.naming == "raw":
                    self._messages.welcome(frame.caller)
                self._calls.call(frame, payload)
            case frames.Subscribe():
                self._subscribing.subscribe(frame)
            case frames.Unsubscribe():
                self._subscribing.unsubscribe(frame)
            case frames.SetLevel():
                self._messages.welcome(frame.caller)
                self._messages.set_level(frame.caller.session, frame.level)
            case frames.Answer():
                self._calls.asking.answer(frame, payload)
            case frames.RootsChanged():
                self._calls.asking.roots_changed(frame.session)

    def control(self, frame: Any) -> None:
        """A control frame."""
        match frame:
            case frames.Configure():
                self.configure(frame)
            case frames.Stop():
                self.stop(frame.drain, frame.reason)
            case frames.Dump():
                self._dump(frame.corr)
            case _ if self._config is None:
                self._early = [(f, p) for f, p in self._early if not _cancels(frame, f)]
            case frames.Cancel():
                self._calls.cancel(frame.corr, frame.reason)
            case frames.CloseSession():
                self._calls.close_session(frame.session, frame.reason)
                self._calls.asking.close_session(frame.session)
                self._lists.close_session(frame.session)
                self._subscribing.close_session(frame.session)
                self._connections.close_session(frame.session)
                self._messages.close_session(frame.session)
            case frames.Refresh():
                self._refreshing.ask(frame, self._state)
            case frames.Secret():
                self._keeping.answered(frame)
            case frames.Login():
                self._logins.begin(frame)
            case frames.LoginCode():
                self._logins.code(frame)

    def _logged_in(self) -> None:
        if self._state.state != "ready":
            self._connections.discover()

    # ---- lists

    def _lists_changed(self) -> None:
        if self._identity is not None and self._state.state in ("starting", "ready"):
            self._say_ready()

    # ---- state (Owner)

    def state_changed(self, state: State) -> None:
        """Tell the supervisor."""
        self._state = state
        self._refreshing.state_changed(state)
        self._post(self._discreet.state(state))

    def _say_ready(self) -> None:
        identity = self._identity
        assert identity is not None
        self._connections.say(
            State(
                "ready",
                self._lists.trouble(identity.hop.era),
                era=identity.hop.era,
                revision=identity.hop.revision,
                server_info=identity.server_info,
                capabilities=identity.capabilities,
                instructions=identity.instructions,
                restarts=self._connections.restarts.total,
            )
        )

    def opened(self, connection: Connection, member: Member) -> None:
        """A connection is ready: the first of the upstream's own era shows who it is and what it lists."""
        if self._lists.adopt(connection):
            if connection.hop.era == self._connections.pool.era:
                self._identity = connection
            self._subscribing.opened(connection)
            self._refreshing.again(connection)
        elif self._identity is not None:
            self._say_ready()

    def lost(self, connection: Connection, member: Member | None, gone: Gone) -> None:
        """A connection has ended."""
        if connection.pipe is not None:
            self._bytes[0] += connection.pipe.bytes_in
            self._bytes[1] += connection.pipe.bytes_out
        self._lists.forget(connection)
        self._calls.asking.lost(connection)
        self._subscribing.lost(connection, deliberate=gone.deliberate)
        self._relay.strays.pop(connection.number, None)

    def recovered(self) -> None:
        """The upstream is as good as it was."""
        if self._identity is not None:
            self._say_ready()

    # ---- what comes from the upstream (Events)

    def notification(self, connection: Connection, method: str, params: bytes) -> None:
        """A notification of the upstream."""
        if method == "notifications/progress":
            self._calls.progress(connection, params)
        elif method == "notifications/message":
            self._log.message(params)
            self._messages.pass_on(connection, params)
        elif method in catalogue.CHANGED:
            self._list_changed(connection, catalogue.CHANGED[method], params)
        elif method == "notifications/resources/updated":
            self._subscribing.updated(connection, params)
        elif method == "notifications/subscriptions/acknowledged":
            self._subscribing.acknowledged(connection, params)
        elif method == "notifications/cancelled":
            self._calls.asking.upstream_cancelled(connection, params)
            self._subscribing.upstream_cancelled(connection, params)
        elif method == "notifications/elicitation/complete":
            self._calls.asking.completed(connection, params)

    def _list_changed(self, connection: Connection, kind: str, params: bytes) -> None:
        member = self._connections.pool.members.get(connection.number)
        if not connection.negotiated or member is None or not self._subscribing.heard(connection, params):
            return
        busy = self._connections.pool.working(self._loop.time())
        if self._lists.primary.get(connection.hop.era) is connection:
            self._lists.announced(connection, "", kind, busy=busy)
        elif member.key.session not in (SPARE, SHARED):
            self._lists.announced(connection, member.key.session, kind, busy=busy)

    def chatter(self, connection: Connection, line: bytes) -> None:
        """A line on stdout that is no message."""
        self._log.stdout(line)

    def paused(self, connection: Connection, id: int | str) -> None:
        """The upstream closed a call's event stream for a while."""
        self._calls.paused(connection, id)

    def stray(self, connection: Connection, id: bytes) -> None:
        """An answer to nothing that is open: late, or wrong."""
        never = self._relay.stray(connection.number, number_of(id))
        what = "an answer to a request that was never made" if never else "a late answer"
        self._log.fault(f"dropped {what}: id {id[:40].decode(errors='replace')}")

    def renewed(self, connection: Connection) -> None:
        """The upstream had forgotten the session: what it was told is told again, and its lists may be others."""
        self._subscribing.renewed(connection)
        if self._lists.primary.get(connection.hop.era) is connection:
            self._refreshing.again(connection)

    def gone(self, connection: Connection, gone: Gone) -> None:
        """A connection has ended."""
        self._connections.gone(connection, gone)

    # ---- figures and dumps

    def figures(self) -> Figures:
        """How things stand, for heartbeat and title."""
        if self._config is None:
            return Figures(state=self._state.state)
        pids = () if self._way is None else self._way.pids
        return figures.of(self._state.state, self._relay, self._connections, self._bytes, pids)

    def _dump(self, corr: int) -> None:
        if self._config is None:
            body = dump.empty()
        else:
            pids = [] if self._way is None else list(self._way.pids)
            body = dump.of(self._relay, self._connections, self._config.limits, pids, self._log, now=time.monotonic())
        self._post(frames.Dumped(corr), msgspec.json.encode(body))

    def pressure(self, on: bool) -> None:
        """The supervisor takes frames slower than they come: let the upstream wait too."""
        for connection in self._connections.open.values() if self._config is not None else ():
            (connection.hold if on else connection.let_go)("the supervisor is slow")

    # ---- the end

    def stop(self, drain: float, reason: str) -> None:
        """No new calls; open ones have ``drain`` seconds; then the upstream and the worker end."""
        if self._stopping is None:
            self._stopping = self._loop.create_task(self._stop(drain, reason))

    async def _stop(self, drain: float, reason: str) -> None:
        if self._config is not None:
            self._calls.closed_for = reason or "the worker ends"
            self._connections.say(State("stopping", reason, restarts=self._connections.restarts.total))
            await self._calls.drained(drain)
            self._calls.fail_all(errors.UPSTREAM_STOPPED, f"Upstream {self._name!r} was stopped: {reason}")
            await self._connections.stop(reason)
            if self._way is not None:
                await self._way.stop(reason)
            self._log.close()
        self.finished.set()


def _cancels(control: Any, held: Any) -> bool:
    return isinstance(control, frames.Cancel) and getattr(held, "corr", 0) == control.corr
