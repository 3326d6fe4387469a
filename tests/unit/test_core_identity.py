"""What an aggregate declares for the upstreams behind it."""

import json
from typing import Any

import pytest

from coffer_supervisor.core import identity

UI, TASKS = "io.modelcontextprotocol/ui", "io.modelcontextprotocol/tasks"


def declared(*extensions: Any) -> Any:
    raw = [json.dumps({"tools": {}, "extensions": one}).encode() for one in extensions]
    return json.loads(identity.aggregate([*raw, b"{}", b"[]", b"no JSON", b'{"extensions":[]}']))


def test_the_aggregates_own_capabilities_stand_whatever_is_behind_it() -> None:
    """C06, C07: tools, resources, prompts and completions, with changes and subscriptions; no logging."""
    assert json.loads(identity.aggregate([])) == declared() == identity.CAPABILITIES
    assert "logging" not in identity.CAPABILITIES


def test_extensions_are_the_union_of_what_can_be_carried() -> None:
    """The aggregate advertises what any upstream has, but not what Coffer cannot carry."""
    found = declared({UI: {}, TASKS: {}}, {"example/a": {"v": 1}, UI: {}}, {"example/b": 3})
    assert found["extensions"] == {UI: {}, "example/a": {"v": 1}}


def test_settings_that_differ_are_nobodys() -> None:
    found = declared({"example/a": {"v": 1}}, {"example/a": {"v": 2}}, {"example/a": {"v": 1}})
    assert found["extensions"] == {"example/a": {}}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (b'{"name":"n", "version":"1e2","title":"T"}', {"name": "n", "version": "1e2", "title": "T"}),
        (b"{}", {"name": "up", "version": ""}),
        (b'{"name":"n"}', {"name": "n", "version": ""}),
        (b'{"name":7,"version":"1"}', {"name": "up", "version": "1"}),
        (b"[]", {"name": "up", "version": ""}),
        (b"", {"name": "up", "version": ""}),
    ],
)
def test_a_server_that_does_not_say_who_it_is_goes_by_its_name_here(given: bytes, shown: Any) -> None:
    """Clients refuse a handshake without name and version; what a server says itself passes as it is."""
    made = identity.presented(given, "up")
    assert json.loads(made) == shown
    assert made is given or shown != json.loads(given or b"null")


def test_what_is_nested_too_deeply_counts_as_nothing() -> None:
    deep = b'{"x":%b}' % (b"[" * 100_000 + b"]" * 100_000)
    assert json.loads(identity.aggregate([deep])) == identity.CAPABILITIES
    assert json.loads(identity.presented(deep, "files")) == {"name": "files", "version": ""}
