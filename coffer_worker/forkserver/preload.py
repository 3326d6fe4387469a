"""What the fork server imports once for all workers.

Owns the list, and freezing the result. Never starts a thread, an event loop or a ZeroMQ context: a fork
copies only the calling thread, and locks another one holds would stay locked for ever.
"""

import gc
import importlib
import threading
from typing import Final

MODULES: Final = ("coffer_worker.__main__", "uvloop", "psutil", "msgspec", "zmq")
"""The worker's entry brings all that its rooms import; beside it stands what they import only when it is
needed. What no worker uses is left out: the first worker would pay for it with half its memory."""


def preload() -> None:
    """Import, collect, freeze. Raises RuntimeError if an import started a thread."""
    gc.disable()
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    assert_forkable()


def assert_forkable() -> None:
    """Raise RuntimeError unless this process has one thread and no ZeroMQ context."""
    running = threading.active_count()
    if running != 1:
        names = ", ".join(sorted(thread.name for thread in threading.enumerate()))
        raise RuntimeError(f"the fork server must have one thread to fork safely; it has {running}: {names}")
    zmq = importlib.import_module("zmq")
    if zmq.Context._instance is not None:
        raise RuntimeError("an import made a ZeroMQ context; its threads do not survive a fork")
