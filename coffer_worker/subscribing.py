"""Resource subscriptions carried upstream: ``resources/subscribe`` where it is legacy, else one listen stream.

Owns the effects of ``core.subscriptions``. Never names a URI for a client: frames carry the upstream's own.
Source: MCP, Resources, Subscriptions; MCP 2026-07-28, Subscriptions (``subscriptions/listen``).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from coffer_common import errors, frames
from coffer_common.jsonrpc import Envelope
from coffer_worker import agreed
from coffer_worker.connections import Connections
from coffer_worker.core import asks, splice
from coffer_worker.core.pool import Member
from coffer_worker.core.relay import Refusal
from coffer_worker.core.subscriptions import Subscriptions
from coffer_worker.log import UpstreamLog
from coffer_worker.outlet import Outlet
from coffer_worker.upstream.connection import Connection, Problem, Unanswered, UpstreamError, number_of
from coffer_worker.waiting import Waiter

_ANSWER_SECONDS: Final = 30.0
# An upstream that is about to exit ends its streams first; one that ends them for ever is not asked for ever faster.
_RELISTEN_SECONDS: Final = 1.0
_RELISTEN_CAP_SECONDS: Final = 60.0

_Refused = Refusal | UpstreamError | None


@dataclass(slots=True, eq=False)
class _Listen:
    """One listen stream. ``acked``: the URIs that the upstream agreed to, once it did."""

    id: int
    uris: tuple[str, ...]
    acked: "asyncio.Future[tuple[str, ...]]"


@dataclass(slots=True, eq=False)
class _Asked:
    """A wish on its way to the upstream. ``corr``: what is to be answered; 0 where it is made again after a loss."""

    caller: frames.Caller
    subscriber: str
    uri: str
    corr: int = 0
    waiter: Waiter = field(init=False)
    ended: bool = False


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
        self._asked: set[_Asked] = set()
        self._beginning: dict[tuple[int, str], asyncio.Future[_Refused]] = {}
        """Connection and URI -> what the upstream will have said to it, for all who wish for it meanwhile."""

    # ---- frames

    def subscribe(self, frame: frames.Subscribe) -> None:
        """A Subscribe frame; answered by Reply or Fail."""
        self._callers[frame.subscriber] = frame.caller
        self._want(_Asked(frame.caller, frame.subscriber, frame.uri, frame.corr))

    def _want(self, asked: _Asked) -> None:
        def ready(connection: Connection, member: Member) -> None:
            self._connections.spawn(self._subscribe(asked, connection, member))

        self._asked.add(asked)
        asked.waiter = Waiter(asked.caller, ready, lambda refusal: self._answer(asked, refusal))
        self._connections.want(asked.waiter)

    async def _subscribe(self, asked: _Asked, connection: Connection, member: Member) -> None:
        if asked.ended:
            return
        first = self._table.add(connection.number, asked.subscriber, asked.uri)
        member.subscriptions = self._table.count(connection.number)
        refused = await self._agreement(connection, asked.uri, first=first)
        member.subscriptions = self._table.count(connection.number)
        self._answer(asked, refused)

    async def _agreement(self, connection: Connection, uri: str, *, first: bool) -> _Refused:
        """What the upstream says to ``uri``: it is asked by the first who wants it, for all who come meanwhile."""
        key = connection.number, uri
        if not first:
            begun = self._beginning.get(key)
            return await asyncio.shield(begun) if begun is not None else None
        answer = self._beginning[key] = self._loop.create_future()
        said: _Refused = Refusal(errors.INTERNAL, f"Coffer itself failed in subscribing to {uri!r}")
        try:
            said = await self._begin(connection, uri)
        except Exception as error:
            self._loop.call_exception_handler({"message": "a subscription failed", "exception": error})
        finally:
            answer.set_result(said)
            if self._beginning.get(key) is answer:
                del self._beginning[key]
                if said is not None:
                    self._table.give_up(*key)
        return said

    def _answer(self, asked: _Asked, refused: _Refused) -> None:
        """The one outcome of a wish, unless it was taken back."""
        if asked.ended:
            return
        asked.ended = True
        self._asked.discard(asked)
        if refused is not None:
            self._forget_caller(asked.subscriber)
        if not asked.corr:
            self._made_again(asked, refused)
        elif refused is None:
            self._outlet.send(frames.Reply(asked.corr), b"{}")
        elif isinstance(refused, Refusal):
            era, reason = asked.caller.era, refused.reason
            error = errors.error_object(reason, refused.message, server=self._server, era=era)
            failure = frames.Fail(asked.corr, reason.code_for(era), refused.message, reason.name, reason.status)
            self._outlet.send(failure, error)
        else:
            self._outlet.send(frames.Fail(asked.corr, refused.code, refused.message), refused.raw)

    def _made_again(self, asked: _Asked, refused: _Refused) -> None:
        if refused is None:
            self._tell((asked.subscriber,), asked.uri, msgspec.json.encode({"uri": asked.uri}))
        else:
            self._log.note(f"the subscription of {asked.uri!r} is lost: {refused.message}")

    def _forget_caller(self, subscriber: str) -> None:
        """Unless anything of that subscriber's is left."""
        if not self._table.knows(subscriber) and all(asked.subscriber != subscriber for asked in self._asked):
            self._callers.pop(subscriber, None)

    def unsubscribe(self, frame: frames.Unsubscribe) -> None:
        """An Unsubscribe frame; answered by Reply where it has a number."""
        for asked in [a for a in self._asked if a.subscriber == frame.subscriber and frame.uri in ("", a.uri)]:
            asked.waiter.withdrawn = True
            self._answer(asked, Refusal(errors.CANCELLED, "the subscription was ended before it was made"))
        for dropped in self._table.remove(frame.subscriber, frame.uri):
            if (member := self._connections.pool.members.get(dropped.conn)) is not None:
                member.subscriptions = self._table.count(dropped.conn)
                member.last_used = self._loop.time()
            if (connection := self._connections.open.get(dropped.conn)) is not None:
                begun = self._beginning.pop((dropped.conn, dropped.uri), None)
                self._connections.spawn(self._stop(connection, dropped.uri, begun))
        self._forget_caller(frame.subscriber)
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
        if not agreed.supports(connection.capabilities, "subscribe"):
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

    async def _stop(self, connection: Connection, uri: str, begun: "asyncio.Future[_Refused] | None") -> None:
        if begun is not None:
            await asyncio.wait([begun])  # over HTTP the end would overtake the beginning
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
        if connection.hop.era == "modern" and agreed.supports(connection.capabilities, "listChanged"):
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
        under_way = {(asked.subscriber, asked.uri): asked for asked in self._asked}
        for subscriber, uri in self._table.forget(connection.number):
            caller, asked = self._callers.get(subscriber), under_way.get((subscriber, uri))
            if caller is None or deliberate or (asked is not None and asked.corr):
                continue  # whoever asks for the first time is answered that it failed
            if asked is not None:
                asked.ended = True
                self._asked.discard(asked)
            self._want(_Asked(caller, subscriber, uri))

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
            if agreed.declared(connection.capabilities, kind, "listChanged")
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
        if listen is None or listen.acked.done() or agreed.stream_of(params) not in (None, listen.id):
            return
        try:
            kept = splice.members(splice.members(params).get("notifications", b"{}"))
            uris = splice.items(kept.get("resourceSubscriptions", b"[]"))
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
        id = agreed.stream_of(params) if streams is not None else None
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
