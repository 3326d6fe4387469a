"""Through the whole table: each client, each upstream, each kind of exchange; then the bystanders are asked."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from tests.matrix import stage
from tests.matrix.features import FEATURES
from tests.matrix.stage import Backend, Bystanders, Seat
from tests.support.daemon import Daemon

SECONDS = 30.0
SEATS = tuple((era, way) for era in stage.ERAS for way in stage.WAYS)
Cell = tuple[str, str, str, str, str]


@dataclass
class Table:
    """What failed, by cell (client era, way, upstream era, pipe, kind); what was tried; what a bystander saw."""

    tried: list[Cell] = field(default_factory=list)
    failed: dict[Cell, str] = field(default_factory=dict)
    overheard: list[str] = field(default_factory=list)


async def _cell(table: Table, seat: Seat, backend: Backend, kind: str, others: Bystanders) -> None:
    cell = (seat.era, seat.way, backend.era, backend.pipe, kind)
    table.tried.append(cell)
    try:
        async with asyncio.timeout(SECONDS):
            await FEATURES[kind](seat, backend)
    except Exception as error:
        text = str(error) or repr(error)
        inner = getattr(error, "exceptions", ())
        table.failed[cell] = f"{type(error).__name__}: {'; '.join(map(repr, inner)) or text}"
    if saw := others.complaint():
        table.overheard.append(f"{' '.join(cell)}: {saw}")
        others.forget()


async def _through(
    daemon: Daemon,
    backends: list[Backend],
    token: str,
    kinds: Collection[str],
    seats: Collection[tuple[stage.Era, str]],
) -> Table:
    table = Table()
    async with stage.bystanders(daemon, token) as others:
        for era, way in seats:
            async with stage.seat(daemon, era, way) as seat:
                for backend in backends:
                    for kind in kinds:
                        await _cell(table, seat, backend, kind, others)
        if "list_changed" in kinds and not others.neighbour.heard:
            table.overheard.append("the bystander heard of no list change at all, so its silence proves nothing")
    return table


def everything(
    daemon: Daemon,
    folder: Path,
    kinds: Collection[str] = tuple(FEATURES),
    seats: Collection[tuple[stage.Era, str]] = SEATS,
) -> Table:
    """Run the table against a daemon that runs and has no servers yet; logs go to `folder`."""
    with stage.backends(folder) as found:
        token = stage.prepare(daemon, found, folder)
        backends = [backend for backend, _ in found.values()]
        return asyncio.run(_through(daemon, backends, token, kinds, seats))
