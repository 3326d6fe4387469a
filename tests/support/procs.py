"""Processes seen from outside: who lives, whose child, who belongs to a COFFER_HOME.

Reads only; ending processes is the business of whoever started them (and of `leaks`, for what was left).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import psutil

from tests.support.wait import wait_until


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def all_gone(pids: Iterable[int], bound: float = 10.0) -> None:
    """Wait until none of these processes lives."""
    pids = list(pids)
    wait_until(lambda: not [p for p in pids if alive(p)], bound, lambda: f"end of {[p for p in pids if alive(p)]}")


def descendants(pid: int) -> list[psutil.Process]:
    """Everything below a process, by parent pids."""
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def of_home(home: Path) -> list[psutil.Process]:
    """Every process whose environment or command line names this COFFER_HOME, but for ourselves."""
    found, text = [], str(home)
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            in_environment = process.environ().get("COFFER_HOME") == text
            named = any(text in part for part in process.cmdline())
            if (in_environment or named) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def titled(home: Path, start: str) -> list[psutil.Process]:
    """Processes of this COFFER_HOME (and what they started) whose title begins with `start`."""
    found: dict[int, psutil.Process] = {}
    for process in of_home(home):
        for one in (process, *descendants(process.pid)):
            found[one.pid] = one
    out = []
    for process in found.values():
        try:
            if " ".join(process.cmdline()).startswith(start):
                out.append(process)
        except psutil.NoSuchProcess:
            continue
    return sorted(out, key=lambda process: process.pid)


def open_files(pid: int | None = None) -> dict[int, str]:
    """The open descriptors of a process (ours by default) and what each is."""
    folder = f"/proc/{pid or os.getpid()}/fd"
    if not os.path.isdir(folder):
        return {}
    seen = {}
    for name in os.listdir(folder):
        try:
            seen[int(name)] = os.readlink(f"{folder}/{name}")
        except OSError:
            continue
    return seen


def pss(pid: int) -> int:
    """Proportional set size in bytes (Linux)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no Pss of {pid}")
