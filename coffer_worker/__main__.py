"""The worker's entry: from a fresh fork to one upstream's loop, and the exit.

Owns the order of things at start and end. Never returns to the fork server: the process ends with ``os._exit``.
"""

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from coffer_common import forkproto, frames
from coffer_common.forkproto import Boot
from coffer_common.proctree import Proc, descendants, kill_until_gone, snapshot
from coffer_common.resources import HttpServer
from coffer_worker import discretion
from coffer_worker.control import ControlThread, Figures
from coffer_worker.link import Link
from coffer_worker.log import MASK
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
    orders = Orders(boot.name, runner, post)
    control = ControlThread(
        boot.name, link, lifeline, loop, deliver=orders.deliver, figures=orders.figures, kill=_kill_below
    )
    control.start()
    loop.add_signal_handler(signal.SIGTERM, runner.stop, 0.0, "the worker was told to end")
    await runner.finished.wait()
    bulk.close()
    await asyncio.to_thread(control.finish, _FINISH_SECONDS)
    await asyncio.to_thread(link.close)
    return orders.code


class Orders:
    """Control frames on their way to the runner. A Configure that it cannot use ends the worker, with a word: half
    configured it would live on, answer nothing, and be taken for stuck."""

    def __init__(self, name: str, runner: Runner, post: Callable[[Any], None]) -> None:
        self._name, self._runner, self._post = name, runner, post
        self.code = 0

    def deliver(self, frame: Any) -> None:
        """One control frame; on the loop."""
        try:
            self._runner.control(frame)
        except Exception as error:
            if not isinstance(frame, frames.Configure):
                raise
            self.code = forkproto.EXIT_UNCONFIGURED
            self._post(frames.State("failed", self._word(frame, error)))
            self._runner.finished.set()

    def figures(self) -> Figures:
        """The runner's, where it has any."""
        return Figures(state="failed") if self.code else self._runner.figures()

    def _word(self, frame: frames.Configure, error: Exception) -> str:
        """What went wrong, without secrets; where, goes to standard error."""
        config = frame.config
        told = (config.url, *config.headers.values()) if isinstance(config, HttpServer) else tuple(config.env.values())
        text = f"{type(error).__name__}: {error}"
        for secret in discretion.spellings((*frame.secrets, *told)):
            text = text.replace(secret, MASK)
        print(f"coffer-worker '{self._name}': Configure failed: {text}", file=sys.stderr)
        traceback.print_tb(error.__traceback__)
        return (
            f"Upstream '{self._name}' cannot be started: its worker does not take the configuration ({text}). "
            f"That is a fault of Coffer's, which another configuration may go round: coffer mcp update {self._name}"
        )


def _kill_below() -> None:
    """SIGKILL everything below this process; from any thread."""
    me = os.getpid()

    def below() -> list[Proc]:
        return descendants(me, snapshot())

    kill_until_gone(below, seconds=_FINISH_SECONDS)
