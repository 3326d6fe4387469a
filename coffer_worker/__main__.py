"""The worker's entry: from a fresh fork to one upstream's loop, and the exit.

Owns the order of things at start and end. Never returns to the fork server: the process ends with ``os._exit``.
"""

import asyncio
import os
import signal
import sys
from typing import Any, NoReturn

from coffer_common import forkproto
from coffer_common.forkproto import Boot
from coffer_common.proctree import Proc, descendants, kill_until_gone, snapshot
from coffer_worker.control import ControlThread
from coffer_worker.link import Link
from coffer_worker.runner import Runner

_FINISH_SECONDS = 3.0


def worker_main(boot: bytes, lifeline_fd: int) -> NoReturn:
    """Be the worker that ``boot`` (see ``forkproto.Boot``) describes, until told to stop or the supervisor is gone."""
    told = forkproto.decode_boot(boot)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        code = runner.run(_work(told, lifeline_fd))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _work(boot: Boot, lifeline: int) -> int:
    loop = asyncio.get_running_loop()
    link = Link(boot)
    held: list[Runner] = []

    def received(frame: Any, payload: bytes) -> None:
        held[0].bulk(frame, payload)

    def pressure(on: bool) -> None:
        held[0].pressure(on)

    def post(frame: Any, payload: bytes = b"") -> None:
        control.post(frame, payload)

    bulk = link.bulk(received, pressure)
    runner = Runner(boot.name, bulk, post)
    held.append(runner)
    control = ControlThread(
        boot.name, link, lifeline, loop, deliver=runner.control, figures=runner.figures, kill=_kill_below
    )
    control.start()
    loop.add_signal_handler(signal.SIGTERM, runner.stop, 0.0, "the worker was told to end")
    await runner.finished.wait()
    bulk.close()
    await asyncio.to_thread(control.finish, _FINISH_SECONDS)
    await asyncio.to_thread(link.close)
    return 0


def _kill_below() -> None:
    """SIGKILL everything below this process; from any thread."""
    me = os.getpid()

    def below() -> list[Proc]:
        return descendants(me, snapshot())

    kill_until_gone(below, seconds=_FINISH_SECONDS)
