"""One daemon, an upstream for each era and transport, one client at a time, and bystanders who must see nothing."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import mcp_types as types
from mcp import Client
from pydantic import FileUrl

from tests.support.clients import LEGACY, http_client, shim_client
from tests.support.daemon import Daemon
from tests.support.upstreams import ROOT, Upstream

Era = Literal["legacy", "modern"]
ERAS: tuple[Era, ...] = ("legacy", "modern")
WAYS = ("http", "shim")
PIPES = ("stdio", "http")
OTHER = "elsewhere"


def nonce() -> str:
    """A nonce of a client's."""
    return f"down-{uuid.uuid4().hex[:12]}"


def matrix_server(era: str, log: Path, transport: str = "stdio") -> Upstream:
    """The server of the table."""
    args = ["-W", "ignore", "-m", "tests.fixtures.matrix_server", "--era", era, "--transport", transport]
    return Upstream(sys.executable, [*args, "--log", str(log)], {"PYTHONPATH": str(ROOT)}, log)


@dataclass
class Backend:
    """One upstream: its name at the daemon, and its log."""

    era: Era
    pipe: str
    upstream: Upstream

    @property
    def name(self) -> str:
        """The server's name."""
        return f"{self.era}-{self.pipe}"

    def logged(self, event: str, came: str) -> list[dict[str, Any]]:
        """Its log lines of an event that carry a client's nonce."""
        return [line for line in self.upstream.log() if line["event"] == event and came in str(line)]


@dataclass
class Person:
    """What a client is asked and told, kept; and its answers, each with a nonce of its own."""

    heard: list[Any] = field(default_factory=list)
    asked: list[tuple[str, Any, str]] = field(default_factory=list)

    async def on_message(self, message: Any) -> None:
        """A notification that belongs to no call."""
        self.heard.append(message)

    def _answered(self, kind: str, params: Any) -> str:
        mine = nonce()
        self.asked.append((kind, params, mine))
        return mine

    async def on_sampling(self, context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        """sampling/createMessage."""
        text = types.TextContent(type="text", text=self._answered("sampling", params))
        return types.CreateMessageResult(role="assistant", content=text, model="table")

    async def on_elicitation(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        """elicitation/create, both modes. A link is declined: consent and the way back are another page's matter."""
        if isinstance(params, types.ElicitRequestURLParams):
            self._answered("url", params)
            return types.ElicitResult(action="decline")
        return types.ElicitResult(action="accept", content={"answer": self._answered("form", params)})

    async def on_roots(self, context: Any) -> types.ListRootsResult:
        """roots/list."""
        return types.ListRootsResult(roots=[types.Root(uri=FileUrl(f"file:///{self._answered('roots', None)}"))])

    def callbacks(self) -> dict[str, Any]:
        """For the SDK's client."""
        return {
            "message_handler": self.on_message,
            "sampling_callback": self.on_sampling,
            "elicitation_callback": self.on_elicitation,
            "list_roots_callback": self.on_roots,
        }


@dataclass
class Seat:
    """One client: its era, its way to the daemon, the SDK's client, and the person behind it."""

    era: Era
    way: str
    client: Client
    person: Person


@dataclass
class Bystanders:
    """Others at the same daemon. `stranger` may see another server only; `neighbour` sees all and calls nothing."""

    stranger: Person = field(default_factory=Person)
    neighbour: Person = field(default_factory=Person)

    def complaint(self) -> str:
        """What one of them saw that was not theirs; empty where all is well. List changes are a neighbour's too."""
        changes = (types.ToolListChangedNotification, types.PromptListChangedNotification)
        told = [m for m in self.neighbour.heard if not isinstance(m, (*changes, types.ResourceListChangedNotification))]
        for who, seen in (
            ("a client of another server", [*self.stranger.heard, *self.stranger.asked]),
            ("another client", [*told, *self.neighbour.asked]),
        ):
            if seen:
                return f"{who} saw {seen[0]!r}"
        return ""

    def forget(self) -> None:
        """Begin anew."""
        for seen in (self.stranger.heard, self.stranger.asked, self.neighbour.heard, self.neighbour.asked):
            seen.clear()


@contextmanager
def backends(folder: Path) -> Iterator[dict[str, tuple[Backend, dict[str, Any]]]]:
    """The four upstreams and what registers them; those over HTTP run as long as this does."""
    processes: list[subprocess.Popen[bytes]] = []
    found: dict[str, tuple[Backend, dict[str, Any]]] = {}
    try:
        for era in ERAS:
            for pipe in PIPES:
                upstream = matrix_server(era, folder / f"{era}-{pipe}.jsonl", pipe)
                backend = Backend(era, pipe, upstream)
                config = upstream.config()
                if pipe == "http":
                    process = upstream.popen(stderr=subprocess.DEVNULL)
                    processes.append(process)
                    assert process.stdout is not None
                    config = {"transport": "http", "url": process.stdout.readline().decode().strip()}
                found[backend.name] = (backend, config)
        yield found
    finally:
        for process in processes:
            process.terminate()
            process.communicate(timeout=20)


def prepare(daemon: Daemon, found: dict[str, tuple[Backend, dict[str, Any]]], folder: Path) -> str:
    """Register everything and wait for it; the token of a client that may reach one other server only."""
    for name, (_, config) in found.items():
        daemon.add_server(name, config)
    daemon.add_server(OTHER, matrix_server("legacy", folder / "elsewhere.jsonl"))
    token = uuid.uuid4().hex
    config = {"token_sha256": hashlib.sha256(token.encode()).hexdigest(), "servers": [OTHER]}
    daemon.api("POST", "/resources", {"kind": "client", "name": "stranger", "config": config})
    for name in (*found, OTHER):
        daemon.wait_state(name, bound=40)
    return token


@asynccontextmanager
async def bystanders(daemon: Daemon, token: str) -> AsyncIterator[Bystanders]:
    """Both, connected, each having called something of its own."""
    found = Bystanders()
    async with AsyncExitStack() as stack:
        for person, key in ((found.stranger, token), (found.neighbour, None)):
            client = await stack.enter_async_context(http_client(daemon, LEGACY, token=key, **person.callbacks()))
            await client.call_tool(f"{OTHER}__exchange", {"nonce": nonce()})
        yield found


@asynccontextmanager
async def seat(daemon: Daemon, era: Era, way: str) -> AsyncIterator[Seat]:
    """A client of one era, over one way."""
    person = Person()
    mode = LEGACY if era == "legacy" else "auto"
    connect = http_client if way == "http" else shim_client
    async with connect(daemon, mode, cache=None, **person.callbacks()) as client:
        yield Seat(era, way, client, person)


def run(work: Any) -> Any:
    """Run a coroutine to its end."""
    return asyncio.run(work)
