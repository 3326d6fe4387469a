"""Resource subscriptions on their way to the workers: one table behind both eras' faces.

Owns which subscriber wants which resource of which upstream, and making the wishes again for a new worker. Never
knows what a subscriber is: a session, or one modern listen stream.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from coffer_common import errors, frames
from coffer_supervisor.channel import Channel
from coffer_supervisor.core import routing
from coffer_supervisor.core.calls import CallError, Principal, Scope, failure
from coffer_supervisor.pending import Calls, RefusedByWorker
from coffer_supervisor.scoping import Scoping
from coffer_supervisor.supervision import Supervision

_ANSWER_SECONDS: Final = 30.0
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wish:
    """One subscription. ``uri`` is the upstream's own."""

    caller: frames.Caller
    subscriber: str
    exposed: str
    server: str
    uri: str


class Subscriptions:
    """Part of the router. ``updated(server, subscriber, uri)``: the resource may have changed unseen."""

    def __init__(
        self,
        calls: Calls,
        channel: Channel,
        supervision: Supervision,
        scoping: Scoping,
        updated: Callable[[str, str, str], None],
    ) -> None:
        self._calls, self._channel, self._supervision, self._scoping = calls, channel, supervision, scoping
        self._updated = updated
        self._wishes: dict[tuple[str, str], Wish] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def subscribe(
        self, caller: frames.Caller, principal: Principal, scope: Scope, subscriber: str, exposed_uri: str
    ) -> None:
        """Returns when the upstream has agreed. Raises CallError."""
        where = routing.Where(scope, self._scoping.narrowing(principal, scope), caller.era, caller.session)
        servers = self._supervision.catalogues.servers
        found = routing.resolve_name(servers, where, "resource", exposed_uri)
        if isinstance(found, routing.Awaited):
            await self._first_catalogues(found)
            found = routing.resolve_name(servers, where, "resource", exposed_uri)
        if isinstance(found, routing.Awaited):
            found = found.otherwise
        if isinstance(found, routing.Refusal):
            raise CallError(failure(found.reason, found.message, caller.era, server=found.server, data=found.data))
        wish = Wish(caller, subscriber, exposed_uri, found.server, found.key)
        await self._ask(wish)
        self._wishes[subscriber, exposed_uri] = wish

    def unsubscribe(self, subscriber: str, exposed_uri: str | None) -> None:
        """One of the subscriber's, or all."""
        keys = [k for k in self._wishes if k[0] == subscriber and exposed_uri in (None, k[1])]
        ended = [self._wishes.pop(key) for key in keys]
        # Where all end, the worker forgets the subscriber too: each listen stream is a new one.
        for server, uri in dict.fromkeys((w.server, "" if exposed_uri is None else w.uri) for w in ended):
            upstream = self._supervision.upstreams.get(server)
            if upstream is not None and upstream.peer is not None:
                self._channel.send(upstream.peer, frames.Unsubscribe(0, subscriber, uri))

    def drop(self, session: str) -> None:
        """A session has ended; its workers hear of it by CloseSession."""
        for key in [k for k, wish in self._wishes.items() if wish.caller.session == session]:
            if key[0] == session:
                del self._wishes[key]

    def renew(self, name: str) -> None:
        """A worker's upstream is ready (again): make the wishes that an earlier one knew."""
        for wish in [wish for wish in self._wishes.values() if wish.server == name]:
            task = asyncio.get_running_loop().create_task(self._renew(wish), name=f"subscribe again at {name}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _renew(self, wish: Wish) -> None:
        try:
            await self._ask(wish)
        except CallError as error:
            _log.info("a subscription at '%s' could not be made again: %s", wish.server, error)
            return
        self._updated(wish.server, wish.subscriber, wish.uri)

    async def _first_catalogues(self, awaited: routing.Awaited) -> None:
        supervision = self._supervision

        def known() -> bool:
            for name in awaited.servers:
                upstream, server = supervision.upstreams.get(name), supervision.catalogues.servers.get(name)
                if upstream is None or server is None or server.bases:
                    continue
                if upstream.gate().way != "refuse":
                    return False
            return True

        limits = [u.config.limits.start_seconds for n in awaited.servers if (u := supervision.upstreams.get(n))]
        await supervision.pulse.until(known, asyncio.get_running_loop().time() + max(limits, default=0.0))

    async def _ask(self, wish: Wish) -> None:
        """Send it to the worker and wait for its word."""
        loop, era, name = asyncio.get_running_loop(), wish.caller.era, wish.server
        upstream = self._supervision.upstreams.get(name)
        if upstream is None:
            raise CallError(failure(errors.UNKNOWN_SERVER, f"server '{name}' was removed", era, server=name))
        deadline = loop.time() + upstream.config.limits.start_seconds
        await self._supervision.pulse.until(lambda: upstream.gate().way != "hold", deadline)
        gate = upstream.gate()
        if gate.way != "open" or upstream.peer is None:
            reason = gate.reason if gate.way == "refuse" else errors.START_LIMIT
            text = gate.message or f"server '{name}' was not ready within its start limit"
            raise CallError(failure(reason, text, era, server=name))
        corr, answer = self._calls.request(name)
        self._calls.touch(wish.caller.session, name)
        try:
            self._channel.send(upstream.peer, frames.Subscribe(corr, wish.caller, wish.subscriber, wish.uri))
            async with asyncio.timeout(upstream.config.limits.start_seconds + _ANSWER_SECONDS):
                await answer
        except TimeoutError:
            text = f"server '{name}' did not answer the subscription in time"
            raise CallError(failure(errors.IDLE_LIMIT, text, era, server=name)) from None
        except RefusedByWorker as error:
            if error.failure is not None:
                raise CallError(error.failure) from None
            raise CallError(failure(errors.WORKER_LOST, f"server '{name}': {error}", era, server=name)) from None
        finally:
            self._calls.requests.pop(corr, None)
