"""Waiting for a condition with a bound, instead of sleeping and hoping.

`wait_for` is for coroutines, `wait_until` for plain tests. Both take the condition (plain or async), try it at
growing intervals, and fail with what they were waiting for. The bound is generous: it is there to end a broken
test, never to measure.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")
BOUND = 20.0
STEPS = (0.005, 0.05)
"""The first interval between two tries, and the longest."""


class NotReached(AssertionError):
    """The condition did not come true within its bound."""


def _failure(what: str | Callable[[], str], bound: float, last: object) -> NotReached:
    text = what if isinstance(what, str) else what()
    return NotReached(f"not reached within {bound:g} s: {text or 'condition'} (last value {last!r})")


@overload
async def wait_for(
    condition: Callable[[], Awaitable[T | None]], bound: float = BOUND, what: str | Callable[[], str] = ""
) -> T: ...


@overload
async def wait_for(
    condition: Callable[[], T | None], bound: float = BOUND, what: str | Callable[[], str] = ""
) -> T: ...


async def wait_for(condition: Callable[[], Any], bound: float = BOUND, what: str | Callable[[], str] = "") -> Any:
    """The first true value of `condition`, tried until `bound` seconds are over."""
    end = time.monotonic() + bound
    step, longest = STEPS
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > end:
            raise _failure(what, bound, value)
        await asyncio.sleep(step)
        step = min(step * 1.3, longest)


def wait_until(condition: Callable[[], T | None], bound: float = BOUND, what: str | Callable[[], str] = "") -> T:
    """As `wait_for`, for tests without a loop."""
    end = time.monotonic() + bound
    step, longest = STEPS
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise _failure(what, bound, value)
        time.sleep(step)
        step = min(step * 1.3, longest)
