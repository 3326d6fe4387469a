"""The log files of servers that are no longer registered: kept as long as calls are, then removed.

Owns which files those are. Never touches the log of a registered server (its worker rotates that), nor one that was
written to within the time.
"""

import asyncio
import re
from collections.abc import Set
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from coffer_common import clock
from coffer_supervisor.store import Store

_NAME: Final = re.compile(r"upstream-(.+)\.log(\.\d+)?")


async def remove(store: Store, logs: Path) -> int:
    """How many files went. By the policy of ``mcp_invocations``, which is about the same servers. Raises StoreError."""
    policies = {policy.table: policy.days for policy in await store.retention.list()}
    days = policies["mcp_invocations"]
    if days is None:
        return 0
    known = {one.name for one in await store.resources.list("mcp_server")}
    known |= {one.name for one in await store.resources.unreadable()}
    return await asyncio.to_thread(sweep, logs, known, clock.now() - timedelta(days=days))


def sweep(logs: Path, known: Set[str], until: datetime) -> int:
    """Removes the logs below ``logs`` of servers that are not ``known``, last written before ``until``. Blocks."""
    gone = 0
    for path in logs.glob("upstream-*"):
        found = _NAME.fullmatch(path.name)
        try:
            if found and found.group(1) not in known and path.stat().st_mtime < until.timestamp():
                path.unlink()
                gone += 1
        except OSError:
            continue  # gone meanwhile, or not ours to remove: the next time will show
    return gone
