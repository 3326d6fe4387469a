"""The way back: exposed names and URIs to the upstreams' own, and everything that is refused on the way."""

import json
from typing import Any

import pytest

from coffer_common import errors, names
from coffer_common.frames import CapabilityType, CatalogueEntry
from coffer_supervisor.core import routing
from coffer_supervisor.core.calls import Scope
from coffer_supervisor.core.catalogue import EVERYTHING, Base, Catalogues, Narrowing
from coffer_supervisor.core.routing import Awaited, Refusal, Target, Where

AGGREGATE = Scope("/mcp")


def entry(server: str, type_: CapabilityType, key: str) -> CatalogueEntry:
    make = names.exposed_name if type_ in ("tool", "prompt") else names.exposed_uri
    return CatalogueEntry(type_, key, make(server, key), b"{}")


OFFERED: dict[str, list[tuple[CapabilityType, str]]] = {
    "files": [
        ("tool", "read"),
        ("tool", "both"),
        ("tool", "cal.read"),
        ("tool", "nobody__tool"),
        ("prompt", "greet"),
        ("resource", "file:///a b.txt"),
        ("resource", "ui://panel/x"),
        ("resource", "shared://one"),
        ("template", "memo://{id}"),
        ("template", "both://{id}"),
    ],
    "git": [
        ("tool", "both"),
        ("tool", "log"),
        ("resource", "shared://one"),
        ("resource", "memo://listed"),
        ("template", "both://{id}"),
    ],
}


@pytest.fixture
def known() -> Catalogues:
    found = Catalogues()
    for server, offered in OFFERED.items():
        found.register(server, on=True, auto_enable=True, choices={})
        found.put(server, "legacy", Base([entry(server, type_, key) for type_, key in offered]))
    return found


def go(known: Catalogues, method: str, params: Any, *, scope: Scope = AGGREGATE, **where: Any) -> routing.Resolved:
    raw = params if isinstance(params, bytes) else json.dumps(params).encode()
    narrowing = where.pop("narrowing", EVERYTHING)
    return routing.resolve(known.servers, Where(scope, narrowing, "legacy", **where), method, raw)


def call(known: Catalogues, name: str, **where: Any) -> routing.Resolved:
    return go(known, "tools/call", {"name": name, "arguments": {}}, **where)


def read(known: Catalogues, uri: str, **where: Any) -> routing.Resolved:
    return go(known, "resources/read", {"uri": uri}, **where)


def reason(found: routing.Resolved) -> errors.Reason:
    assert isinstance(found, Refusal), found
    return found.reason


# ---- names


def test_a_prefixed_name_goes_to_its_server_under_the_upstreams_own_name(known: Catalogues) -> None:
    assert call(known, "files__read") == Target("files", "tool", "read")
    assert go(known, "prompts/get", {"name": "files__greet"}) == Target("files", "prompt", "greet")


def test_a_shortened_name_goes_back_to_its_original_spelling(known: Catalogues) -> None:
    """N01, N05: the upstream gets its own spelling whatever clients are shown."""
    exposed = names.exposed_name("files", "cal.read")
    assert exposed != "files__cal.read"
    assert call(known, exposed) == Target("files", "tool", "cal.read")


def test_an_unprefixed_name_is_good_where_exactly_one_server_lists_it(known: Catalogues) -> None:
    assert call(known, "log") == Target("git", "tool", "log")
    ambiguous = call(known, "both")
    assert reason(ambiguous) is errors.AMBIGUOUS
    assert isinstance(ambiguous, Refusal)
    assert ambiguous.data == {"servers": ["files", "git"]}
    assert reason(call(known, "nothing")) is errors.UNKNOWN_CAPABILITY


def test_a_name_that_only_looks_prefixed_is_somebodys_own(known: Catalogues) -> None:
    assert call(known, "nobody__tool") == Target("files", "tool", "nobody__tool")
    known.register("nobody", on=True, auto_enable=True, choices={})
    known.put("nobody", "legacy", Base([]))
    assert call(known, "nobody__tool") == Target("files", "tool", "nobody__tool")


def test_an_unknown_name_of_a_known_server_is_refused_naming_it(known: Catalogues) -> None:
    found = call(known, "files__nothing")
    assert isinstance(found, Refusal)
    assert (found.reason, found.server) == (errors.UNKNOWN_CAPABILITY, "files")
    assert "files__nothing" in found.message


def test_disabled_servers_and_capabilities_are_refused_naming_them(known: Catalogues) -> None:
    known.register("files", on=True, auto_enable=True, choices={("tool", "read"): False})
    found = call(known, "files__read")
    assert reason(found) is errors.CAPABILITY_DISABLED
    assert reason(call(known, "read")) is errors.CAPABILITY_DISABLED
    known.register("git", on=False, auto_enable=True, choices={})
    found = call(known, "git__log")
    assert isinstance(found, Refusal)
    assert (found.reason, "coffer mcp enable git" in found.message) == (errors.SERVER_DISABLED, True)
    assert reason(call(known, "log")) is errors.UNKNOWN_CAPABILITY


def test_a_disabled_namesake_leaves_the_other_one_unambiguous(known: Catalogues) -> None:
    known.register("files", on=True, auto_enable=True, choices={("tool", "both"): False})
    assert call(known, "both") == Target("git", "tool", "both")


def test_scopes_and_groups_refuse(known: Catalogues) -> None:
    only_git = Narrowing("git", frozenset({"git"}))
    assert reason(call(known, "files__read", narrowing=only_git)) is errors.DENIED
    assert call(known, "both", narrowing=only_git) == Target("git", "tool", "both")
    group = Narrowing("g", None, lambda server, type_, key: key != "read")
    assert reason(call(known, "files__read", narrowing=group)) is errors.DENIED


def test_what_has_not_listed_yet_is_awaited(known: Catalogues) -> None:
    known.register("slow", on=True, auto_enable=True, choices={})
    found = call(known, "slow__tool")
    assert isinstance(found, Awaited)
    assert (found.servers, found.otherwise.server) == (("slow",), "slow")
    bare = call(known, "nothing")
    assert isinstance(bare, Awaited)
    assert (bare.servers, bare.otherwise.server) == (("slow",), None)
    assert isinstance(read(known, "coffer://slow/x://y"), Awaited)
    known.settle("slow")
    assert reason(call(known, "nothing")) is errors.UNKNOWN_CAPABILITY


def test_a_session_is_routed_by_its_own_list(known: Catalogues) -> None:
    known.overlay("files", "s1", Base([entry("files", "tool", "mine")]))
    assert call(known, "files__mine", session="s1") == Target("files", "tool", "mine")
    assert reason(call(known, "files__mine", session="s2")) is errors.UNKNOWN_CAPABILITY


# ---- pass-through


def test_pass_through_takes_the_upstreams_own_names_and_leaves_unknown_ones_to_it(known: Catalogues) -> None:
    scope = Scope("/servers/files/mcp", server="files")
    assert call(known, "read", scope=scope) == Target("files", "tool", "read")
    assert call(known, "not-listed", scope=scope) == Target("files", "tool", "not-listed")
    assert read(known, "file:///a b.txt", scope=scope) == Target("files", "resource", "file:///a b.txt")


def test_curation_applies_on_pass_through_too(known: Catalogues) -> None:
    scope = Scope("/servers/files/mcp", server="files")
    known.register("files", on=True, auto_enable=False, choices={("tool", "read"): False})
    assert reason(call(known, "read", scope=scope)) is errors.CAPABILITY_DISABLED
    assert reason(call(known, "never-seen", scope=scope)) is errors.CAPABILITY_DISABLED
    known.register("files", on=False, auto_enable=True, choices={})
    assert reason(call(known, "read", scope=scope)) is errors.SERVER_DISABLED
    assert reason(call(known, "x", scope=Scope("/servers/no/mcp", server="no"))) is errors.UNKNOWN_SERVER


# ---- URIs


@pytest.mark.parametrize(
    ("exposed", "key"),
    [
        ("coffer://files/file:///a b.txt", "file:///a b.txt"),
        ("coffer://files/file:///a%20b.txt", "file:///a b.txt"),
        ("ui://files/panel/x", "ui://panel/x"),
        ("coffer://files/memo://7", "memo://7"),
        ("coffer://files/never://listed", "never://listed"),
        ("file:///a b.txt", "file:///a b.txt"),
        ("file:///a%20b.txt", "file:///a b.txt"),
    ],
)
def test_uris_find_their_server_also_where_a_client_normalised_them(known: Catalogues, exposed: str, key: str) -> None:
    """URIs are strings; what is passed on is the upstream's own spelling."""
    assert read(known, exposed) == Target("files", "resource", key)


def test_a_bare_uri_is_matched_with_lists_first_and_templates_second(known: Catalogues) -> None:
    """R02: two owners of one URI are told apart by their prefix, or refused."""
    assert read(known, "memo://listed") == Target("git", "resource", "memo://listed")
    assert read(known, "memo://other") == Target("files", "resource", "memo://other")
    assert reason(read(known, "shared://one")) is errors.AMBIGUOUS
    assert reason(read(known, "both://x")) is errors.AMBIGUOUS
    unknown = read(known, "no://where")
    assert isinstance(unknown, Refusal)
    assert (unknown.reason, unknown.data) == (errors.UNKNOWN_RESOURCE, {"uri": "no://where"})
    assert reason(read(known, "coffer://nobody/x://y")) is errors.UNKNOWN_RESOURCE


def test_a_resource_is_refused_by_its_own_switch_or_its_templates(known: Catalogues) -> None:
    known.register(
        "files",
        on=True,
        auto_enable=True,
        choices={("resource", "file:///a b.txt"): False, ("template", "memo://{id}"): False},
    )
    assert reason(read(known, "coffer://files/file:///a b.txt")) is errors.CAPABILITY_DISABLED
    assert reason(read(known, "coffer://files/memo://7")) is errors.CAPABILITY_DISABLED
    assert reason(read(known, "memo://7")) is errors.CAPABILITY_DISABLED
    known.register(
        "files", on=True, auto_enable=True, choices={("template", "memo://{id}"): False, ("resource", "memo://7"): True}
    )
    assert read(known, "coffer://files/memo://7") == Target("files", "resource", "memo://7")


def test_one_enabled_template_is_enough(known: Catalogues) -> None:
    offered = [entry("t", "template", "x://{a}"), entry("t", "template", "x://{+b}")]
    known.register("t", on=True, auto_enable=True, choices={("template", "x://{a}"): False})
    known.put("t", "legacy", Base(offered))
    assert read(known, "x://1") == Target("t", "resource", "x://1")


def test_a_pass_through_uri_before_any_list_is_judged_by_the_policy() -> None:
    fresh = Catalogues()
    fresh.register("new", on=True, auto_enable=True, choices={})
    scope = Scope("/servers/new/mcp", server="new")
    assert read(fresh, "x://y", scope=scope) == Target("new", "resource", "x://y")
    assert isinstance(read(fresh, "x://y"), Awaited)


def test_subscriptions_route_like_reads(known: Catalogues) -> None:
    found = go(known, "resources/subscribe", {"uri": "coffer://git/memo://listed"})
    assert found == Target("git", "resource", "memo://listed")


# ---- completion


def test_completion_follows_its_reference(known: Catalogues) -> None:
    """R08: the reference is transformed back, and routed."""

    def complete(ref: Any) -> routing.Resolved:
        return go(known, "completion/complete", {"ref": ref, "argument": {"name": "a", "value": ""}})

    assert complete({"type": "ref/prompt", "name": "files__greet"}) == Target("files", "prompt", "greet")
    template = complete({"type": "ref/resource", "uri": "coffer://files/memo://{id}"})
    assert template == Target("files", "template", "memo://{id}")
    assert complete({"type": "ref/resource", "uri": "memo://{id}"}) == Target("files", "template", "memo://{id}")
    listed = complete({"type": "ref/resource", "uri": "coffer://files/file:///a%20b.txt"})
    assert isinstance(listed, Target)
    made = complete({"type": "ref/resource", "uri": "coffer://files/memo://7"})
    assert made == Target("files", "resource", "memo://7")
    for bad in ({"type": "ref/prompt"}, {"type": "ref/resource", "name": "x"}, {"type": "ref/other"}, "x"):
        assert reason(complete(bad)) is errors.INVALID_PARAMS


def test_completion_for_what_a_server_does_not_offer_is_refused(known: Catalogues) -> None:
    """Once it is known what it offers: a reference to nothing is -32602 in either era."""
    params = {"ref": {"type": "ref/resource", "uri": "coffer://files/nope"}, "argument": {"name": "a", "value": ""}}
    refusal = go(known, "completion/complete", params)
    assert isinstance(refusal, routing.Refusal)
    assert {refusal.reason.code_for(era) for era in ("legacy", "modern")} == {-32602}
    assert (refusal.server, refusal.key) == ("files", "coffer://files/nope")
    known.register("files", on=True, auto_enable=True, choices={("template", "memo://{id}"): False})
    for uri in ("coffer://files/memo://7", "coffer://files/memo://{id}"):
        params["ref"]["uri"] = uri
        assert reason(go(known, "completion/complete", params)) is errors.CAPABILITY_DISABLED
    known.register("new", on=True, auto_enable=True, choices={})
    params["ref"]["uri"] = "coffer://new/nope"
    assert isinstance(go(known, "completion/complete", params), routing.Awaited)


# ---- params


@pytest.mark.parametrize(
    "params",
    [
        b"{}",
        b'{"name":1}',
        b'{"name":"files__read","name":"git__log"}',
        b'{"n\\u0061me":"files__read","name":"git__log"}',
        b"[" * 100_000,
        b'{"name":',
    ],
)
def test_params_that_do_not_name_one_thing_are_refused(known: Catalogues, params: bytes) -> None:
    """A name that routes stands once: peers may read the other one."""
    assert reason(go(known, "tools/call", params)) is errors.INVALID_PARAMS


def test_lone_surrogates_elsewhere_do_not_hide_the_name(known: Catalogues) -> None:
    """Node emits them; they are the upstream's business."""
    params = b'{"name":"files__read","arguments":{"text":"\\ud800"}}'
    assert go(known, "tools/call", params) == Target("files", "tool", "read")
    nested = b'{"name":"files__read","arguments":{"name":"git__log"}}'
    assert go(known, "tools/call", nested) == Target("files", "tool", "read")
