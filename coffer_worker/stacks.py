"""How a worker's tasks and threads stand: their stacks, a line for each step, the innermost last.

Owns how a stack reads. Never touches what it looks at.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, Final

_DEEPEST: Final = 60
"""Steps of one stack, beyond which nobody reads."""
_LINKS: Final = ("cr_await", "gi_yieldfrom", "ag_await")


def task_stacks() -> list[str]:
    """The stack of each task of the running loop: its name, then its steps."""
    return ["\n".join([_title(task), *_steps(task.get_coro())]) for task in asyncio.all_tasks() if not task.done()]


def thread_stacks() -> list[str]:
    """The same of each thread of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = []
    for ident, frame in sys._current_frames().items():
        steps: list[str] = []
        step: FrameType | None = frame
        while step is not None and len(steps) < _DEEPEST:
            steps.append(_step(step.f_code, step.f_lineno))
            step = step.f_back
        found.append("\n".join([f"thread {names.get(ident, ident)}", *reversed(steps)]))
    return found


def place(path: str) -> str:
    """A source file's path from its package on."""
    parts = path.split(os.sep)
    for at, part in enumerate(parts):
        if part.startswith("coffer_"):
            return "/".join(parts[at:])
    if "site-packages" in parts:
        return "/".join(parts[parts.index("site-packages") + 1 :])
    return "/".join(parts[-2:])


def _step(code: CodeType, line: int) -> str:
    return f"{place(code.co_filename)}:{line} {code.co_qualname}"


def _title(task: "asyncio.Task[Any]") -> str:
    coroutine = task.get_coro()
    return f"{task.get_name()}: {getattr(coroutine, '__qualname__', type(coroutine).__name__)}"


def _steps(awaited: Any) -> Iterator[str]:
    """Down the chain of what waits for what, to what waits for the loop."""
    for _ in range(_DEEPEST):
        frame, code = _at(awaited)
        if code is None:
            return  # the loop's own future, or nothing: the step before says what for
        yield _step(code, code.co_firstlineno if frame is None else frame.f_lineno)
        awaited = next((found for name in _LINKS if (found := getattr(awaited, name, None)) is not None), None)


def _at(awaited: Any) -> tuple[FrameType | None, CodeType | None]:
    for kind in ("cr", "gi", "ag"):
        code = getattr(awaited, f"{kind}_code", None)
        if code is not None:
            return getattr(awaited, f"{kind}_frame", None), code
    return None, None
