"""What the fork server imports once for all workers.

Owns the list, and freezing the result. Never starts a thread, an event loop or a ZeroMQ context: a fork
copies only the calling thread, and locks another one holds would stay locked for ever.
"""

import gc
import importlib
import importlib.util
import threading
from typing import Final

MODULES: Final = (
    "asyncio",
    "msgspec",
    "zmq",
    "uvloop",
    "psutil",
    "httpx2",
    "mcp",
)
WORKER_MAIN: Final = "coffer_worker.__main__"


def preload() -> None:
    """Import, collect, freeze. Raises RuntimeError if an import started a thread."""
    gc.disable()
    for name in MODULES:
        importlib.import_module(name)
    if importlib.util.find_spec(WORKER_MAIN) is not None:
        importlib.import_module(WORKER_MAIN)
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
