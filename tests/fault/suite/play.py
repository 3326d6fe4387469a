"""Plays cases: one after another on a stage that they share, or on one of their own."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.fault.suite.case import Case
from tests.fault.suite.faults import machine
from tests.fault.suite.measure import TIMES, Row
from tests.fault.suite.stage import Stage

SLACK_MS = 1.0
"""Less than this is the machine's noise."""
ATTEMPTS = 3
"""How often a case is played whose only fault is a time; the report says which attempt held."""
CASE_SECONDS = 240.0


async def play(
    cases: Iterable[Case],
    *,
    calm: float,
    stormy: float,
    slack: float = SLACK_MS,
    played: Callable[[list[Row]], None] = lambda rows: None,
) -> list[Row]:
    """The rows, in order; ``played`` is given those so far after each. A stage that a case broke is thrown away."""
    rows: list[Row] = []
    shared: Stage | None = None
    try:
        for case in cases:
            print(f"{case.name} ...", file=sys.stderr, flush=True)
            for attempt in range(1, ATTEMPTS + 1):
                if case.own_daemon or shared is None:
                    stage = await _stage(case, calm, stormy)
                    shared = shared if case.own_daemon else stage
                else:
                    stage = shared
                row = await _one(stage, case, slack)
                row.attempts = attempt
                if case.own_daemon or row.faults:
                    await _away(stage)
                    shared = None if stage is shared else shared
                if not row.faults or not all(fault.startswith(TIMES) for fault in row.faults):
                    break
            rows.append(row)
            played(rows)
            print(f"    {'; '.join(row.faults) or 'as it should be'}", file=sys.stderr, flush=True)
    finally:
        if shared is not None:
            await _away(shared)
    return rows


async def _stage(case: Case, calm: float, stormy: float) -> Stage:
    folder = Path(tempfile.mkdtemp(prefix="cfs-", dir="/tmp"))
    daemon = machine.daemon_for(case.name if case.own_daemon else "", folder)
    stage = Stage(folder, daemon, calm=calm, stormy=stormy)
    try:
        await stage.start()
    except BaseException:
        await _away(stage)
        raise
    return stage


async def _away(stage: Stage) -> None:
    try:
        await stage.stop()
    finally:
        machine.remove(stage.daemon)
        shutil.rmtree(stage.folder, ignore_errors=True)


async def _one(stage: Stage, case: Case, slack: float) -> Row:
    row = Row(case.name, case.kind)
    try:
        async with asyncio.timeout(CASE_SECONDS):
            await stage.prepare(row)
            await stage.begin_load()
            try:
                await case.play(stage)
            finally:
                await stage.end_load()
            await stage.finish()
        row.judge(slack)
    except Exception as error:
        row.faults.append(f"{type(error).__name__}: {str(error)[:1500]}")
        traceback.print_exc()
    return row
