"""`python -m tests.fault.suite [WORD ...]`: play the cases (those whose names hold a word), and write the page.

The page is written by a whole run, or to `--out`; `--again` plays the named cases once more and puts them into what
the last whole run found (kept in build/faults.json). Exit code 1 where something does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import msgspec

from tests.fault.suite import report
from tests.fault.suite.faults import CASES
from tests.fault.suite.measure import Row
from tests.fault.suite.play import play
from tests.fault.suite.stage import RATE, SECONDS
from tests.support.upstreams import ROOT

KEPT = ROOT / "build" / "faults.json"


def _kept() -> dict[str, Row]:
    """What the last whole run found, by name."""
    rows = msgspec.json.decode(KEPT.read_bytes(), type=list[Row])
    return {row.name: row for row in rows}


def main() -> int:
    """Play and report."""
    parser = argparse.ArgumentParser(prog="tests.fault.suite", description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    cases = [case for case in CASES if not options.words or any(word in case.name for word in options.words)]
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    out = options.out or (None if options.words and not options.again else ROOT / "docs" / "faults.md")
    before = _kept() if options.again else {}

    def write(rows: list[Row]) -> None:
        if out is None:
            if len(rows) == len(cases):
                print(report.page(rows, rate=RATE, seconds=SECONDS))
            return
        found = {**before, **{row.name: row for row in rows}}
        ordered = [found[case.name] for case in CASES if case.name in found]
        out.write_text(report.page(ordered, rate=RATE, seconds=SECONDS, of=len(CASES)), encoding="utf-8")
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_bytes(msgspec.json.encode(ordered))

    rows = asyncio.run(play(cases, calm=SECONDS / 3, stormy=SECONDS * 2 / 3, played=write))
    for row in rows:
        if row.faults:
            print(f"{row.name}: {'; '.join(row.faults)}", file=sys.stderr)
    return 1 if any(row.faults for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
