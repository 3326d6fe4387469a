"""The daemon under test with its upstreams and a client's token, and the reference server over HTTP.

The suite can send no header, so the token stands in the path.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mcp import Client

from tests.support.clients import LEGACY, MODERN
from tests.support.daemon import Daemon
from tests.support.upstreams import ROOT

MODULE = ["-W", "ignore", "-m", "tests.fixtures.conformance_server"]
STDIO: dict[str, Any] = {
    "transport": "stdio",
    "command": sys.executable,
    "args": MODULE,
    "env": {"PYTHONPATH": str(ROOT)},
}


@contextmanager
def reference() -> Iterator[str]:
    """The reference server over HTTP; its URL."""
    process = subprocess.Popen(
        [sys.executable, *MODULE, "--transport", "http"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().decode().strip()
        assert url.startswith("http://"), f"the reference server did not start ({process.poll()})"
        yield url
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


def add_client(daemon: Daemon) -> str:
    """Register a client; its token."""
    token = secrets.token_urlsafe(24)
    config = {"token_sha256": hashlib.sha256(token.encode()).hexdigest()}
    daemon.api("POST", "/resources", {"kind": "client", "name": "conformance", "config": config})
    return token


@contextmanager
def gateway(upstreams: Mapping[str, Mapping[str, Any]], *, warmed: bool = True) -> Iterator[dict[str, str]]:
    """A daemon with these upstreams: name -> pass-through URL with the token in its path."""
    running = Daemon()
    running.start()
    try:
        token = add_client(running)
        for name, config in upstreams.items():
            running.add_server(name, config)
        for name in upstreams:
            running.wait_state(name, bound=40)
        urls = {name: running.url(f"/key/{token}/servers/{name}/mcp") for name in upstreams}
        for url in urls.values() if warmed else ():
            asyncio.run(warm(url))
        yield urls
    finally:
        running.close()


async def warm(url: str) -> None:
    """One call in each era, so that no scenario waits for a process to start (some wait half a second)."""
    for mode in (LEGACY, MODERN):
        async with Client(url, mode=mode) as client:
            await client.call_tool("test_simple_text", {})
