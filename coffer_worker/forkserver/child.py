"""What a fresh fork does before it is a worker.

Owns letting go of all that belongs to the fork server, and the process's own marks: group, subreaper,
title, short name. Never returns to the fork server's loop.
"""

import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Final, NoReturn

import setproctitle

from coffer_common.forkproto import Fork
from coffer_common.subreaper import become_subreaper

EXIT_FAILED_TO_START: Final = 70
"""Exit code of a worker whose target could not be imported, raised, or returned nothing meaningful."""

_COMM_LENGTH: Final = 15
_RESET: Final = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

WorkerMain = Callable[[bytes, int], int | None]


def become_worker(order: Fork, lifeline: int, close: Iterable[int]) -> NoReturn:
    """Turn this process, just forked, into the worker of ``order``; ends with ``os._exit``.

    ``close``: descriptors of the fork server. Nothing of the fork server's clean-up may run here, so
    whatever happens, the process ends here and not by an exception.
    """
    code = EXIT_FAILED_TO_START
    try:
        _let_go(close)
        _mark(order)
        gc.enable()
        code = find_target(order.target)(order.opaque, lifeline) or 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else EXIT_FAILED_TO_START
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            _flush(stream)
        os._exit(code & 0xFF)


def find_target(dotted: str) -> WorkerMain:
    """The function that ``module:function`` names. Raises ImportError or AttributeError naming it."""
    module, _, function = dotted.partition(":")
    target: WorkerMain = getattr(importlib.import_module(module), function)
    return target


def _let_go(close: Iterable[int]) -> None:
    signal.set_wakeup_fd(-1)
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    for fd in close:
        os.close(fd)
    # A group of its own: a signal meant for one worker's group reaches no other.
    os.setpgid(0, 0)
    become_subreaper()


def _mark(order: Fork) -> None:
    # CPython reseeds `random`, and OpenSSL its generator, after a fork by themselves.
    setproctitle.setproctitle(order.title)
    setproctitle.setthreadtitle(f"cw/{order.name}"[:_COMM_LENGTH])


def _flush(stream: object) -> None:
    try:
        stream.flush()  # type: ignore[attr-defined]
    except (OSError, ValueError, AttributeError):
        return
