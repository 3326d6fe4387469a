"""Tests that leave something behind fail: child processes, processes of their COFFER_HOME, descriptors.

The fixture `no_leaks` is on for every test (tests/conftest.py). It ends what it found, so that one leak does
not fail the tests that follow.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import procs
from tests.support.wait import NotReached, wait_until

# What libraries open once and keep: not the test's leak.
KEPT = ("/dev/", "anon_inode:[eventpoll]", "/proc/", "/sys/")


def kill_all(processes: list[psutil.Process]) -> None:
    """SIGKILL each process and wait for it."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, timeout=5)


def children() -> list[psutil.Process]:
    """Our living children and theirs."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def describe(process: psutil.Process) -> str:
    """A line for the failure message."""
    try:
        return f"{process.pid} {process.status()} {' '.join(process.cmdline())[:160]}"
    except psutil.NoSuchProcess:
        return f"{process.pid} (gone meanwhile)"


def descriptors() -> dict[int, str]:
    """Open descriptors that a test could have leaked."""
    return {fd: what for fd, what in procs.open_files().items() if not what.startswith(KEPT)}


def check_processes(before: set[int], homes: list[Path]) -> list[str]:
    """What lives that should not; it is killed."""

    def left() -> list[psutil.Process]:
        own = [process for process in children() if process.pid not in before]
        for home in homes:
            own.extend(process for process in procs.of_home(home) if process.pid not in before)
        return list({process.pid: process for process in own}.values())

    try:
        wait_until(lambda: not left(), bound=3)
    except NotReached:
        found = left()
        texts = [describe(process) for process in found]
        kill_all(found)
        return texts
    return []


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves processes or descriptors behind; `@pytest.mark.leaky` is not offered."""
    processes = {process.pid for process in children()}
    before = descriptors()
    homes: list[Path] = request.config.stash.setdefault(HOMES, [])
    homes.clear()
    yield
    found = check_processes(processes, homes)
    if len(descriptors()) > len(before):
        gc.collect()  # garbage may hold the last reference to a socket or pipe whose owner is gone

    def more() -> dict[int, str]:
        return {fd: what for fd, what in descriptors().items() if before.get(fd) != what}

    try:
        wait_until(lambda: len(descriptors()) <= len(before) or not more(), bound=2)
    except NotReached:
        found.extend(f"descriptor {fd}: {what}" for fd, what in more().items())
    if found:
        pytest.fail(f"{request.node.name} (pid {os.getpid()}) left behind:\n  " + "\n  ".join(found))


HOMES = pytest.StashKey[list[Path]]()
