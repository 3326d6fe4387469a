"""Writes what a run came to as a page: the table people can quote, and what it means."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

from tests.fault.suite.measure import RATIO, RECOVERY_SECONDS, Row

HEAD = """# Faults

`make fault` wrote this page. It breaks one thing at a time on a running daemon while three healthy upstreams serve
{rate:.0f} calls a second in all. The load is open: every call is sent when it is due, whatever became of the ones
before, and its latency counts from that moment. Each of its three clients has 64 connections at the most, as an HTTP
client has; a call that finds none free within 5 s has failed. Of each case's {seconds:.0f} s a third is calm; then the
fault begins.

- **seen by its callers**: what became of calls to the faulty upstream, and after how long. The upstream of these runs
  has short limits (start 3 s, idle 2 s, total 6 s).
- **p99 before, during**: of calls to the healthy upstreams, in milliseconds. While another upstream misbehaves it may
  grow by {ratio:g} at the most, and no call may fail.
- **back**: for faults of Coffer itself and for bursts of clients, how long after the kill (or the daemon's new start,
  the going on of what was stopped, the end of the burst) every healthy call was answered as before; {recovery:g} s at
  the most.
- **left**: processes, records and the daemon's descriptors that were left when the upstream had been removed.

{machine}. {verdict}

"""


def page(rows: Sequence[Row], *, rate: float, seconds: float, of: int | None = None) -> str:
    """The page in Markdown. ``of``: how many cases there are, where not all were played."""
    bad = [row for row in rows if row.faults]
    verdict = f"{len(rows)} cases, all as they should be."
    if bad:
        verdict = f"**{len(bad)} of {len(rows)} cases failed.**"
    if of is not None and of > len(rows):
        verdict += f" (The run was ended before the other {of - len(rows)}.)"
    facts = {"rate": rate, "seconds": seconds, "ratio": RATIO, "recovery": RECOVERY_SECONDS}
    parts = [HEAD.format(**facts, machine=_machine(), verdict=verdict)]
    parts.append("| fault | seen by its callers | p99 before | p99 during | ratio | back | left | holds |\n")
    parts.append("|---|---|---:|---:|---:|---:|---|---|\n")
    parts.extend(_line(row) for row in rows)
    notes = [f"- {row.name}: {'; '.join(note for note in row.notes if note)}.\n" for row in rows if any(row.notes)]
    if notes:
        parts += ["\n## What else was seen\n\n", *notes]
    if bad:
        parts.append("\n## What does not hold\n\n")
        parts += [f"- {row.name}: {'; '.join(row.faults)}.\n" for row in bad]
    return "".join(parts)


def _line(row: Row) -> str:
    before, during = row.before, row.during
    if before is None or during is None:
        return f"| {row.name} | | | | | | | **no** |\n"
    outage = row.outage
    cells = [
        row.name,
        "; ".join(row.seen) or "(nobody called it)",
        f"{before.p99:.1f}",
        "" if row.kind == "coffer" else f"{during.p99:.1f}",
        "" if outage else f"{row.ratio:.2f}",
        (f"{row.back:.2f} s" if row.back is not None else "never") if outage else "",
        "; ".join(row.left) or "nothing",
        ("yes" if row.attempts == 1 else f"yes (attempt {row.attempts})") if not row.faults else "**no**",
    ]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"


def _machine() -> str:
    system = f"{platform.system()} {platform.release()}"
    return f"Measured on {os.cpu_count()} cores, {system}, Python {platform.python_version()}"
