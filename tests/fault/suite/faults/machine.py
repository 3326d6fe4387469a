"""The machine under Coffer: a full disk, a locked or corrupt database, a wall clock that jumps."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import struct
import subprocess
import time
from pathlib import Path

from tests.fault.suite.case import Cases
from tests.fault.suite.stage import Stage
from tests.support.daemon import Daemon
from tests.support.wait import wait_for

CASES = Cases()
CLOCK_SOURCE = Path(__file__).parent / "clock.c"


def _rows(stage: Stage) -> int:
    database = sqlite3.connect(f"file:{stage.daemon.home}/coffer.db?mode=ro", uri=True)
    try:
        return int(database.execute("SELECT count(*) FROM mcp_invocations").fetchone()[0])
    finally:
        database.close()


@CASES("database locked for 8 s", "upstream", own_daemon=True)
async def locked(stage: Stage) -> None:
    await stage.victim()
    async with stage.fault(least=10):
        database = sqlite3.connect(stage.daemon.home / "coffer.db", isolation_level=None)
        database.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        while time.monotonic() - began < 8:
            await stage.burst(2)
            await asyncio.sleep(0.2)
        database.execute("COMMIT")
        database.close()
        stage.expect("ok")
        stage.within(1)
    wanted = sum(call.outcome == "ok" for call in stage.calls()) + len(stage.seen)
    await stage.end_load()
    wanted = sum(call.outcome == "ok" for call in stage.calls()) + len(stage.seen)
    await wait_for(lambda: _rows(stage) >= wanted, 15, lambda: f"{wanted} rows of calls; there are {_rows(stage)}")
    stage.note(f"all {wanted} calls are in the log")


@CASES("disk full", "upstream", own_daemon=True)
async def full(stage: Stage) -> None:
    await stage.victim()
    filler = stage.daemon.home / "filler"
    async with stage.fault():
        if os.path.ismount(stage.daemon.home):
            how = "the file system of the home had no free byte"
            with open(filler, "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"x" * 65536)
                except OSError:
                    pass
        else:
            import psutil

            how = "no file could grow (RLIMIT_FSIZE)"
            psutil.Process(stage.pid).rlimit(psutil.RLIMIT_FSIZE, (1, -1))
        end = time.monotonic() + stage.stormy - 1
        while time.monotonic() < end:
            await stage.burst(2)
            await asyncio.sleep(0.2)
        stage.expect("ok")
        stage.within(1)
        refused = await asyncio.to_thread(stage.daemon.cli, "mcp", "disable", "calm1")
        stage.note(f"{how}; `coffer mcp disable` said: {_first_line(refused.stderr or refused.stdout)}")
        if refused.returncode == 0 and os.path.ismount(stage.daemon.home):
            await asyncio.to_thread(stage.daemon.cli, "mcp", "enable", "calm1")
        if os.path.ismount(stage.daemon.home):
            filler.unlink()
        else:
            psutil.Process(stage.pid).rlimit(psutil.RLIMIT_FSIZE, (-1, -1))
    before = _rows(stage)
    await stage.burst(2)
    await wait_for(lambda: _rows(stage) > before, 15, "rows to be written again")
    stage.note("rows are written again once there is room")


@CASES("database corrupt", "upstream", own_daemon=True)
async def corrupt(stage: Stage) -> None:
    await stage.victim()
    path = stage.daemon.home / "coffer.db"
    async with stage.fault():
        _corrupt(path)
        kept = path.read_bytes()[4096:8192]
        end = time.monotonic() + stage.stormy - 1
        while time.monotonic() < end:
            await stage.burst(2)
            await asyncio.sleep(0.2)
        stage.expect("ok")
        stage.within(1)
        refused = await asyncio.to_thread(stage.daemon.cli, "mcp", "disable", "calm1")
        stage.removable = False  # nothing can be removed from such a database; the daemon's end takes it along
        stage.note(f"calls go on; `coffer mcp disable` said: {_first_line(refused.stderr)}")
        if refused.returncode == 0:
            stage.row.faults.append("a change of the configuration seemed to succeed")
    if not path.exists() or path.read_bytes()[4096:8192] != kept:
        stage.row.faults.append("the corrupt file was overwritten")


def _corrupt(path: Path) -> None:
    """Random bytes for all but the first page, and no page left in anybody's cache: another wrote in between."""
    database = sqlite3.connect(path, isolation_level=None, timeout=10)
    database.execute("CREATE TABLE passing (a)")
    database.execute("DROP TABLE passing")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with open(path, "r+b") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    database.close()


@CASES("wall clock jumps by a day, back and forth", "upstream", own_daemon=True)
async def clock_jumps(stage: Stage) -> None:
    await stage.victim()
    offset = stage.daemon.home / "clock-offset"
    if not offset.exists():
        stage.note("not played: it needs a C compiler for the library that stands between Coffer and its clock")
    restarts = {row["name"]: row["restarts"] for row in stage.daemon.api("GET", "/ps")["workers"]}
    async with stage.fault():
        for hours in (24, -24, 24 * 365, 0):
            if offset.exists():
                _set(offset, hours * 3600.0)
            for _ in range(4):
                await stage.burst(2)
                await asyncio.sleep(stage.stormy / 20)
        stage.expect("ok")
        stage.within(1)
        rows = stage.daemon.api("GET", "/ps")["workers"]
        again = [row["name"] for row in rows if row["restarts"] > restarts[row["name"]]]
        if again:
            stage.row.faults.append(f"restarted for nothing: {', '.join(again)}")
        elif offset.exists():
            stage.note("no worker was replaced")


def _set(path: Path, seconds: float) -> None:
    with open(path, "r+b") as file:
        file.write(struct.pack("d", seconds))


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "nothing")


def clock_of(folder: Path, home: Path) -> dict[str, str]:
    """The environment that puts the daemon's wall clock into our hands; empty without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    library, offset = folder / "clock.so", home / "clock-offset"
    if compiler is None:
        return {}
    made = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(CLOCK_SOURCE)], capture_output=True, check=False
    )
    if made.returncode != 0:
        return {}
    offset.write_bytes(struct.pack("d", 0.0))
    return {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(offset)}


def daemon_for(name: str, folder: Path) -> Daemon:
    """The daemon that a case with needs of its own gets."""
    daemon = Daemon()
    if name.startswith("wall clock"):
        daemon.extra_env = clock_of(folder, daemon.home)
    if name.startswith("disk full"):
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "tmpfs", str(daemon.home)],
            capture_output=True,
            check=False,
        )
    return daemon


def remove(daemon: Daemon) -> None:
    """Take away what `daemon_for` made."""
    if os.path.ismount(daemon.home):
        subprocess.run(["umount", str(daemon.home)], check=False)
    shutil.rmtree(daemon.home, ignore_errors=True)
