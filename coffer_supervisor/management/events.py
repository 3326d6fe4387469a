"""``GET /events``: how the servers are, and then what changes, as server-sent events.

Owns the comparison of now with what was last told. First comes ``state`` (all rows of ``/ps``), then a ``server`` event
for each row that differs and ``removed`` for one that is gone, and, where wished, what came into the logs (``news``);
a comment where nothing changed for long. Figures that grow by themselves are no change.
Source of the form: HTML Living Standard, Server-sent events.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import msgspec
from msgspec.structs import replace

from coffer_common.api import PsList, PsRow, ServerRemoved
from coffer_supervisor.management import ps
from coffer_supervisor.management.news import News
from coffer_supervisor.management.queries import EVENT_LOGS
from coffer_supervisor.management.request import Answer, Management, Request, Stream

LOOK_SECONDS: Final = 1.0
"""Figures come with heartbeats, which are a second apart."""
SPARE_SECONDS: Final = 0.25
"""Between two looks at the least, however much happens."""
QUIET_SECONDS: Final = 15.0
_COMMENT: Final = b": nothing changed\n\n"


async def follow(request: Request) -> Answer:
    """How the servers are, then what changes, until the client leaves or the daemon does.

    ``?logs=`` adds new rows of those logs, ``?server_log=`` new lines of that server's.
    """
    wanted = request.word("logs", EVENT_LOGS)
    server = request.query.get("server_log")
    if server is not None:
        await request.management.store.resources.get("mcp_server", server)
    news = News(
        request.management,
        invocations=wanted in ("invocations", "all"),
        audit=wanted in ("audit", "all"),
        server_log=server,
    )
    await news.take()  # what is there already is no news
    return Stream("text/event-stream", _events(request.management, news))


async def _events(management: Management, news: News) -> AsyncGenerator[bytes, None]:
    loop = asyncio.get_running_loop()
    rows = await ps.rows(management)
    yield _event("state", PsList(workers=rows))
    shown = {row.name: _lasting(row) for row in rows}
    told = loop.time()
    while not management.router.closed:
        began = loop.time()
        await management.supervision.pulse.until(_Look(), began + LOOK_SECONDS)
        await asyncio.sleep(max(0.0, began + SPARE_SECONDS - loop.time()))
        rows = await ps.rows(management)
        changes = [_event("server", row) for row in rows if shown.get(row.name) != _lasting(row)]
        gone = shown.keys() - {row.name for row in rows}
        changes += [_event("removed", ServerRemoved(name=name)) for name in sorted(gone)]
        shown = {row.name: _lasting(row) for row in rows}
        changes += [_event(name, shape) for name, shape in await news.take()]
        if changes:
            told = loop.time()
            yield b"".join(changes)
        elif loop.time() - told >= QUIET_SECONDS:
            told = loop.time()
            yield _COMMENT


class _Look:
    """False when first asked, true then: for waiting for whatever happens next."""

    def __init__(self) -> None:
        self._asked = False

    def __call__(self) -> bool:
        asked, self._asked = self._asked, True
        return asked


def _lasting(row: PsRow) -> PsRow:
    """A row without what grows by itself."""
    upstreams = [replace(process, cpu_seconds=round(process.cpu_seconds, 1)) for process in row.upstreams]
    return replace(row, up_seconds=None, loop_lag=None, retry_in=None, upstreams=upstreams)


def _event(name: str, shape: msgspec.Struct) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(shape))
