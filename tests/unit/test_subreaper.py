"""coffer_common.subreaper, and what must hold before the fork server forks."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from coffer_common import subreaper
from coffer_worker.forkserver.preload import assert_forkable

SCRIPT = """
import os
from coffer_common.subreaper import become_subreaper, is_subreaper
before = is_subreaper()
assert become_subreaper()
middle = is_subreaper()
if os.fork() == 0:
    os._exit(int(is_subreaper()))
_, status = os.wait()
print(before, middle, os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_it_is_set_and_not_inherited_over_fork() -> None:
    found = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True)
    assert found.stdout.split() == ["False", "True", "0"]


def test_elsewhere_it_says_that_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not subreaper.become_subreaper()
    assert not subreaper.is_subreaper()


def test_a_refusal_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subreaper, "_PR_SET_CHILD_SUBREAPER", 99999)
    with pytest.raises(OSError, match="cannot become a child subreaper"):
        subreaper.become_subreaper()


def test_a_second_thread_forbids_forking() -> None:
    """A lock that another thread holds would stay locked in the child for ever."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="in-the-way")
    thread.start()
    try:
        with pytest.raises(RuntimeError, match="in-the-way"):
            assert_forkable()
    finally:
        over.set()
        thread.join()


def test_a_zmq_context_forbids_forking() -> None:
    script = (
        "import zmq\nfrom coffer_worker.forkserver.preload import assert_forkable, preload\npreload()\n"
        "zmq.Context.instance()\ntry:\n    assert_forkable()\nexcept RuntimeError as error:\n    print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert "ZeroMQ" in found.stdout
