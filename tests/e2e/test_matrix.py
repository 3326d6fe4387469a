"""Everything that clients and servers exchange works in every pairing of eras and transports, and concerns nobody else.

The table: {legacy, modern} client x {HTTP, shim} x {legacy, modern} server x {stdio, HTTP} x 12 kinds of exchange.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.matrix.__main__ import PAGE
from tests.matrix.features import FEATURES
from tests.matrix.page import page
from tests.matrix.run import everything
from tests.support.daemon import Daemon

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore:.*removed as of 2026-07-28.*")
def test_every_exchange_in_every_pairing(daemon: Daemon, tmp_path: Path) -> None:
    """E, V, L, R, H: nonces both ways, seen at both ends; bystanders see nothing; docs/matrix.md says the same."""
    table = everything(daemon, tmp_path)
    assert table.failed == {}
    assert table.overheard == []
    assert len(table.tried) == len(set(table.tried)) == 16 * len(FEATURES) == 192
    assert PAGE.read_text(encoding="utf-8") == page(table), "docs/matrix.md is old: run `make matrix`"
