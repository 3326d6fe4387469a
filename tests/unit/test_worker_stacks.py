"""How a worker's stacks read: a title, then a line for each step, the innermost last."""

import asyncio
import threading
from collections.abc import AsyncIterator

from coffer_worker.stacks import place, task_stacks, thread_stacks


async def _numbers(gate: asyncio.Event) -> AsyncIterator[int]:
    await gate.wait()
    yield 1


async def _inner(gate: asyncio.Event) -> int:
    async for number in _numbers(gate):
        return number
    return 0


async def _outer(gate: asyncio.Event) -> int:
    return await _inner(gate)


async def test_a_task_shows_the_whole_chain_of_what_waits_for_what() -> None:
    """Not just the outermost frame, which is the same for every task of a kind."""
    gate = asyncio.Event()
    task = asyncio.create_task(_outer(gate), name="mine")
    await asyncio.sleep(0)
    stack = next(one for one in task_stacks() if one.startswith("mine: _outer")).splitlines()
    where = [line.split(" ")[0].rpartition(":")[0] for line in stack[1:3]]
    assert where == ["unit/test_worker_stacks.py"] * 2
    assert [line.split(" ")[1] for line in stack[1:3]] == ["_outer", "_inner"]
    gate.set()
    assert await task == 1
    assert not any(one.startswith("mine") for one in task_stacks())


def test_a_thread_reads_the_same_way() -> None:
    stop, begun = threading.Event(), threading.Event()

    def busy() -> None:
        begun.set()
        stop.wait()

    thread = threading.Thread(target=busy, name="stuck")
    thread.start()
    try:
        begun.wait()
        stack = next(one for one in thread_stacks() if one.startswith("thread stuck")).splitlines()
        assert any("busy" in line for line in stack[1:])
        assert stack[-1].startswith("python3.") or "threading.py" in stack[-1]
    finally:
        stop.set()
        thread.join()


def test_a_file_is_named_from_its_package_on() -> None:
    assert place("/usr/x/site-packages/anyio/streams/memory.py") == "anyio/streams/memory.py"
    assert place("/a/site-packages/coffer_worker/calls.py") == "coffer_worker/calls.py"
    assert place("/usr/lib/python3.11/asyncio/tasks.py") == "asyncio/tasks.py"
    assert place("alone.py") == "alone.py"
