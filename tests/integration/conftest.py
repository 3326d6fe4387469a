"""Fixtures that more than one file of this folder uses."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.fixtures.oauth_server import OAuthServer
from tests.support.daemon import Daemon
from tests.support.logins import Shelf


@pytest.fixture(scope="module")
def door() -> Iterator[Daemon]:
    """One daemon for all tests of a file."""
    daemon = Daemon()
    try:
        yield daemon.start()
    finally:
        daemon.close()


@pytest.fixture
async def server() -> AsyncIterator[OAuthServer]:
    """The authorization server and what it protects."""
    async with OAuthServer() as found:
        yield found


@pytest.fixture
def shelf() -> Shelf:
    """What a worker's secrets are kept in."""
    return Shelf()
