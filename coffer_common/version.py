"""Coffer's own version, as a constant: reading package metadata at run time would cost the shim 10 ms a start.

A test holds it equal to the project's metadata.
"""

from typing import Final

VERSION: Final = "0.1.0"
SERVER_INFO: Final = b'{"name":"coffer","title":"Coffer","version":"%b"}' % VERSION.encode()
"""As whom Coffer presents itself to clients: raw JSON."""


def newer(mine: str, theirs: str) -> bool:
    """Whether ``mine`` is a later release than ``theirs``; where either is no plain ``1.2.3``, False."""
    try:
        return _parts(mine) > _parts(theirs)
    except ValueError:
        return False


def _parts(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]
