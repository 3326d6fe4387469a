"""Log levels: what an upstream is told, and which message is for whom."""

import json

import pytest

from coffer_worker.core import verbosity


@pytest.mark.parametrize(
    ("now", "wanted", "shared", "told"),
    [
        ("", "info", False, True),
        ("info", "info", False, False),
        ("debug", "error", False, True),
        ("debug", "error", True, False),
        ("error", "debug", True, True),
        ("", "error", True, True),
        ("info", "loud", False, False),
        ("info", "", False, False),
    ],
)
def test_a_shared_upstream_is_told_the_most_verbose_wish(now: str, wanted: str, shared: bool, told: bool) -> None:
    """On a connection of its own a session's level counts as it is; a level that is none is nobody's wish."""
    assert verbosity.changes(now, wanted, shared=shared) is told


@pytest.mark.parametrize(
    ("level", "wanted", "heard"),
    [
        ("debug", "debug", True),
        ("debug", "info", False),
        ("emergency", "alert", True),
        ("error", "", False),
        ("error", "loud", False),
        ("loud", "emergency", True),
        (7, "info", True),
        (None, "info", True),
    ],
)
def test_a_message_is_for_those_who_want_its_level(level: object, wanted: str, heard: bool) -> None:
    """Who named no level asked for nothing; what bears no known level is too little for nobody."""
    assert verbosity.passes(json.dumps({"level": level, "data": "d"}).encode(), wanted) is heard


def test_what_is_no_message_passes_as_it_is() -> None:
    assert verbosity.passes(b"[]", "info")
    assert not verbosity.passes(b"[]", "")
