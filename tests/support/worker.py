"""A real worker process and a real peer for it: two ROUTER sockets, as the supervisor has them, driven by a test.

`async with Worker.start(tmp_path, config) as worker:` starts one, takes its Hellos and configures it. The process
is started plainly, without the fork server; it is the same code from `worker_main` on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import zmq
import zmq.asyncio

from coffer_common import forkproto, frames
from coffer_common.resources import McpServerConfig
from tests.support.upstreams import ROOT, Upstream
from tests.support.wait import wait_for

MAIN = (
    "import sys; from coffer_worker.__main__ import worker_main; worker_main(sys.stdin.buffer.read(), int(sys.argv[1]))"
)
FrameT = TypeVar("FrameT")


def server_config(upstream: Upstream | dict[str, Any], **more: Any) -> McpServerConfig:
    """A typed configuration of a fixture server."""
    value = upstream.config(**more) if isinstance(upstream, Upstream) else {**upstream, **more}
    path = {"path": os.environ["PATH"]} if value["transport"] == "stdio" else {}
    return msgspec.convert({**path, **value}, McpServerConfig)


def caller(revision: str = "2025-11-25", session: str = "s1", naming: frames.Naming = "prefixed") -> frames.Caller:
    """A client."""
    return frames.Caller(session, "local", "/mcp", naming, revision, "http")


class Answer(msgspec.Struct):
    """What became of one request: its frame, the payload decoded and raw, and the progress before it."""

    frame: frames.Reply | frames.Fail
    raw: bytes
    progress: list[dict[str, Any]]
    notices: list[tuple[frames.Notify, dict[str, Any]]]

    @property
    def value(self) -> dict[str, Any]:
        """The payload."""
        return json.loads(self.raw)

    @property
    def text(self) -> str:
        """The first text of a tool's result."""
        assert isinstance(self.frame, frames.Reply), self.raw
        return self.value["content"][0]["text"]

    @property
    def message(self) -> str:
        """What the failure says."""
        assert isinstance(self.frame, frames.Fail), self.raw
        return self.frame.message

    @property
    def reason(self) -> str:
        """Why it failed, in Coffer's words."""
        assert isinstance(self.frame, frames.Fail), self.raw
        return self.frame.reason


class Worker:
    """One worker and its two sockets. `seen` keeps all frames that came, in order, with their payloads."""

    def __init__(self, home: Path, name: str) -> None:
        self.name, self.home = name, home
        self.identity = f"{name}.1".encode()
        self.seen: list[tuple[Any, bytes]] = []
        self.beats: list[frames.Heartbeat] = []
        self.secrets: dict[str, str] = {}
        self.corr = 100
        self.program = MAIN
        self._context = zmq.asyncio.Context()
        self._control = self._router("c.ipc")
        self._bulk = self._router("b.ipc")
        self._tasks: list[asyncio.Task[None]] = []
        self.lifeline, self._their_lifeline = socket.socketpair()

    def _router(self, file: str) -> Any:
        router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.bind(f"ipc://{self.home / file}")
        return router

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls,
        home: Path,
        config: McpServerConfig | None,
        *,
        name: str = "up",
        ready: bool = True,
        hint: Any = "",
        seen: frames.Caller | None = None,
        program: str = MAIN,
    ) -> AsyncIterator[Worker]:
        """A worker for `config`, configured and (unless told otherwise) ready; ended at the end.

        `program` is what the process runs: boot bytes on stdin, the lifeline's descriptor as its argument."""
        worker = cls(home, name)
        worker.program = program
        process = worker._launch()
        try:
            await wait_for(lambda: len(worker.all(frames.Hello)) == 2, what="both Hellos")
            if config is not None:
                await worker.configure(config, hint, seen)
                if ready:
                    await worker.state("ready")
                    # It travels on the other pair, and may come later.
                    await wait_for(lambda: worker.all(frames.Catalogue), what="the first catalogue")
            yield worker
        finally:
            await worker._close(process)

    def _launch(self) -> subprocess.Popen[bytes]:
        boot = forkproto.Boot(self.name, 1, "once", f"ipc://{self.home / 'c.ipc'}", f"ipc://{self.home / 'b.ipc'}")
        fd = self._their_lifeline.fileno()
        environment = {**os.environ, "COFFER_HOME": str(self.home)}
        self.process = process = subprocess.Popen(
            [sys.executable, "-c", self.program, str(fd)],
            stdin=subprocess.PIPE,
            pass_fds=[fd],
            env=environment,
            cwd=ROOT,
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(forkproto.encode_boot(boot))
        process.stdin.close()
        self._their_lifeline.close()
        for router in (self._control, self._bulk):
            self._tasks.append(asyncio.create_task(self._receive(router)))
        return process

    async def configure(self, config: McpServerConfig, hint: Any = "", seen: frames.Caller | None = None) -> None:
        """Send Configure."""
        for folder in ("logs", "upstream-pids"):
            (self.home / folder).mkdir(exist_ok=True)
        folders = (str(self.home / "logs"), str(self.home / "upstream-pids"))
        await self.send(frames.Configure(config, "run", "0.1.0", *folders, hint, seen=seen))

    async def _close(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            self.lifeline.close()
            try:
                await asyncio.to_thread(process.wait, 10)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        self.lifeline.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._control.close()
        self._bulk.close()
        self._context.term()

    async def _receive(self, router: Any) -> None:
        while True:
            _, header, *parts = await router.recv_multipart()
            frame = frames.decode_from_worker(header)
            if isinstance(frame, frames.Heartbeat):
                self.beats.append(frame)
            elif isinstance(frame, frames.LoadSecret):
                await self.send(frames.Secret(frame.corr, self.secrets.get(frame.ref, "")))
            elif isinstance(frame, frames.StoreSecret):
                self.secrets[frame.ref] = frame.value
                await self.send(frames.Secret(frame.corr))
            else:
                self.seen.append((frame, parts[0] if parts else b""))

    # ---- what came

    def all(self, kind: type[FrameT]) -> list[FrameT]:
        """All frames of one type so far."""
        return [frame for frame, _ in self.seen if isinstance(frame, kind)]

    def states(self) -> list[str]:
        """The states reported so far."""
        return [frame.state for frame in self.all(frames.State)]

    async def state(self, name: str, since: int = 0) -> frames.State:
        """The newest State of that name, once there is one beyond the first `since` State frames."""

        def newest() -> frames.State | None:
            found = [frame for frame in self.all(frames.State)[since:] if frame.state == name]
            return found[-1] if found else None

        return await wait_for(newest, what=lambda: f"state {name}; came: {self.all(frames.State)}")

    def catalogue(self, era: str = "legacy", session: str = "") -> dict[str, frames.CatalogueEntry]:
        """The newest catalogue, by type:key."""
        found: dict[str, frames.CatalogueEntry] = {}
        for frame, payload in self.seen:
            if not isinstance(frame, frames.Catalogue) or frame.same:
                continue
            if frame.era == era and frame.session == session:
                found = {f"{entry.type}:{entry.key}": entry for entry in frames.decode_entries(payload)}
        return found

    # ---- what goes

    async def send(self, frame: Any, payload: bytes = b"") -> None:
        """Send one frame on the socket it belongs to."""
        router = self._control if isinstance(frame, frames.CONTROL) else self._bulk
        await router.send_multipart([self.identity, frames.encode(frame), *([payload] if payload else [])])

    async def begin(self, method: str, key: str, params: dict[str, Any] | bytes, by: frames.Caller, **more: Any) -> int:
        """Send a Call; its number."""
        self.corr += 1
        corr = self.corr
        payload = params if isinstance(params, bytes) else json.dumps(params).encode()
        await self.send(frames.Call(corr, by, method, key, **more), payload)
        return corr

    async def answer(self, corr: int, bound: float = 20.0) -> Answer:
        """The Reply or Fail of a request."""

        def found() -> Answer | None:
            progress: list[dict[str, Any]] = []
            notices: list[tuple[frames.Notify, dict[str, Any]]] = []
            for frame, payload in self.seen:
                if getattr(frame, "corr", None) != corr:
                    continue
                if isinstance(frame, frames.Progress):
                    progress.append(json.loads(payload))
                elif isinstance(frame, frames.Notify):
                    notices.append((frame, json.loads(payload)))
                elif isinstance(frame, frames.Reply | frames.Fail):
                    return Answer(frame, payload, progress, notices)
            return None

        return await wait_for(found, bound, what=f"the answer to {corr}")

    async def call(
        self, tool: str, arguments: dict[str, Any] | None = None, by: frames.Caller | None = None, **more: Any
    ) -> Answer:
        """One tools/call, to its end."""
        meta = more.pop("meta", None)
        params: dict[str, Any] = {"name": f"{self.name}__{tool}", "arguments": arguments or {}}
        if meta is not None:
            params["_meta"] = meta
        return await self.answer(await self.begin("tools/call", tool, params, by or caller(), **more))

    async def request(self, make: Callable[[int], Any]) -> Answer:
        """A Subscribe, Unsubscribe or Refresh, to its end."""
        self.corr += 1
        await self.send(make(self.corr))
        return await self.answer(self.corr)

    async def dump(self) -> dict[str, Any]:
        """A Dump."""
        self.corr += 1
        corr = self.corr
        await self.send(frames.Dump(corr))

        def found() -> dict[str, Any] | None:
            return next((json.loads(p) for f, p in self.seen if isinstance(f, frames.Dumped) and f.corr == corr), None)

        return await wait_for(found, what="a dump")
