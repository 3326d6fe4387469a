"""The caps on what an upstream takes of the machine."""

from __future__ import annotations

import pytest

from coffer_common.resources import Limits
from coffer_worker.core.caps import Usage, excess, wanted

MB = 1_000_000


def test_without_caps_nothing_is_watched() -> None:
    assert not wanted(Limits())
    assert wanted(Limits(max_rss_bytes=100 * MB))
    assert wanted(Limits(max_processes=2))
    assert excess("up", Limits(), [Usage(1, 1000, 10**12)]) is None


@pytest.mark.parametrize("usages", [[], [Usage(1, 2, 50 * MB)], [Usage(1, 1, 40 * MB), Usage(2, 1, 60 * MB)]])
def test_up_to_the_caps_nothing_happens(usages: list[Usage]) -> None:
    assert excess("up", Limits(max_rss_bytes=100 * MB, max_processes=2), usages) is None


def test_too_much_memory_in_all_ends_the_largest_and_names_the_limit() -> None:
    found = excess("up", Limits(max_rss_bytes=100 * MB), [Usage(1, 1, 40 * MB), Usage(2, 1, 61 * MB)])
    assert found is not None
    assert (found.number, found.reason.name) == (2, "memory_limit")
    assert found.message == "Upstream 'up' took 101 MB of memory, over its limit max_rss_bytes (100 MB); it was ended"


def test_too_many_processes_in_all_end_the_one_with_most_and_name_the_limit() -> None:
    found = excess("up", Limits(max_processes=3), [Usage(1, 3, MB), Usage(2, 1, 9 * MB)])
    assert found is not None
    assert (found.number, found.reason.name) == (1, "process_limit")
    assert "had 4 processes, over its limit max_processes (3)" in found.message
