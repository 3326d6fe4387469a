"""The benchmark runs and finds nothing wrong; how fast it is, is for people to judge."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.upstreams import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.alone]


@pytest.mark.timeout(240)
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory is read from /proc")
def test_bench_answers_belong_to_their_calls_and_rows_equal_calls(tmp_path: Path) -> None:
    """Every way is measured, each answer is its own call's, and each call through Coffer has one row."""
    out = tmp_path / "bench.json"
    command = [sys.executable, "-m", "bench", "--quick", "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=220, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["faults"] == []
    assert set(found["loads"]) == {"direct", "relay", "http", "shim", "url", "http-url"}
    assert found["figures"]["rows"] == found["figures"]["calls"] > 0
    assert len(found["targets"]) >= 12
