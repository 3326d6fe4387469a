"""Waiting for a condition that several things may bring about, without polling.

Owns the waiting. Who changes something says so with ``beat``; who waits looks again.
"""

import asyncio
from collections.abc import Callable


class Pulse:
    """One place to wait at."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def beat(self) -> None:
        """Something changed."""
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Wait until ``condition`` holds, at most to ``deadline`` (loop time); whether it does."""
        loop = asyncio.get_running_loop()
        while not condition():
            if loop.time() >= deadline:
                return False
            future: asyncio.Future[None] = loop.create_future()
            self._waiting.add(future)
            try:
                async with asyncio.timeout_at(deadline):
                    await future
            except TimeoutError:
                return condition()
            finally:
                self._waiting.discard(future)
        return True
