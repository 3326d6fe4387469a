"""Load: many calls, so many at a time, each with a text of its own that must come back."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from bench.wire import BenchError, Wire, message

ids = itertools.count(1)  # never the same id twice in a run, whichever wire


@dataclass(frozen=True)
class Load:
    """What a load came to; latencies in milliseconds."""

    calls: int
    at_once: int
    errors: int
    first_error: str
    per_second: float
    p50: float
    p95: float
    p99: float
    worst: float


def rank(ordered: Sequence[float], part: float) -> float:
    """The value at a part (0 to 1) of an ordered sequence."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


async def call(wire: Wire, tool: str, arguments: dict[str, object]) -> bytes:
    """One tools/call; the raw result."""
    mid = next(ids)
    result = await wire.request(mid, message(mid, "tools/call", {"name": tool, "arguments": arguments}))
    if b'"isError":true' in result[-200:]:
        raise BenchError(result[:300].decode(errors="replace"))
    return result


async def echo(wire: Wire, tool: str) -> float:
    """One echo with a text of its own; seconds. Another call's answer raises."""
    mid = next(ids)
    text = f"text-{mid}-"
    body = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"%s","arguments":{"text":"%s"}}}' % (
        mid,
        tool.encode(),
        text.encode(),
    )
    start = time.perf_counter()
    result = await wire.request(mid, body)
    took = time.perf_counter() - start
    if text.encode() not in result:
        raise BenchError(f"call {mid} got another call's answer: {result[:200]!r}")
    return took


async def load(wire: Wire, tool: str, calls: int, at_once: int) -> Load:
    """Run `calls` echoes, `at_once` at a time."""
    latencies: list[float] = []
    errors: list[str] = []
    left = calls

    async def caller() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            try:
                latencies.append(
                    await asyncio.wait_for(echo(wire, tool), 30) if at_once == 1 else await echo(wire, tool)
                )
            except (BenchError, TimeoutError) as error:
                errors.append(str(error) or "no answer within 30 s")

    start = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(at_once)))
    wall = time.perf_counter() - start
    latencies.sort()
    p50, p95, p99 = (round(rank(latencies, part) * 1e3, 3) for part in (0.5, 0.95, 0.99))
    return Load(
        calls=len(latencies),
        at_once=at_once,
        errors=len(errors),
        first_error=errors[0][:300] if errors else "",
        per_second=round(len(latencies) / wall, 1),
        p50=p50,
        p95=p95,
        p99=p99,
        worst=round(latencies[-1] * 1e3, 3) if latencies else float("nan"),
    )


async def list_tools(wire: Wire) -> tuple[int, int, float]:
    """All pages of tools/list: how many tools, bytes, seconds."""
    tools, size, cursor = 0, 0, None
    start = time.perf_counter()
    while True:
        mid = next(ids)
        raw = await wire.request(mid, message(mid, "tools/list", {"cursor": cursor} if cursor else {}))
        took = time.perf_counter() - start
        page = msgspec.json.decode(raw, type=Page)
        tools += len(page.tools)
        size += len(raw)
        cursor = page.nextCursor
        if not cursor:
            return tools, size, took


class Page(msgspec.Struct):
    """One page of a list."""

    tools: list[msgspec.Raw]
    nextCursor: str | None = None


async def timed_big(wire: Wire, tool: str, n_bytes: int) -> float:
    """Seconds for a result of so many bytes."""
    start = time.perf_counter()
    result = await call(wire, tool, {"n_bytes": n_bytes})
    took = time.perf_counter() - start
    if len(result) < n_bytes:
        raise BenchError(f"{len(result)} bytes came instead of {n_bytes}")
    return took
