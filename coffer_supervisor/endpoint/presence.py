"""Who is being answered now, so that a principal whose right to be here has ended can be cut off at once.

Owns the handlers' tasks by principal. Never decides who may enter.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Presence:
    """The requests in progress."""

    def __init__(self) -> None:
        self._tasks: dict[str, set[asyncio.Task[object]]] = {}
        self._cut: set[asyncio.Task[object]] = set()

    @contextmanager
    def of(self, principal_id: str) -> Iterator[None]:
        """While the running task answers that principal."""
        task = asyncio.current_task()
        assert task is not None
        tasks = self._tasks.setdefault(principal_id, set())
        tasks.add(task)
        try:
            yield
        finally:
            tasks.discard(task)
            self._cut.discard(task)
            if not tasks and self._tasks.get(principal_id) is tasks:
                del self._tasks[principal_id]

    def cut(self, principal_id: str) -> None:
        """End that principal's requests where they stand. What they began is cancelled by their own clean-up."""
        for task in self._tasks.get(principal_id, ()):
            self._cut.add(task)
            task.cancel()

    def was_cut(self) -> bool:
        """Whether it is for this that the running task was cancelled; it may then go on, to say why."""
        task = asyncio.current_task()
        if task is None or task not in self._cut:
            return False
        self._cut.discard(task)
        task.uncancel()
        return True
