"""Lists: joined in one order, curated, narrowed, paged, in each era's shape; changes told apart from noise."""

import json
from typing import Any

import pytest

from coffer_common.frames import CapabilityType, CatalogueEntry
from coffer_supervisor.core import catalogue as cat
from coffer_supervisor.core.catalogue import Base, Catalogues, Narrowing, Query, UnknownCursor


def entry(server: str, key: str, type_: CapabilityType = "tool", **more: Any) -> CatalogueEntry:
    exposed = f"{server}__{key}" if type_ in ("tool", "prompt") else f"coffer://{server}/{key}"
    member = {"tool": "name", "prompt": "name", "resource": "uri", "template": "uriTemplate"}[type_]
    return CatalogueEntry(
        type_,
        key,
        exposed,
        json.dumps({member: key}).encode(),
        json.dumps({member: exposed}).encode(),
        **more,
    )


def made(*servers: str, **more: Any) -> Catalogues:
    found = Catalogues()
    for server in servers:
        found.register(server, on=True, auto_enable=True, choices={})
        found.put(server, "legacy", Base([entry(server, key) for key in ("two", "one")], **more))
    return found


def page(found: Catalogues, cursor: str | None = None, now: float = 0.0, **query: Any) -> dict[str, Any]:
    asked = Query(**{"type": "tool", "naming": "prefixed", "era": "legacy"} | query)
    result: dict[str, Any] = json.loads(found.page(asked, cursor, now))
    return result


def names(result: dict[str, Any]) -> list[str]:
    return [tool["name"] for tool in result["tools"]]


def test_servers_stand_by_name_and_entries_as_the_upstream_lists_them() -> None:
    """N06: the order is the same whoever answered first."""
    assert names(page(made("b", "a"))) == ["a__two", "a__one", "b__two", "b__one"]
    assert page(made("b", "a")) == page(made("a", "b"))


def test_the_pass_through_endpoint_shows_one_server_with_its_own_names() -> None:
    found = made("a", "b")
    assert names(page(found, naming="raw", server="b")) == ["two", "one"]
    assert page(found, naming="raw", server="nobody") == {"tools": []}


@pytest.mark.parametrize(
    ("type_", "member"),
    [("tool", "tools"), ("prompt", "prompts"), ("resource", "resources"), ("template", "resourceTemplates")],
)
def test_lists_that_nobody_offers_are_empty(type_: CapabilityType, member: str) -> None:
    """C06: an empty list, not an error."""
    assert page(Catalogues(), type=type_) == {member: []}


def test_a_modern_page_says_how_long_it_may_be_kept_and_by_whom() -> None:
    found = made("a", "b", ttl_ms=60_000, scope="public", read_at=100.0)
    result = page(found, era="modern", now=130.0)
    assert (result["resultType"], result["ttlMs"], result["cacheScope"]) == ("complete", 30_000, "public")
    assert page(found, era="modern", now=500.0)["ttlMs"] == 0
    found.put("b", "legacy", Base([entry("b", "x")], read_at=100.0))
    silent = page(found, era="modern", now=130.0)
    assert (silent["ttlMs"], silent["cacheScope"]) == (0, "private")


def test_a_list_that_depends_on_the_client_or_lacks_a_server_is_not_for_others() -> None:
    found = made("a", ttl_ms=60_000, scope="public")
    narrow = Narrowing("a", frozenset({"a"}))
    assert page(found, era="modern", narrowing=narrow)["cacheScope"] == "private"
    asked = Query("tool", "prefixed", "modern")
    whole = json.loads(found.page(asked, None, 0.0, complete=False, meta=b'{"x":1}'))
    assert (whole["ttlMs"], whole["_meta"]) == (0, {"x": 1})
    assert page(Catalogues(), era="modern")["cacheScope"] == "private"
    assert "_meta" not in page(found, era="modern")


def test_a_registered_server_without_a_catalogue_leaves_the_list_fresh_for_no_time() -> None:
    found = made("a", ttl_ms=60_000, scope="public")
    found.register("b", on=True, auto_enable=True, choices={})
    assert page(found, era="modern")["ttlMs"] == 0


def test_a_scope_and_a_group_narrow() -> None:
    found = made("a", "b")
    assert names(page(found, narrowing=Narrowing("x", frozenset({"b"})))) == ["b__two", "b__one"]
    only = Narrowing("y", None, lambda server, type_, key: key == "one")
    assert names(page(found, narrowing=only)) == ["a__one", "b__one"]


def test_what_is_switched_off_is_in_no_list_and_choices_outlive_a_disappearance() -> None:
    found = made("a")
    assert found.register("a", on=True, auto_enable=True, choices={("tool", "two"): False}) == {"tools"}
    assert names(page(found)) == ["a__one"]
    found.put("a", "legacy", Base([]))
    found.put("a", "legacy", Base([entry("a", "two")]))
    assert names(page(found)) == []


def test_new_capabilities_follow_the_policy_of_the_server() -> None:
    found = Catalogues()
    found.register("a", on=True, auto_enable=False, choices={("tool", "old"): True})
    assert found.put("a", "legacy", Base([entry("a", "old"), entry("a", "new")])) == {"tools"}
    assert names(page(found)) == ["a__old"]


def test_disabling_and_removing_empty_the_lists_at_once() -> None:
    found = made("a", "b")
    assert found.register("a", on=False, auto_enable=True, choices={}) == {"tools"}
    assert names(page(found)) == ["b__two", "b__one"]
    assert page(found, server="a", naming="raw") == {"tools": []}
    assert found.remove("b") == {"tools"}
    assert found.remove("b") == frozenset()
    assert found.register("a", on=True, auto_enable=True, choices={}) == {"tools"}
    assert found.servers["a"].waiting, "it may list something else now"


def test_an_unchanged_catalogue_is_no_change() -> None:
    """C10: unchanged catalogues are not announced again."""
    found = made("a")
    again = Base([entry("a", "two"), entry("a", "one")])
    assert found.put("a", "legacy", again) == frozenset()
    assert found.put("a", "modern", again) == frozenset(), "the other era sees the same"


def test_the_other_order_of_members_in_another_era_is_no_change() -> None:
    """C10: a legacy client that was shown the modern list is not told when its own era's says the same."""
    found = Catalogues()
    found.register("a", on=True, auto_enable=True, choices={})

    def base(form: bytes) -> Base:
        return Base([CatalogueEntry("tool", "x", "a__x", form)])

    found.put("a", "modern", base(b'{"name":"x","inputSchema":{}}'))
    assert found.put("a", "legacy", base(b'{"inputSchema":{},"name":"x"}')) == frozenset()
    assert page(found, naming="raw")["tools"] == [{"inputSchema": {}, "name": "x"}]
    assert b'{"inputSchema":{},"name":"x"}' in found.page(Query("tool", "raw", "legacy"), None, 0.0)


def test_lists_that_cannot_be_decoded_are_compared_as_they_are() -> None:
    found = Catalogues()
    found.register("a", on=True, auto_enable=True, choices={})
    broken = CatalogueEntry("tool", "x", "a__x", b'{"name":"\\ud800"}')
    assert found.put("a", "modern", Base([broken])) == {"tools"}
    assert found.put("a", "legacy", Base([entry("a", "x")])) == {"tools"}


@pytest.mark.parametrize(
    ("type_", "kind"), [("tool", "tools"), ("prompt", "prompts"), ("resource", "resources"), ("template", "resources")]
)
def test_a_change_names_the_kind_whose_list_differs(type_: CapabilityType, kind: str) -> None:
    found = made("a")
    entries = [entry("a", "two"), entry("a", "one"), entry("a", "new", type_)]
    assert found.put("a", "legacy", Base(entries)) == {kind}


def test_each_era_has_its_own_list_where_the_upstream_has_two() -> None:
    found = made("a")
    assert found.put("a", "modern", Base([entry("a", "modern-only")])) == {"tools"}
    assert names(page(found, era="modern")) == ["a__modern-only"]
    assert names(page(found, era="legacy")) == ["a__two", "a__one"]


def test_an_entry_without_a_form_for_an_era_is_not_listed_there() -> None:
    found = Catalogues()
    found.register("a", on=True, auto_enable=True, choices={})
    found.put("a", "legacy", Base([entry("a", "x", raw_modern=b"", prefixed_modern=b"")]))
    assert names(page(found, era="modern")) == []
    assert names(page(found)) == ["a__x"]


def test_a_session_sees_its_own_list_and_nobody_else_does() -> None:
    """What differs on a session's connection overlays that session only."""
    found = made("a")
    assert found.overlay("a", "s1", Base([entry("a", "secret")])) == {"tools"}
    assert names(page(found, session="s1")) == ["a__secret"]
    assert names(page(found, session="s2")) == ["a__two", "a__one"]
    found.forget_session("s1")
    assert names(page(found, session="s1")) == ["a__two", "a__one"]
    found.forget_session("s1")


def test_an_overlay_before_any_catalogue_is_a_change() -> None:
    found = Catalogues()
    found.register("a", on=True, auto_enable=True, choices={})
    assert found.overlay("a", "s1", Base([entry("a", "x")])) == {"tools"}


def test_waiting_ends_with_the_first_catalogue_or_by_word() -> None:
    found = Catalogues()
    found.register("a", on=True, auto_enable=True, choices={})
    assert found.servers["a"].waiting
    found.settle("a")
    found.settle("nobody")
    assert not found.servers["a"].waiting
    assert found.servers["a"].base("legacy") is None


def test_long_lists_come_in_pages_that_together_are_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q02: complete over pages; a made-up cursor is an error and not page one."""
    monkeypatch.setattr(cat, "PAGE_ENTRIES", 3)
    found = made("a", "b", "c", "d")
    got: list[str] = []
    cursor = None
    for _ in range(3):
        result = page(found, cursor)
        got += names(result)
        cursor = result.get("nextCursor")
    assert cursor is None
    assert got == [f"{server}__{key}" for server in "abcd" for key in ("two", "one")]
    with pytest.raises(UnknownCursor):
        page(found, "page-2")


def test_pages_are_also_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cat, "PAGE_BYTES", 30)
    assert len(page(made("a", "b"))["tools"]) == 1


def test_a_cursor_outlives_a_change_of_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cat, "PAGE_ENTRIES", 2)
    found = made("a", "b", "c")
    cursor = page(found)["nextCursor"]
    found.remove("a")
    assert names(page(found, cursor)) == ["b__two", "b__one"]
    found.remove("b")
    found.remove("c")
    assert page(found, cursor) == {"tools": []}


def test_joined_lists_are_kept_in_bounded_size_and_dropped_by_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cat, "KEPT_BYTES", 2500)
    found = made("a")
    for tag in ("x", "y", "z", "z"):
        page(found, narrowing=Narrowing(tag))
    assert len(found._joined) == 2
    found.invalidate()
    assert not found._joined


def test_normalised_uris_are_found_again() -> None:
    base = Base([entry("a", "file:///a b", "resource")])
    assert base.by_uri["file:///a%20b"] == "file:///a b"
    assert [e.key for e in base] == ["file:///a b"]


def test_a_groups_own_description_takes_the_place_of_the_upstreams() -> None:
    """Every other member stays byte for byte; what is not described, or cannot be taken apart, stays whole."""
    found = made("a")
    raw = b'{"name":"a__n","big":123456789012345678901234567890,"f":1e2,"description":"theirs","x":"\\u00e9"}'
    odd = b'{"name":"a__odd"'
    entries = [CatalogueEntry("tool", key, f"a__{key}", form, form) for key, form in (("n", raw), ("odd", odd))]
    found.put("a", "legacy", Base([*entries, entry("a", "plain")]))

    def described(server: str, type_: CapabilityType, key: str) -> str | None:
        return None if key == "plain" else f"ours of {key}"

    query = Query("tool", "prefixed", "legacy", None, "", Narrowing("g", None, None, described))
    body = found.page(query, None, 0.0)
    ours = raw.replace(b"theirs", b"ours of n")
    assert body == b'{"tools":[' + ours + b"," + odd + b',{"name": "a__plain"}]}'


def test_what_is_listed_is_recorded_when_something_is_new_or_a_while_has_passed() -> None:
    """A catalogue that is sent again and again costs no write each time."""
    server = made("a").servers["a"]

    def listed(at: float, *keys: str) -> Base:
        return Base([entry("a", key) for key in keys], read_at=at)

    assert server.records(listed(0.0, "one"))
    assert server.records(listed(0.0, "one")), "asked twice, recorded never"
    server.recorded(listed(0.0, "one", "two"))
    assert not server.records(listed(10.0, "two"))
    assert not server.records(listed(10.0))
    assert server.records(listed(10.0, "two", "three"))
    server.recorded(listed(10.0, "three"))
    assert not server.records(listed(59.0, "one", "three"))
    assert server.records(listed(cat.RECORDED_SECONDS, "one"))
    server.recorded(listed(cat.RECORDED_SECONDS + 5.0, "three"))
    assert server.records(listed(cat.RECORDED_SECONDS + 5.0, "one")), "forgotten with its time"


def test_uris_are_also_found_as_clients_normalise_them() -> None:
    """R05: the upstream's own and the aggregate's; the first that has a form keeps it."""
    base = Base([entry("s", "HTTP://Host.Example", "resource"), entry("s", "http://host.example/", "resource")])
    found = base.by_uri
    assert found["http://host.example/"] == "HTTP://Host.Example"
    assert base.by_uri is found
