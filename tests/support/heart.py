"""The supervisor's heart in the test's own process: store, channel, fork server, supervision, router; no endpoint.

Real workers, real upstreams. `Ear` hears what the endpoint would hear, `Sink` takes one call's answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coffer_common import frames
from coffer_common.paths import Home
from coffer_supervisor import app
from coffer_supervisor.core.calls import CallRequest, Failure, Principal, Scope
from coffer_supervisor.upstream import UpstreamView
from tests.support.daemon import make_home
from tests.support.upstreams import Upstream
from tests.support.wait import wait_for

LOCAL = Principal("local", "local")
AGGREGATE = Scope("/mcp")


@dataclass
class Sink:
    """One call's answer: ("reply", result) or ("fail", error object), and what came before it."""

    done: asyncio.Future[tuple[str, Any]]
    progressed: list[Any] = field(default_factory=list)
    notified: list[tuple[str, Any]] = field(default_factory=list)
    failure: Failure | None = None

    def progress(self, params: bytes) -> None:
        self.progressed.append(json.loads(params))

    def notify(self, method: str, params: bytes) -> None:
        self.notified.append((method, json.loads(params)))

    def ask(self, ask: int, method: str, params: bytes) -> None:
        raise AssertionError(f"no client was asked: {method}")

    def pause(self) -> None: ...

    def withdraw(self, ask: int, reason: str) -> None:
        raise AssertionError("nothing was asked")

    def release(self, ask: int) -> None:
        raise AssertionError("nothing was asked")

    adopt = release

    def reply(self, result: bytes | memoryview) -> None:
        self.done.set_result(("reply", json.loads(bytes(result))))

    def fail(self, failure: Failure) -> None:
        self.failure = failure
        self.done.set_result(("fail", json.loads(failure.error)))


@dataclass
class Ear:
    """What the endpoint would tell clients."""

    lists: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    updated: list[tuple[str, tuple[str, ...], str]] = field(default_factory=list)
    notices: list[tuple[str, tuple[str, ...], str]] = field(default_factory=list)

    def lists_changed(self, server: str, kinds: frozenset[str], session: str = "") -> None:
        self.lists.append((server, kinds))

    def resource_updated(self, server: str, subscribers: tuple[str, ...], uri: str) -> None:
        self.updated.append((server, subscribers, uri))

    def session_notice(self, server: str, sessions: tuple[str, ...], method: str, params: bytes) -> None:
        self.notices.append((server, sessions, method))

    def session_ask(self, session: str, ask: int, method: str, params: bytes) -> bool:
        return False

    def session_withdraw(self, session: str, ask: int) -> None:
        pass


class Beating:
    """A started heart."""

    def __init__(self, heart: app.Heart, ear: Ear) -> None:
        self.heart, self.ear = heart, ear
        self.router, self.supervision, self.store = heart.router, heart.supervision, heart.store
        self._ids = itertools.count(1)

    # ---- servers

    async def add(self, name: str, upstream: Upstream, *, wait: bool = True, **more: Any) -> UpstreamView:
        """Register a server; with ``wait`` until its start has an outcome."""
        config = upstream.config(path=os.environ["PATH"], **more)
        await self.store.resources.create("mcp_server", name, config, actor="cli")
        await self.supervision.apply(name)
        return await self.settled(name) if wait else self.view(name)

    async def settled(self, name: str, bound: float = 30.0) -> UpstreamView:
        """Wait until the start of a server has an outcome."""
        deadline = asyncio.get_running_loop().time() + bound
        view = await self.supervision.wait_discovered(name, deadline)
        assert view is not None
        return view

    async def reach(self, name: str, state: str, bound: float = 30.0) -> UpstreamView:
        """Wait for a state."""
        await wait_for(lambda: self.view(name).state == state, bound, lambda: f"{state}: {self.view(name)}")
        return self.view(name)

    def view(self, name: str) -> UpstreamView:
        """A server as an operator sees it."""
        view = self.supervision.view(name)
        assert view is not None
        return view

    # ---- clients

    def caller(self, session: str = "s1", *, modern: bool = False, scope: Scope = AGGREGATE) -> frames.Caller:
        """Who calls over the shim, without capabilities."""
        revision = "2026-07-28" if modern else "2025-11-25"
        info = b'{"name":"test","version":"1"}'
        return frames.Caller(session, "local", scope.path, scope.naming, revision, "shim", b"{}", info)

    def start(
        self, method: str, params: dict[str, Any], *, scope: Scope = AGGREGATE, who: Principal = LOCAL, **caller: Any
    ) -> tuple[int, Sink]:
        """Begin a call: its number and where its answer comes."""
        sink = Sink(asyncio.get_running_loop().create_future())
        request = CallRequest(self.caller(scope=scope, **caller), who, scope, method, json.dumps(params).encode())
        request.client_name, request.trace_id = "test", f"t{next(self._ids)}"
        return self.router.start_call(request, sink), sink

    def tool(self, name: str, /, *, to: dict[str, Any] | None = None, **arguments: Any) -> tuple[int, Sink]:
        """Begin a tools/call; ``to`` are the options of ``start``."""
        return self.start("tools/call", {"name": name, "arguments": arguments}, **(to or {}))

    async def call(self, name: str, /, *, to: dict[str, Any] | None = None, **arguments: Any) -> Any:
        """The result of a tools/call that must succeed."""
        kind, body = await asyncio.wait_for(self.tool(name, to=to, **arguments)[1].done, 30)
        assert kind == "reply", body
        return body

    async def refused(self, name: str, /, *, to: dict[str, Any] | None = None, **arguments: Any) -> Any:
        """The error object of a tools/call that must fail."""
        kind, body = await asyncio.wait_for(self.tool(name, to=to, **arguments)[1].done, 45)
        assert kind == "fail", body
        return body

    async def page(self, kind: frames.CapabilityType = "tool", *, scope: Scope = AGGREGATE, **caller: Any) -> Any:
        """The first page of a list."""
        who = caller.pop("who", LOCAL)
        page = await self.router.list_page(self.caller(scope=scope, **caller), who, scope, kind, None)
        return json.loads(page)

    async def names(self) -> list[str]:
        """The aggregate's tools."""
        return [tool["name"] for tool in (await self.page())["tools"]]

    async def rows(self, count: int) -> list[Any]:
        """The invocations written so far, oldest first, once there are ``count``."""

        async def enough() -> list[Any] | None:
            found = await self.store.invocations.list()
            return found if len(found) >= count else None

        return list(reversed(await wait_for(enough)))


def text(result: Any) -> Any:
    """What an echo tool answered."""
    return json.loads(result["content"][0]["text"])


@contextlib.asynccontextmanager
async def beating(before: Callable[[app.Heart], Any] | None = None) -> AsyncIterator[Beating]:
    """A heart in a home of its own; nothing of either is left afterwards."""
    root: Path = make_home()
    home = Home.from_env({"COFFER_HOME": str(root)})
    home.ensure()
    ear = Ear()
    try:
        async with app._store(home) as store, app._heart(home, store) as heart:
            heart.router.listeners = ear
            if before is not None:
                await before(heart)
            await heart.supervision.start()
            yield Beating(heart, ear)
    finally:
        shutil.rmtree(root, ignore_errors=True)
