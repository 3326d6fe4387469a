"""Clients that can be asked, and what upstreams ask of them, for tests that drive a worker by frames."""

from __future__ import annotations

import json
from typing import Any

from coffer_common import frames
from tests.support.upstreams import Upstream
from tests.support.wait import wait_for
from tests.support.worker import Answer, Worker

MODERN = "2026-07-28"
ALL = {"sampling": {}, "elicitation": {"form": {}, "url": {}}, "roots": {"listChanged": True}}
FORM = {"method": "elicitation/create", "params": {"message": "Which?", "requestedSchema": {"type": "object"}}}
SAMPLE = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 3, "_meta": {"x/y": 1}}}
ROOTS = {"method": "roots/list"}
LINK = {
    "method": "elicitation/create",
    "params": {"mode": "url", "message": "Go", "url": "https://up.invalid/1", "elicitationId": "e-7"},
}


def client(
    revision: str = "2025-11-25", session: str = "s1", capabilities: Any = None, principal: str = "local"
) -> frames.Caller:
    """A client that declared ``capabilities`` (all, where nothing is said)."""
    declared = json.dumps(ALL if capabilities is None else capabilities).encode()
    return frames.Caller(session, principal, "/mcp", "prefixed", revision, "http", declared)


async def asked(worker: Worker, count: int = 1) -> list[tuple[frames.Ask, dict[str, Any]]]:
    """The asks so far, once there are ``count``."""

    def found() -> list[tuple[frames.Ask, dict[str, Any]]] | None:
        asks = [(frame, json.loads(payload)) for frame, payload in worker.seen if isinstance(frame, frames.Ask)]
        return asks if len(asks) >= count else None

    return await wait_for(found, what=f"{count} asks")


def arguments(*asks: Any, **more: Any) -> dict[str, Any]:
    return {"do": "ask", "asks": list(asks), **more}


def retry(first: Answer, params: dict[str, Any], **responses: Any) -> dict[str, Any]:
    """The params of a retry, with an answer for each key of the first round."""
    return {**params, "inputResponses": responses, "requestState": first.value["requestState"]}


async def begin(worker: Worker, by: frames.Caller, args: dict[str, Any], **more: Any) -> int:
    return await worker.begin("tools/call", "echo", {"name": "up__echo", "arguments": args, **more}, by)


async def modern(worker: Worker, args: dict[str, Any], by: frames.Caller | None = None, **more: Any) -> Answer:
    """A call of a modern client, or its retry, to its answer."""
    return await worker.answer(await begin(worker, by or client(MODERN), args, **more))


def sent_to(upstream: Upstream) -> list[dict[str, Any]]:
    """The answers that the upstream got to requests of its own."""
    received = [entry["message"] for entry in upstream.log() if entry["event"] == "received"]
    return [message for message in received if "method" not in message]
