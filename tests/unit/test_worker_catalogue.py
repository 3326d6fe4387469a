"""Lists to entries in four forms."""

import json
from typing import Any

import pytest

from coffer_common.names import exposed_name
from coffer_worker.core import catalogue
from coffer_worker.core.catalogue import KINDS, Page

TOOL, RESOURCE, TEMPLATE, PROMPT = KINDS
SCHEMA = {"type": "object"}


def made(kind: catalogue.ListKind, *items: Any, upstream: Any = "legacy") -> catalogue.Entries:
    return catalogue.entries(kind, [json.dumps(item).encode() for item in items], "s", upstream)


def form(entry: Any, naming: Any, era: Any) -> Any:
    raw = entry.form(naming, era)
    return json.loads(raw) if raw else None


def test_an_entry_is_renamed_and_otherwise_untouched() -> None:
    """S06: nothing is stripped, nothing added."""
    tool = {"name": "a", "inputSchema": SCHEMA, "title": "A", "icons": [{"src": "data:x"}], "xVendor": {"a": 1}}
    entry = made(TOOL, tool).entries[0]
    assert (entry.type, entry.key, entry.exposed) == ("tool", "a", "s__a")
    assert entry.form("raw", "legacy") == json.dumps(tool).encode()
    assert entry.form("raw", "modern") == entry.form("raw", "legacy")
    assert form(entry, "prefixed", "modern") == form(entry, "prefixed", "legacy") == {**tool, "name": "s__a"}


def test_recursive_schemas_pass() -> None:
    """S02."""
    schema = {"type": "object", "$defs": {"N": {"properties": {"kids": {"items": {"$ref": "#/$defs/N"}}}}}}
    entry = made(TOOL, {"name": "a", "inputSchema": schema}).entries[0]
    assert form(entry, "prefixed", "legacy")["inputSchema"] == schema


def test_one_odd_tool_does_not_take_the_list_down() -> None:
    """S03: odd tools are left out one by one, with name and reason."""
    found = made(
        TOOL,
        {"name": "int", "inputSchema": {"type": "int"}},
        {"name": "str", "inputSchema": "x"},
        {"name": "none", "inputSchema": {}},
        {"name": "bool", "inputSchema": {"type": "object", "properties": {"a": True}}},
        {"name": "ok", "inputSchema": SCHEMA},
        {"name": "ok", "inputSchema": SCHEMA},
        {"inputSchema": SCHEMA},
        {"name": 7},
        5,
    )
    assert [entry.key for entry in found.entries] == ["bool", "ok"]
    assert len(found.left_out) == 7
    assert "'int'" in found.left_out[0]
    assert any("twice" in reason for reason in found.left_out)


def test_names_that_clients_refuse() -> None:
    """N05: all are reachable under legal names; the upstream's spelling is the key."""
    names = ["cal.read", "files/list", "two words", "zoé", "__NOTE", "search-a", "search_a"]
    entries = made(TOOL, *({"name": name, "inputSchema": SCHEMA} for name in names)).entries
    assert [entry.key for entry in entries] == names
    assert len({entry.exposed for entry in entries}) == len(names)
    assert all(entry.exposed.replace("-", "_").isidentifier() and entry.exposed.isascii() for entry in entries)


def test_a_short_form_that_is_another_tools_name_gives_way() -> None:
    """N02, N05: both are reachable under names of their own, whatever the order of the list."""
    taken = exposed_name("s", "cal.read").removeprefix("s__")
    tools = [{"name": name, "inputSchema": SCHEMA} for name in ("cal.read", taken, "files/list")]
    exposed = {entry.key: entry.exposed for entry in made(TOOL, *tools).entries}
    assert exposed[taken] == f"s__{taken}"
    assert exposed["cal.read"] == exposed_name("s", "cal.read", 1) != exposed_name("s", "cal.read")
    assert exposed["files/list"] == exposed_name("s", "files/list")
    backwards = made(TOOL, *reversed(tools)).entries
    assert {entry.key: entry.exposed for entry in backwards} == exposed
    assert [form(entry, "prefixed", "legacy")["name"] for entry in backwards] == [e.exposed for e in backwards]
    assert [form(entry, "raw", "modern")["name"] for entry in backwards] == ["files/list", taken, "cal.read"]


@pytest.mark.parametrize("schema", [{"type": "array"}, {}, "x", True])
def test_an_output_schema_that_is_no_object_schema_is_kept_from_legacy_clients(schema: Any) -> None:
    """One such tool makes a legacy client refuse the whole list."""
    tool = {"name": "a", "inputSchema": SCHEMA, "outputSchema": schema}
    entry = made(TOOL, tool, upstream="modern").entries[0]
    assert form(entry, "raw", "legacy") == {"name": "a", "inputSchema": SCHEMA}
    assert form(entry, "prefixed", "legacy") == {"name": "s__a", "inputSchema": SCHEMA}
    assert form(entry, "raw", "modern") == tool
    assert form(entry, "prefixed", "modern") == {**tool, "name": "s__a"}


def test_a_good_output_schema_stays() -> None:
    tool = {"name": "a", "inputSchema": SCHEMA, "outputSchema": SCHEMA}
    assert form(made(TOOL, tool, upstream="modern").entries[0], "raw", "legacy") == tool


def test_a_tool_that_only_runs_as_a_task_is_not_shown_to_modern_clients() -> None:
    tool = {"name": "a", "inputSchema": SCHEMA, "execution": {"taskSupport": "required"}}
    found = made(TOOL, tool)
    assert form(found.entries[0], "raw", "modern") is None
    assert form(found.entries[0], "prefixed", "modern") is None
    assert form(found.entries[0], "prefixed", "legacy") == {**tool, "name": "s__a"}
    assert "its server declares that it runs as a task only" in found.left_out[0]
    assert "coffer mcp tools s --disable a" in found.left_out[0]
    assert made(TOOL, tool, upstream="modern").left_out == []
    assert made(TOOL, {**tool, "execution": {}}).left_out == []


def test_uris_and_templates_and_references() -> None:
    """R04, R05, R06: URIs are strings; only a prefix is put before them."""
    for uri in ["users/me", "x:opaque", "http://Host.Example", "demo://A/../b", "file:///my docs/%2F", "file:///café"]:
        entry = made(RESOURCE, {"uri": uri, "name": "n"}).entries[0]
        assert form(entry, "prefixed", "legacy") == {"uri": f"coffer://s/{uri}", "name": "n"}
    entry = made(TEMPLATE, {"uriTemplate": "x://{id}", "name": "n"}).entries[0]
    assert form(entry, "prefixed", "modern")["uriTemplate"] == "coffer://s/x://{id}"
    assert made(PROMPT, {"name": "p"}).entries[0].exposed == "s__p"
    tool = {"name": "a", "inputSchema": SCHEMA, "_meta": {"ui": {"resourceUri": "ui://app/v.html"}}}
    entry = made(TOOL, tool).entries[0]
    assert form(entry, "prefixed", "legacy")["_meta"]["ui"]["resourceUri"] == "ui://s/app/v.html"
    assert form(entry, "raw", "legacy") == tool
    unchanged = {"name": "a", "inputSchema": SCHEMA, "description": "esourceUri"}
    assert form(made(TOOL, unchanged).entries[0], "prefixed", "legacy") == {**unchanged, "name": "s__a"}


def test_pages() -> None:
    page = catalogue.page(TOOL, b'{"tools":[{"name":"a"}],"nextCursor":"c","ttlMs":50,"cacheScope":"public"}')
    assert ([bytes(item) for item in page.items], page.cursor, page.ttl_ms, page.scope) == (
        [b'{"name":"a"}'],
        "c",
        50,
        "public",
    )
    assert catalogue.page(TOOL, b"{}") == Page([], None)
    assert catalogue.page(TOOL, b'{"tools":[],"nextCursor":""}').cursor is None
    assert catalogue.page(TOOL, b'{"tools":[],"ttlMs":1%b}' % (b"0" * 30)).ttl_ms == -1
    with pytest.raises(ValueError, match="array"):
        catalogue.page(TOOL, b'{"tools":5}')


def test_what_is_declared() -> None:
    assert catalogue.declares(b'{"tools":{}}', TOOL)
    assert not catalogue.declares(b'{"tools":{}}', PROMPT)
    assert catalogue.declares(b'{"resources":{}}', TEMPLATE)
    assert not catalogue.declares(b"x", TOOL)


def test_hints_of_all_pages_together() -> None:
    """E12: the smallest ttl, the narrowest scope."""
    public, private = Page([], None, 100, "public"), Page([], None, 50, "private")
    assert catalogue.narrowest([public, private], "modern") == (50, "private")
    assert catalogue.narrowest([public], "modern") == (100, "public")
    assert catalogue.narrowest([public], "legacy") == (100, "private")
    assert catalogue.narrowest([Page([], None)], "modern") == (-1, "private")
    assert catalogue.narrowest([], "modern") == (-1, "private")


def test_tools_that_cannot_be_called_over_http_are_left_out_with_their_reason() -> None:
    good = {"name": "a", "inputSchema": SCHEMA}
    bad = {"name": "b", "inputSchema": {**SCHEMA, "properties": {"x": {"type": "array", "x-mcp-header": "X"}}}}
    found = catalogue.callable_over_http(made(TOOL, good, bad, {"name": "c"}, upstream="modern"))
    assert [entry.key for entry in found.entries] == ["a"]
    assert len(found.left_out) == 2
    assert "'b'" in found.left_out[1]
