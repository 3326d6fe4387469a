"""Clients for tests: the official SDK's over HTTP and over the shim, and a raw HTTP one that shows the wire.

The SDK is the oracle of what a client sees; the raw client is for headers, status codes, bytes and streams that
the SDK hides.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from tests.support.daemon import SHIM, Daemon

META = "io.modelcontextprotocol/"
BOTH_TYPES = "application/json, text/event-stream"
LEGACY, MODERN = "legacy", LATEST_MODERN_VERSION
ERAS = (LEGACY, "auto")  # the modes of the SDK's Client: the handshake, or discover first


@asynccontextmanager
async def http_client(
    daemon: Daemon, mode: str = "auto", *, path: str = "/mcp", token: str | None = None, **more: Any
) -> AsyncIterator[Client]:
    """The SDK's client over Streamable HTTP with the daemon's token (or another)."""
    headers = {"Authorization": f"Bearer {token or daemon.token}"}
    timeout = httpx2.Timeout(30, read=300)
    async with httpx2.AsyncClient(headers=headers, timeout=timeout, trust_env=False) as http:
        transport = streamable_http_client(daemon.url(path), http_client=http)
        async with Client(transport, mode=mode, **more) as client:
            yield client


def shim_parameters(daemon: Daemon, *flags: str, **env: str) -> StdioServerParameters:
    """How an MCP client would launch the shim."""
    return StdioServerParameters(command=SHIM, args=list(flags), env={**daemon.env, **env}, cwd="/")


@asynccontextmanager
async def shim_client(daemon: Daemon, mode: str = "auto", *flags: str, **more: Any) -> AsyncIterator[Client]:
    """The SDK's client over the installed shim."""
    with open(daemon.home / "shim.err", "a", encoding="utf-8") as errors:
        transport = stdio_client(shim_parameters(daemon, *flags), errlog=errors)
        async with Client(transport, mode=mode, **more) as client:
            yield client


def text_of(result: Any) -> str:
    """The text of a tool result's first block."""
    return str(result.content[0].text)


def json_of(result: Any) -> Any:
    """The JSON in a tool result's first block."""
    return json.loads(text_of(result))


# ------------------------------------------------------------------ raw HTTP


@dataclass
class Answer:
    """What one HTTP exchange brought: status, headers, raw body, and the JSON-RPC messages in it."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    messages: list[Any] = field(default_factory=list)

    @property
    def message(self) -> Any:
        """The last message: the answer."""
        assert self.messages, f"no JSON-RPC message in {self.status} {self.body[:300]!r}"
        return self.messages[-1]

    @property
    def result(self) -> Any:
        """The result; fails with the error where there is one."""
        assert "result" in self.message, f"no result: {self.status} {self.message}"
        return self.message["result"]

    @property
    def error(self) -> Any:
        """The error object; fails where there is none."""
        assert "error" in self.message, f"no error: {self.status} {self.message}"
        return self.message["error"]


def sse_data(body: bytes) -> list[str]:
    """The data of each complete event with any, in order (event-stream rules for LF and CRLF)."""
    found, data = [], []
    for line in body.decode().replace("\r\n", "\n").split("\n"):
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            text, data = "\n".join(data), []
            if text.strip():
                found.append(text)
    return found


class RawHttp:
    """JSON-RPC over HTTP with every header in the test's hands."""

    def __init__(self, session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> None:
        self.session = session
        self.url = url
        self.headers = dict(headers)
        self.next_id = 0

    async def exchange(
        self, verb: str, body: bytes | None = None, headers: Mapping[str, str | None] | None = None, url: str = ""
    ) -> Answer:
        """One request, read to its end. A header of None is left out."""
        merged: dict[str, str | None] = {**self.headers, **(headers or {})}
        sent = {key: value for key, value in merged.items() if value is not None}
        skip = [key for key, value in merged.items() if value is None]
        async with self.session.request(
            verb, url or self.url, data=body, headers=sent, skip_auto_headers=skip, allow_redirects=False
        ) as response:
            data = await response.read()
            answer = Answer(response.status, dict(response.headers), data)
        if answer.headers.get("Content-Type", "").startswith("text/event-stream"):
            answer.messages = [json.loads(text) for text in sse_data(data)]
        elif data.strip():
            try:
                answer.messages = [json.loads(data)]
            except ValueError:
                pass
        return answer

    async def post(self, message: Any, headers: Mapping[str, str | None] | None = None) -> Answer:
        """POST one message (or bytes as they are)."""
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        return await self.exchange("POST", body, headers)

    def new_id(self) -> int:
        """A request id not used before."""
        self.next_id += 1
        return self.next_id

    async def initialize(self, version: str = LATEST_HANDSHAKE_VERSION, **capabilities: Any) -> Answer:
        """The handshake; from then on the session's headers are sent."""
        params = {
            "protocolVersion": version,
            "capabilities": capabilities,
            "clientInfo": {"name": "raw", "version": "1"},
        }
        answer = await self.request("initialize", params)
        session = answer.headers.get("Mcp-Session-Id")
        if session:
            self.headers["Mcp-Session-Id"] = session
        self.headers["MCP-Protocol-Version"] = answer.result["protocolVersion"]
        await self.notify("notifications/initialized")
        return answer

    async def request(
        self, method: str, params: Any = None, headers: Mapping[str, str | None] | None = None, mid: Any = None
    ) -> Answer:
        """A legacy request."""
        message = {"jsonrpc": "2.0", "id": self.new_id() if mid is None else mid, "method": method}
        if params is not None:
            message["params"] = params
        return await self.post(message, headers)

    async def notify(self, method: str, params: Any = None) -> Answer:
        """A notification."""
        message = {"jsonrpc": "2.0", "method": method}
        return await self.post(message if params is None else {**message, "params": params})

    async def modern(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str | None] | None = None,
        capabilities: Mapping[str, Any] | None = None,
    ) -> Answer:
        """A 2026-07-28 request: its `_meta` and its Mcp-* headers are made from method and params."""
        message, made = modern_message(self.new_id(), method, params, capabilities)
        return await self.post(message, {**made, **(headers or {})})


def modern_message(
    mid: Any, method: str, params: Mapping[str, Any] | None = None, capabilities: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """A 2026-07-28 request and the HTTP headers that must go with it."""
    body = dict(params or {})
    body["_meta"] = {
        META + "protocolVersion": LATEST_MODERN_VERSION,
        META + "clientInfo": {"name": "raw", "version": "1"},
        META + "clientCapabilities": dict(capabilities or {}),
        **body.get("_meta", {}),
    }
    headers = {"MCP-Protocol-Version": LATEST_MODERN_VERSION, "Mcp-Method": method}
    name = body.get("name") or body.get("uri")
    if method in ("tools/call", "prompts/get", "resources/read") and name:
        headers["Mcp-Name"] = str(name)
    return {"jsonrpc": "2.0", "id": mid, "method": method, "params": body}, headers


@asynccontextmanager
async def raw_http(daemon: Daemon, path: str = "/mcp", token: str | None = None) -> AsyncIterator[RawHttp]:
    """A raw client with the daemon's token, both content types accepted."""
    headers = {
        "Authorization": f"Bearer {token or daemon.token}",
        "Content-Type": "application/json",
        "Accept": BOTH_TYPES,
    }
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout, auto_decompress=True) as session:
        yield RawHttp(session, daemon.url(path), headers)
