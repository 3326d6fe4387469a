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
from coffer_common.resources import Limits
from coffer_supervisor.channel import Channel, Peer
from coffer_supervisor.core import routing
from coffer_supervisor.core.calls import CallError, Principal, Scope, failure
from coffer_supervisor.pending import Calls, RefusedByWorker
from coffer_supervisor.scoping import Scoping
from coffer_supervisor.supervision import Supervision

_ANSWER_SECONDS: Final = 30.0
_log: Final = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Wish:
    """One subscription. ``server`` and ``uri``, the upstream's own, are empty until it is known what is meant.
    ``wanted``: nobody has taken it back, be it while the upstream is asked."""

    caller: frames.Caller
    subscriber: str
    exposed: str
    server: str = ""
    uri: str = ""
    wanted: bool = True


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
        self._asking: set[Wish] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def subscribe(
        self, caller: frames.Caller, principal: Principal, scope: Scope, subscriber: str, exposed_uri: str
    ) -> None:
        """Returns when the upstream has agreed. Raises CallError."""
        wish = Wish(caller, subscriber, exposed_uri)
        self._asking.add(wish)
        try:
            found = await self._found(caller, principal, scope, exposed_uri)
            wish.server, wish.uri = found.server, found.key
            await self._ask(wish)
        finally:
            self._asking.discard(wish)
        self._wishes[subscriber, exposed_uri] = wish

    async def _found(
        self, caller: frames.Caller, principal: Principal, scope: Scope, exposed_uri: str
    ) -> routing.Target:
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
        return found

    def unsubscribe(self, subscriber: str, exposed_uri: str | None) -> None:
        """One of the subscriber's, or all."""
        ended = self._take(lambda wish: wish.subscriber == subscriber and exposed_uri in (None, wish.exposed))
        # Where all end, the worker forgets the subscriber too: each listen stream is a new one.
        for server, uri in dict.fromkeys((w.server, "" if exposed_uri is None else w.uri) for w in ended):
            upstream = self._supervision.upstreams.get(server)
            if upstream is not None and upstream.peer is not None:
                self._channel.send(upstream.peer, frames.Unsubscribe(0, subscriber, uri))

    def drop(self, session: str) -> None:
        """A session has ended; its workers hear of it by CloseSession."""
        self._take(lambda wish: wish.subscriber == session == wish.caller.session)

    def _take(self, which: Callable[[Wish], bool]) -> list[Wish]:
        """Those wishes are no more, also where their upstream is still being asked."""
        ended = [wish for wish in (*self._wishes.values(), *self._asking) if which(wish)]
        for wish in ended:
            wish.wanted = False
        self._wishes = {key: wish for key, wish in self._wishes.items() if wish.wanted}
        return ended

    def _end(self, wish: Wish) -> None:
        """Its worker may serve a wish that is none any more: it is told, unless somebody has made the same one anew."""
        others = (*self._wishes.values(), *(self._asking - {wish}))
        what = (wish.subscriber, wish.server, wish.uri)
        if any(o.wanted and (o.subscriber, o.server, o.uri) == what for o in others):
            return
        upstream = self._supervision.upstreams.get(wish.server)
        if upstream is not None and upstream.peer is not None:
            self._channel.send(upstream.peer, frames.Unsubscribe(0, wish.subscriber, wish.uri))

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
            if wish.wanted:
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
        """Send it to the worker and wait for its word. Raises CallError, also for a wish that was taken back."""
        era, name = wish.caller.era, wish.server
        limits, peer = await self._worker(wish)
        corr, answer = self._calls.request(name)
        self._calls.touch(wish.caller.session, name)
        try:
            self._channel.send(peer, frames.Subscribe(corr, wish.caller, wish.subscriber, wish.uri))
            async with asyncio.timeout(limits.start_seconds + _ANSWER_SECONDS):
                await answer
        except TimeoutError:
            self._end(wish)
            text = f"server '{name}' did not answer the subscription in time"
            raise CallError(failure(errors.IDLE_LIMIT, text, era, server=name)) from None
        except asyncio.CancelledError:
            self._end(wish)
            raise
        except RefusedByWorker as error:
            if error.failure is not None:
                raise CallError(error.failure) from None
            raise CallError(failure(errors.WORKER_LOST, f"server '{name}': {error}", era, server=name)) from None
        finally:
            self._calls.requests.pop(corr, None)
        if not wish.wanted:
            # The word of its end may have overtaken it on its way to the worker.
            self._end(wish)
            raise _taken_back(wish)

    async def _worker(self, wish: Wish) -> tuple[Limits, Peer]:
        """The worker that serves it, once there is one. Raises CallError."""
        loop, era, name = asyncio.get_running_loop(), wish.caller.era, wish.server
        upstream = self._supervision.upstreams.get(name)
        if upstream is None:
            raise CallError(failure(errors.UNKNOWN_SERVER, f"server '{name}' was removed", era, server=name))
        limits = upstream.config.limits
        await self._supervision.pulse.until(lambda: upstream.gate().way != "hold", loop.time() + limits.start_seconds)
        gate = upstream.gate()
        if gate.way != "open" or upstream.peer is None:
            reason = gate.reason if gate.way == "refuse" else errors.START_LIMIT
            text = gate.message or f"server '{name}' was not ready within its start limit"
            raise CallError(failure(reason, text, era, server=name))
        if not wish.wanted:
            raise _taken_back(wish)
        return limits, upstream.peer


def _taken_back(wish: Wish) -> CallError:
    text = "the subscription was ended before it was made"
    return CallError(failure(errors.CANCELLED, text, wish.caller.era, server=wish.server))
