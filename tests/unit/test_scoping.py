"""What a principal and an endpoint leave of everything."""

import pytest

from coffer_common.resources import CapabilityPattern, GroupConfig
from coffer_supervisor.core.calls import Principal, Scope
from coffer_supervisor.core.catalogue import EVERYTHING
from coffer_supervisor.scoping import Scoping

AGGREGATE, GROUP = Scope("/mcp"), Scope("/groups/g/mcp", group="g")
ANYONE = Principal("local", "local")


@pytest.fixture
def scoping() -> Scoping:
    found = Scoping()
    patterns = (CapabilityPattern(server="b", type="tool", pattern="get_*"), CapabilityPattern(server="c"))
    found.set_groups({"g": GroupConfig(servers=("a",), capabilities=patterns)})
    return found


def test_without_scope_and_group_everything_is_left(scoping: Scoping) -> None:
    assert scoping.narrowing(ANYONE, AGGREGATE) is EVERYTHING


def test_a_client_sees_its_servers(scoping: Scoping) -> None:
    some = Principal("client:x", "x", frozenset({"a"}))
    left = scoping.narrowing(some, AGGREGATE)
    assert (left.server("a"), left.server("b"), left.entry("a", "tool", "any")) == (True, False, True)
    assert scoping.narrowing(some, AGGREGATE) is left


@pytest.mark.parametrize(
    ("server", "type_", "key", "seen"),
    [
        ("a", "tool", "any", True),
        ("b", "tool", "get_x", True),
        ("b", "tool", "set_x", False),
        ("b", "prompt", "get_x", False),
        ("c", "resource", "x://y", True),
        ("d", "tool", "any", False),
    ],
)
def test_a_group_holds_whole_servers_and_patterns(
    scoping: Scoping, server: str, type_: str, key: str, seen: bool
) -> None:
    assert scoping.narrowing(ANYONE, GROUP).entry(server, type_, key) is seen  # type: ignore[arg-type]


def test_a_group_that_is_unknown_or_not_the_clients_leaves_nothing(scoping: Scoping) -> None:
    other = Principal("client:x", "x", None, frozenset({"h"}))
    assert not scoping.narrowing(other, GROUP).server("a")
    assert not scoping.narrowing(ANYONE, Scope("/groups/no/mcp", group="no")).server("a")


def test_a_client_of_a_group_sees_all_of_it_a_client_of_servers_only_those(scoping: Scoping) -> None:
    member = Principal("client:x", "x", frozenset(), frozenset({"g"}))
    assert scoping.narrowing(member, GROUP).server("a")
    scoped = Principal("client:y", "y", frozenset({"b"}))
    assert not scoping.narrowing(scoped, GROUP).server("a")
    assert scoping.narrowing(scoped, GROUP).entry("b", "tool", "get_x")


def test_the_first_description_that_fits_is_shown() -> None:
    """A group's own words for a capability; what has none keeps the upstream's."""
    found = Scoping()
    patterns = (
        CapabilityPattern(server="a", pattern="x"),
        CapabilityPattern(server="a", type="tool", pattern="x*", description="first"),
        CapabilityPattern(server="a", type="tool", pattern="*", description="second"),
    )
    found.set_groups({"g": GroupConfig(capabilities=patterns)})
    described = found.narrowing(ANYONE, GROUP).described
    assert described is not None
    assert [described("a", "tool", "xy"), described("a", "tool", "z")] == ["first", "second"]
    assert described("a", "prompt", "xy") is None
    assert described("b", "tool", "xy") is None
    assert found.has_group("g")
    assert not found.has_group("h")
