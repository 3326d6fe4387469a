"""Resource subscriptions carried upstream: ``resources/subscribe`` where it is legacy, else one listen stream.

Owns the effects of ``core.subscriptions``. Never names a URI for a client: frames carry the upstream's own.
Source: MCP, Resources, Subscriptions; MCP 2026-07-28, Subscriptions (``subscriptions/listen``).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from coffer_common import errors, frames, protocol
from coffer_common.jsonrpc import Envelope
from coffer_worker.calls import Outlet
from coffer_worker.connections import Connections
from coffer_worker.core import asks, splice
from coffer_worker.core.pool import Member
from coffer_worker.core.relay import Refusal
from coffer_worker.core.subscriptions import Subscriptions
from coffer_worker.log import UpstreamLog
from coffer_worker.upstream.connection import Connection, Problem, Unanswered, UpstreamError, number_of
from coffer_worker.waiting import Waiter

_ANSWER_SECONDS: Final = 30.0
# An upstream that is about to exit ends its streams first; one that ends them for ever is not asked for ever faster.
_RELISTEN_SECONDS: Final = 1.0
_RELISTEN_CAP_SECONDS: Final = 60.0


@dataclass(slots=True, eq=False)
class _Listen:
    """One listen stream. ``acked``: the URIs that the upstream agreed to, once it did."""

    id: int
    uris: tuple[str, ...]
    acked: "asyncio.Future[tuple[str, ...]]"


@dataclass(slots=True)
class _Streams:
    """The listen streams of one modern connection: ``current`` is heard, ``coming`` waits for its ack."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    current: _Listen | None = None
    coming: _Listen | None = None


class Subscribing:
    """The subscriptions of one upstream."""

    def __init__(
        self, server: str, connections: Connections, outlet: Outlet, log: UpstreamLog, new_id: Callable[[], int]
    ) -> None:
        self._server = server
        self._connections = connections
        self._outlet = outlet
        self._log = log
        self._new_id = new_id
        self._loop = asyncio.get_running_loop()
        self.missed: Callable[[Connection], None] = lambda connection: None
        """Told when a connection may have missed changes of its lists; set by who reads them."""
        self._table = Subscriptions()
        self._streams: dict[int, _Streams] = {}
        self._callers: dict[str, frames.Caller] = {}

    # ---- frames

    def subscribe(self, frame: frames.Subscribe) -> None:
        """A Subscribe frame; answered by Reply or Fail."""

        def ready(connection: Connection, member: Member) -> None:
            self._connections.spawn(self._subscribe(frame, connection, member))

        self._callers[frame.subscriber] = frame.caller
        self._connections.want(Waiter(frame.caller, ready, lambda refusal: self._refuse(frame, refusal)))

    async def _subscribe(self, frame: frames.Subscribe, connection: Connection, member: Member) -> None:
        first = self._table.add(connection.number, frame.subscriber, frame.uri)
        member.subscriptions = self._table.count(connection.number)
        refusal = await self._begin(connection, frame.uri) if first else None
        if refusal is not None:
            self._table.remove(frame.subscriber, frame.uri)
            member.subscriptions = self._table.count(connection.number)
            if isinstance(refusal, Refusal):
                self._refuse(frame, refusal)
            else:
                self._outlet.send(frames.Fail(frame.corr, refusal.code, refusal.message), refusal.raw)
            return
        self._outlet.send(frames.Reply(frame.corr), b"{}")

    def _refuse(self, frame: frames.Subscribe, refusal: Refusal) -> None:
        era, reason = frame.caller.era, refusal.reason
        error = errors.error_object(reason, refusal.message, server=self._server, era=era)
        failure = frames.Fail(frame.corr, reason.code_for(era), refusal.message, reason.name, reason.status)
        self._outlet.send(failure, error)

    def unsubscribe(self, frame: frames.Unsubscribe) -> None:
        """An Unsubscribe frame; answered by Reply where it has a number."""
        if not frame.uri:
            self._callers.pop(frame.subscriber, None)
        for dropped in self._table.remove(frame.subscriber, frame.uri):
            if (member := self._connections.pool.members.get(dropped.conn)) is not None:
                member.subscriptions = self._table.count(dropped.conn)
                member.last_used = self._loop.time()
            if (connection := self._connections.open.get(dropped.conn)) is not None:
                self._connections.spawn(self._stop(connection, dropped.uri))
        self._connections.released()
        if frame.corr:
            self._outlet.send(frames.Reply(frame.corr), b"{}")

    def close_session(self, session: str) -> None:
        """A session has ended: nobody listens for it any more."""
        for subscriber in [who for who, caller in self._callers.items() if caller.session == session]:
            self.unsubscribe(frames.Unsubscribe(0, subscriber))

    # ---- upstream

    async def _begin(self, connection: Connection, uri: str) -> Refusal | UpstreamError | None:
        """Tell the upstream that ``uri`` is wanted; None where it agreed."""
        if not _supports(connection, "subscribe"):
            text = f"Upstream {self._server!r} does not offer subscriptions to its resources"
            return Refusal(errors.SUBSCRIBE_UNSUPPORTED, text)
        try:
            if connection.hop.era == "modern":
                if uri not in await self._listen(connection):
                    text = f"Upstream {self._server!r} did not agree to report changes of {uri!r}"
                    return Refusal(errors.SUBSCRIBE_UNSUPPORTED, text)
                return None
            params = connection.hop.params(uri=msgspec.json.encode(uri))
            await connection.ask("resources/subscribe", params, _ANSWER_SECONDS)
        except UpstreamError as error:
            return error
        except Unanswered as error:
            return Refusal(error.problem.reason, error.problem.message)
        except TimeoutError:
            return Refusal(errors.IDLE_LIMIT, f"Upstream {self._server!r} did not answer the subscription in time")
        return None

    async def _stop(self, connection: Connection, uri: str) -> None:
        try:
            if connection.hop.era == "modern":
                await self._listen(connection)
            elif uri not in self._table.uris(connection.number):
                params = connection.hop.params(uri=msgspec.json.encode(uri))
                await connection.ask("resources/unsubscribe", params, _ANSWER_SECONDS)
        except (UpstreamError, Unanswered, TimeoutError) as error:
            self._log.note(f"ending the subscription to {uri!r}: {error}")

    # ---- a connection's life

    def opened(self, connection: Connection) -> None:
        """A modern connection hears of changes only over a listen stream: open one for the lists at least."""
        if connection.hop.era == "modern" and _supports(connection, "listChanged"):
            self._connections.spawn(self._keep_trying_to_listen(connection, 0.0))

    async def _keep_trying_to_listen(self, connection: Connection, delay: float) -> None:
        """Until there is a stream, or there never will be one."""
        await asyncio.sleep(delay)
        while connection.gone is None and not await self._listens(connection):
            delay = min(max(delay, _RELISTEN_SECONDS) * 2, _RELISTEN_CAP_SECONDS)
            await asyncio.sleep(delay)

    async def _listens(self, connection: Connection) -> bool:
        """Whether there is no more to be done: it listens, or was refused for good."""
        try:
            await self._listen(connection)
        except (UpstreamError, Unanswered, TimeoutError) as error:
            if connection.gone is not None and connection.gone.deliberate:
                return True  # it was we who ended it: nothing to explain
            self._log.note(
                f"subscriptions/listen: {error}; changes of its lists are seen only when they are read again"
            )
            return isinstance(error, UpstreamError)
        return True

    def lost(self, connection: Connection, *, deliberate: bool) -> None:
        """Subscriptions of a lost connection are made again on the next one; then each URI is reported once."""
        streams = self._streams.pop(connection.number, None)
        for listen in (streams.current, streams.coming) if streams is not None else ():
            if listen is not None and not listen.acked.done():
                listen.acked.cancel()
        for subscriber, uri in self._table.forget(connection.number):
            caller = self._callers.get(subscriber)
            if caller is not None and not deliberate:
                self._resubscribe(caller, subscriber, uri)

    def renewed(self, connection: Connection) -> None:
        """Its session was lost and made anew: each URI is subscribed again, and then reported once."""
        for uri in self._table.uris(connection.number):
            self._connections.spawn(self._renew(connection, uri))

    async def _renew(self, connection: Connection, uri: str) -> None:
        concerned = self._table.concerned(connection.number, uri)
        if (failed := await self._begin(connection, uri)) is not None:
            for subscriber in concerned:
                self._table.remove(subscriber, uri)
            self._log.note(f"the subscription of {uri!r} is lost: {failed}")
            return
        self._tell(concerned, uri, msgspec.json.encode({"uri": uri}))

    def _resubscribe(self, caller: frames.Caller, subscriber: str, uri: str) -> None:
        def ready(connection: Connection, member: Member) -> None:
            self._connections.spawn(self._again(connection, member, subscriber, uri))

        def refuse(refusal: Refusal) -> None:
            self._log.note(f"the subscription of {uri!r} is lost: {refusal.message}")

        self._connections.want(Waiter(caller, ready, refuse))

    async def _again(self, connection: Connection, member: Member, subscriber: str, uri: str) -> None:
        if subscriber not in self._callers:
            return
        first = self._table.add(connection.number, subscriber, uri)
        member.subscriptions = self._table.count(connection.number)
        if first and (failed := await self._begin(connection, uri)) is not None:
            self._table.remove(subscriber, uri)
            self._log.note(f"the subscription of {uri!r} is lost: {failed}")
            return
        self._tell((subscriber,), uri, msgspec.json.encode({"uri": uri}))

    # ---- the listen stream

    async def _listen(self, connection: Connection) -> tuple[str, ...]:
        """Have one stream with what is wanted now: the new one is acknowledged before the old one ends."""
        streams = self._streams.setdefault(connection.number, _Streams())
        async with streams.lock:
            uris = self._table.uris(connection.number)
            current = streams.current
            if current is not None and current.acked.done() and set(current.uris) == set(uris):
                return current.acked.result()
            listen = streams.coming = self._open_listen(connection, uris)
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    acked = await asyncio.shield(listen.acked)
            except BaseException:
                connection.cancel(listen.id, "not acknowledged")
                raise
            finally:
                streams.coming = None
            streams.current = listen
            if current is not None:
                connection.cancel(current.id, "replaced by a stream with another filter")
            return acked

    def _open_listen(self, connection: Connection, uris: tuple[str, ...]) -> _Listen:
        wanted: dict[str, Any] = {
            f"{kind}ListChanged": True
            for kind in ("tools", "prompts", "resources")
            if _declared(connection, kind, "listChanged")
        }
        if uris:
            wanted["resourceSubscriptions"] = list(uris)
        listen = _Listen(self._new_id(), uris, self._loop.create_future())
        params = connection.hop.params(notifications=msgspec.json.encode(wanted))
        connection.request(listen.id, "subscriptions/listen", params, self._listen_ended, (connection, listen))
        return listen

    def _listen_ended(self, context: tuple[Connection, _Listen], answer: Envelope | Problem) -> None:
        """The stream's result or error: refused, or ended by the upstream; then it is opened again."""
        connection, listen = context
        if not listen.acked.done():
            if isinstance(answer, Problem):
                listen.acked.set_exception(Unanswered(answer))
            else:
                raw = bytes(answer.error) or b'{"code":0,"message":"the stream ended before it was acknowledged"}'
                listen.acked.set_exception(UpstreamError(raw))
            return
        streams = self._streams.get(connection.number)
        if streams is not None and streams.current is listen:
            streams.current = None
            if connection.gone is None:
                self._connections.spawn(self._listen_again(connection))

    async def _listen_again(self, connection: Connection) -> None:
        """Changes meanwhile were not heard: the lists are read, and each subscribed URI is reported once."""
        await self._keep_trying_to_listen(connection, _RELISTEN_SECONDS)
        if connection.gone is not None:
            return
        self.missed(connection)
        for uri in self._table.uris(connection.number):
            self._tell(self._table.concerned(connection.number, uri), uri, msgspec.json.encode({"uri": uri}))

    def acknowledged(self, connection: Connection, params: bytes) -> None:
        """``notifications/subscriptions/acknowledged``: which part of the filter the upstream agreed to."""
        streams = self._streams.get(connection.number)
        listen = streams.coming if streams is not None else None
        if listen is None or listen.acked.done() or _subscription(params) not in (None, listen.id):
            return
        try:
            agreed = splice.members(splice.members(params).get("notifications", b"{}"))
            uris = splice.items(agreed.get("resourceSubscriptions", b"[]"))
        except ValueError:
            uris = []
        listen.acked.set_result(tuple(text for text in map(splice.text, uris) if text is not None))

    def upstream_cancelled(self, connection: Connection, params: bytes) -> None:
        """``notifications/cancelled`` of a modern upstream names a stream that it ends, with or without the result that
        the protocol also has for that. Source: MCP 2026-07-28, Subscriptions; Cancellation."""
        streams = self._streams.get(connection.number)
        id = number_of(asks.cancelled_request(params)) if streams is not None else None
        for listen in (streams.current, streams.coming) if streams is not None else ():
            if listen is not None and listen.id == id:
                connection.forget(listen.id)
                ended = Problem(errors.BAD_ANSWER, f"Upstream {self._server!r} ended the stream")
                self._listen_ended((connection, listen), ended)

    def heard(self, connection: Connection, params: bytes) -> bool:
        """Whether a notification counts: of two overlapping streams only one is heard."""
        streams = self._streams.get(connection.number)
        id = _subscription(params) if streams is not None else None
        return id is None or streams is None or streams.current is None or streams.current.id == id

    def updated(self, connection: Connection, params: bytes) -> None:
        """``notifications/resources/updated``."""
        try:
            uri = splice.text(splice.members(params).get("uri"))
        except ValueError:
            return
        if uri is not None and self.heard(connection, params):
            self._tell(self._table.concerned(connection.number, uri), uri, params)
            connection.passed_on()

    def _tell(self, subscribers: tuple[str, ...], uri: str, params: bytes) -> None:
        if subscribers:
            frame = frames.Notify("notifications/resources/updated", subscribers=subscribers, uri=uri)
            self._outlet.send(frame, params)


def _subscription(params: bytes) -> int | None:
    """The id of the listen stream that a notification came on."""
    if protocol.META_SUBSCRIPTION_ID.encode() not in params:
        return None
    try:
        raw = bytes(splice.members(splice.members(params)["_meta"])[protocol.META_SUBSCRIPTION_ID])
    except (ValueError, KeyError):
        return None
    digits = raw.strip(b'"')
    return int(digits) if digits.isdigit() and len(digits) < 19 else -1


def _declared(connection: Connection, kind: str, what: str) -> bool:
    try:
        found = splice.members(connection.capabilities).get(kind)
        return splice.is_object(found) and bytes(splice.members(found or b"{}").get(what, b"")) == b"true"
    except ValueError:
        return False


def _supports(connection: Connection, what: str) -> bool:
    if what == "listChanged":
        return any(_declared(connection, kind, what) for kind in ("tools", "prompts", "resources"))
    return _declared(connection, "resources", what)
