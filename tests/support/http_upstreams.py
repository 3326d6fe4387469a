"""The fixture server on the official SDK, over HTTP: started, its URL known, ended at the end."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.upstreams import Upstream, fake


@dataclass
class HttpUpstream:
    """A running server. `log` is what reached it."""

    url: str
    upstream: Upstream
    process: subprocess.Popen[bytes]

    def config(self, **more: Any) -> dict[str, Any]:
        """A registration's configuration."""
        return {"transport": "http", "url": self.url, **more}

    def messages(self, method: str) -> list[dict[str, Any]]:
        """Requests and notifications of one method that reached it."""
        return self.upstream.messages(method)

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait(10)


@contextlib.asynccontextmanager
async def fake_http(*flags: str, log: Path | None = None, port: int = 0) -> AsyncIterator[HttpUpstream]:
    """The SDK's server behind a URL."""
    upstream = fake("--transport", "http", "--port", str(port), *flags, log=log)
    process = upstream.popen()
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        line = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), 20)
        yield HttpUpstream(line.decode().strip(), upstream, process)
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, 5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        process.stdin.close()
