"""Nothing that the official conformance suite finds in a server is lost behind the gateway, and the gateway is as good
a client as the best. Fails, never skips, where the suite or its Node cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import client_side, server_side
from tests.conformance.gateway import reference
from tests.conformance.install import Suite, installed
from tests.conformance.suite import Run

pytestmark = [pytest.mark.conformance, pytest.mark.slow]


@pytest.fixture(scope="session")
def suite() -> Suite:
    return installed()


@pytest.fixture(scope="session")
def direct(suite: Suite, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    with reference() as url:
        return server_side.direct_runs(suite, url, tmp_path_factory.mktemp("direct"))


@pytest.mark.alone
@pytest.mark.timeout(240)
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_nothing_that_succeeds_directly_is_lost(
    suite: Suite, direct: dict[str, Run], tmp_path: Path, transport: str
) -> None:
    """Check by check, in both eras, alone and four at once; over stdio one check is allowed that no pipe can pass."""
    found = list(server_side.findings(suite, tmp_path, (transport,), direct=direct, short=True))
    assert len(found) == 6
    assert not [str(finding) for finding in found if finding.verdict.lost]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("scenario", "wire"), list(client_side.SCENARIOS))
def test_the_upstream_side_is_a_conforming_client(suite: Suite, tmp_path: Path, scenario: str, wire: str) -> None:
    """Each scenario's mock is the gateway's upstream; its checks are the judge, and all of them are reached."""
    outcome = client_side.outcome(suite, scenario, wire, tmp_path)
    assert outcome.good, str(outcome)


@pytest.mark.timeout(120)
def test_the_upstream_side_logs_in_as_it_should(suite: Suite, tmp_path: Path) -> None:
    """Coffer as an OAuth client, with a person who says yes: registered beforehand, described by a document, or by
    itself; wider scopes on demand; nothing of one authorization server shown to another, nor to a false one."""
    found = list(client_side.logins(suite, tmp_path, client_side.FEW_LOGINS))
    assert [str(one) for one in found if not one.good] == []
    assert len(found) == len(client_side.FEW_LOGINS)
