"""One ``subscriptions/listen`` of a modern client, the same over HTTP and over the shim's socket.

Owns its acknowledgement, its registration with the notices, and its subscriptions. Never touches a socket: messages
go to the ``deliver`` it was given.
Source: MCP 2026-07-28, Subscriptions.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from coffer_common import errors, jsonrpc, protocol
from coffer_supervisor.core.calls import CallError, Failure, failure
from coffer_supervisor.core.subscriptions import KINDS, Filter
from coffer_supervisor.endpoint.methods import Client
from coffer_supervisor.endpoint.notices import Hearer, Notices

if TYPE_CHECKING:
    from coffer_supervisor.router import Router

ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"


class _Listen(msgspec.Struct):
    notifications: Filter


_decode: Final = msgspec.json.Decoder(_Listen).decode


def wanted(params: bytes) -> Filter | Failure:
    """What a listen request opts in to."""
    try:
        return jsonrpc.read(params or b"{}", _decode).notifications
    except msgspec.DecodeError as error:
        return failure(errors.INVALID_PARAMS, f"subscriptions/listen: {error}", "modern")


class Listen:
    """One listen stream. ``name`` is unique in the daemon's life; ``raw_id`` is the client's own request id."""

    def __init__(self, name: str, raw_id: bytes, client: Client, deliver: Callable[[bytes], object]) -> None:
        self.raw_id = raw_id
        self._name, self._client, self._deliver = name, client, deliver
        self._acknowledged = False
        self._closed = False

    @property
    def result(self) -> bytes:
        """The result that ends it gracefully."""
        meta = {protocol.META_SUBSCRIPTION_ID: msgspec.Raw(self.raw_id)}
        return msgspec.json.encode({"resultType": "complete", "_meta": meta})

    async def open(self, router: "Router", notices: Notices, wanted: Filter) -> None:
        """Subscribes to what can be had, acknowledges that much, and listens. What happens meanwhile is kept."""
        hearer = Hearer(
            id=self._name,
            principal=self._client.principal,
            scope=self._client.scope,
            deliver=self._deliver,
            ready=lambda: self._acknowledged,
            kinds=wanted.kinds,
            stamp=self.raw_id,
            uris=set(wanted.wanted_uris),
            session=self._client.caller.session,
        )
        notices.add(hearer)
        got = await asyncio.gather(*(self._subscribe(router, uri) for uri in wanted.wanted_uris))
        honoured = wanted.possible(KINDS, [uri for uri in got if uri is not None])
        hearer.uris = set(honoured.resource_subscriptions)
        self._acknowledge(honoured)
        notices.released(self._name)

    def close(self, router: "Router", notices: Notices) -> None:
        """The stream is over, from either side."""
        if self._closed:
            return
        self._closed = True
        hearer = notices.remove(self._name)
        if hearer is not None and hearer.uris:
            router.unsubscribe(self._name, None)

    async def _subscribe(self, router: "Router", uri: str) -> str | None:
        client = self._client
        try:
            await router.subscribe(client.caller, client.principal, client.scope, self._name, uri)
        except CallError:  # refused ones stay out of the acknowledgement
            return None
        return uri

    def _acknowledge(self, honoured: Filter) -> None:
        meta = {protocol.META_SUBSCRIPTION_ID: msgspec.Raw(self.raw_id)}
        body = msgspec.json.encode({"_meta": meta, "notifications": honoured})
        self._deliver(jsonrpc.notification(ACKNOWLEDGED, body))
        self._acknowledged = True
