"""Names and URIs of the aggregate (N01, N02, N04, N05, R02, R04, R05, R06)."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coffer_common import names

SERVERS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True).filter(names.is_server_name)


@pytest.mark.parametrize("name", ["a", "0", "files", "my-server", "a_b", "x" * 32])
def test_legal_server_names(name: str) -> None:
    assert names.is_server_name(name)
    assert names.legal_server_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "-a", "a-", "_a", "a_", "a__b", "My", "my.server", "my server", "coffer", "x" * 33, "a\n", "é"],
)
def test_names_outside_the_rule_are_refused(name: str) -> None:
    """N04: a name outside the rule is refused, so two spellings can never share a prefix."""
    assert not names.is_server_name(name)


@pytest.mark.parametrize(
    ("wish", "legal"),
    [
        ("my.server", "my-server"),
        ("My_Server", "my_server"),
        ("a__b", "a_b"),
        ("coffer", "coffer-server"),
        ("---", "server"),
        ("é", "server"),
    ],
)
def test_import_makes_legal_names(wish: str, legal: str) -> None:
    assert names.legal_server_name(wish) == legal


@given(st.text())
def test_any_wish_becomes_a_legal_name(wish: str) -> None:
    assert names.is_server_name(names.legal_server_name(wish))


@given(SERVERS, st.text(min_size=1))
def test_exposed_names_suit_every_client_and_keep_their_server(server: str, name: str) -> None:
    """N05: whatever the upstream calls a tool, clients see 1 to 64 characters of [A-Za-z0-9_-]."""
    exposed = names.exposed_name(server, name)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", exposed)
    split = names.split_name(exposed)
    assert split is not None
    assert split[0] == server


@given(SERVERS, st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True))
def test_plain_names_come_back_as_they_were(server: str, name: str) -> None:
    assert names.split_name(names.exposed_name(server, name)) == (server, name)


@given(SERVERS, st.lists(st.text(min_size=1, max_size=90), unique=True, max_size=30))
def test_distinct_tools_stay_distinct(server: str, tools: list[str]) -> None:
    """N01, N02: shortening keeps tools apart and does not depend on their order."""
    exposed = [names.exposed_name(server, tool) for tool in tools]
    assert len(set(exposed)) == len(tools)
    assert [names.exposed_name(server, tool) for tool in reversed(tools)] == exposed[::-1]


def test_tools_that_share_their_first_64_characters() -> None:
    """N02: both reachable under distinct names."""
    assert names.exposed_name("s", "a" * 64 + "x") != names.exposed_name("s", "a" * 64 + "y")


@pytest.mark.parametrize("exposed", ["plain", "a__", "__a", "A__b", "a_b"])
def test_what_has_no_server_in_front_does_not_split(exposed: str) -> None:
    assert names.split_name(exposed) is None


@given(SERVERS, st.text(min_size=1).filter(lambda u: not u.startswith("ui://")))
def test_uris_travel_as_strings(server: str, uri: str) -> None:
    """R04, R05: nothing is normalised, decoded or encoded on the way out and back."""
    assert names.split_uri(names.exposed_uri(server, uri)) == (server, uri)


def test_ui_resources_keep_their_scheme() -> None:
    """R06: hosts of MCP Apps look for the ui scheme."""
    assert names.exposed_uri("s", "ui://app/v.html") == "ui://s/app/v.html"
    assert names.split_uri("ui://s/app/v.html") == ("s", "ui://app/v.html")


@pytest.mark.parametrize("uri", ["file:///a", "coffer://s", "coffer://A/x", "ui://only"])
def test_foreign_uris_do_not_split(uri: str) -> None:
    assert names.split_uri(uri) is None


@pytest.mark.parametrize(
    ("uri", "normal"),
    [
        ("users/me", "users/me"),
        ("x:opaque", "x:opaque"),
        ("x:o\tp q", "x:op q"),
        ("urn:a:b", "urn:a:b"),
        ("http://Host.Example", "http://host.example/"),
        ("HTTP://u@Host.Example:80/a b?q=é#é", "http://u@host.example/a%20b?q=%C3%A9#%C3%A9"),
        ("https://h:8443/a\\b", "https://h:8443/a/b"),
        ("https://bücher.example/", "https://xn--bcher-kva.example/"),
        ("https://" + "ü" * 80 + "/", "https://" + "%C3%BC" * 80 + "/"),
        ("demo://A/../b", "demo://A/b"),
        ("demo://A/a/./c/..", "demo://A/a/"),
        ("demo://A/x/.", "demo://A/x/"),
        ("demo://A/..", "demo://A/"),
        ("demo://A/%2E%2e/b", "demo://A/b"),
        ("demo://A", "demo://A"),
        ("a:/x/../y", "a:/y"),
        ("file:///docs/café/{n}", "file:///docs/caf%C3%A9/%7Bn%7D"),
        ("file:///a%2Fb%25", "file:///a%2Fb%25"),
        (" coffer://s/file:///my docs/a ", "coffer://s/file:///my%20docs/a"),
    ],
)
def test_the_key_for_what_clients_normalise(uri: str, normal: str) -> None:
    """R05: only a look-up key; expectations are those of the WHATWG URL parser."""
    assert names.normalised_uri(uri) == normal


@given(st.text())
def test_normalising_twice_changes_nothing(uri: str) -> None:
    once = names.normalised_uri(uri)
    assert names.normalised_uri(once) == once
