"""`make conformance`: both sides of the suite, everything printed. `python -m tests.conformance [server] [client]`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.conformance import client_side, server_side
from tests.conformance.install import NoSuite, installed


def main() -> int:
    """0 only where nothing was lost."""
    parser = argparse.ArgumentParser(prog="conformance", description=__doc__)
    parser.add_argument("sides", nargs="*", choices=("server", "client", []), help="default: both")
    parser.add_argument("--out", type=Path, help="keep each run's checks here")
    options = parser.parse_args()
    sides = options.sides or ["server", "client"]
    try:
        suite = installed()
    except NoSuite as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    lost = 0
    with tempfile.TemporaryDirectory() as scratch:
        out = options.out or Path(scratch)
        if "server" in sides:
            for finding in server_side.findings(suite, out):
                print(finding, flush=True)
                lost += len(finding.verdict.lost)
        if "client" in sides:
            for outcome in client_side.outcomes(suite, out):
                print(outcome, flush=True)
                lost += not outcome.good
            print(client_side.left_out(), flush=True)
    print("nothing is lost" if not lost else f"{lost} lost")
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
