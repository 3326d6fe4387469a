"""`make matrix`: run the table and write docs/matrix.md.

Exits with 1 where a cell fails or a bystander saw something.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.matrix.page import page
from tests.matrix.run import everything
from tests.support.daemon import Daemon
from tests.support.upstreams import ROOT

PAGE = ROOT / "docs" / "matrix.md"


def main() -> int:
    """Run, write, say what failed."""
    daemon = Daemon().start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            table = everything(daemon, Path(folder))
    finally:
        daemon.close()
    PAGE.write_text(page(table), encoding="utf-8")
    for cell, why in table.failed.items():
        print(f"fails: {' '.join(cell)}: {why}")
    for line in table.overheard:
        print(f"overheard: {line}")
    print(f"{len(table.tried)} cells, {len(table.failed)} fail; written to {PAGE.relative_to(ROOT)}")
    return int(bool(table.failed or table.overheard))


if __name__ == "__main__":
    sys.exit(main())
