"""Resources, choices, audit and retention, in a real database."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from coffer_common.resources import HttpServer, StdioServer
from coffer_supervisor.store import Duplicate, Invalid, NotFound, Store
from coffer_supervisor.store.migrate import upgrade
from coffer_supervisor.store.retention import Retention
from tests.integration.test_store_invocations import call

CONFIG = {"transport": "stdio", "command": "npx", "env": {"TOKEN": "${github}"}}
START = datetime(2026, 5, 20, 12, 0, tzinfo=UTC)


class Clock:
    """The time as the test sets it."""

    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> datetime:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[Store]:
    upgrade(tmp_path / "coffer.db", tmp_path / "backups")
    opened = await Store.open(tmp_path / "coffer.db", tmp_path / "backups", now=clock)
    yield opened
    await opened.close()


def raw(store: Store, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        return connection.execute(statement, values).fetchall()


async def events(store: Store) -> list[tuple[str, str | None, str, dict[str, Any]]]:
    return [(entry.event, entry.name, entry.actor, entry.details) for entry in reversed(await store.audit.list())]


# ---------------------------------------------------------------------------------------------- resources


async def test_a_resource_is_made_read_changed_and_removed(store: Store, clock: Clock) -> None:
    """Create, read, update, delete for every kind through one path, with timestamps."""
    made = await store.resources.create("mcp_server", "files", CONFIG, description="mine", actor="cli")
    assert made == await store.resources.get("mcp_server", "files")
    assert made.config == StdioServer(command="npx", env={"TOKEN": "${github}"})
    assert (made.enabled, made.created_at, made.updated_at) == (True, START, START)
    clock.time += timedelta(hours=1)
    changed = await store.resources.update(
        "mcp_server", "files", config={"transport": "http", "url": "https://x.test/"}, actor="ui"
    )
    assert changed == await store.resources.get("mcp_server", "files")
    assert changed.config == HttpServer(url="https://x.test/")
    assert (changed.description, changed.created_at, changed.updated_at) == ("mine", START, clock.time)
    await store.resources.delete("mcp_server", "files", actor="api")
    assert await store.resources.list() == []
    with pytest.raises(NotFound) as raised:
        await store.resources.get("mcp_server", "files")
    assert raised.value.hint.endswith("coffer mcp list")


async def test_all_kinds_go_one_way(store: Store) -> None:
    """Names are unique within a kind, and kinds do not know of each other."""
    for kind, config in (
        ("mcp_server", CONFIG),
        ("credential", {"backend": "file", "updated_at": "2026-05-20T12:00:00Z"}),
        ("client", {"token_sha256": "a" * 64, "servers": ["same"]}),
        ("group", {"servers": ["same"], "capabilities": [{"server": "same", "type": "tool"}]}),
    ):
        await store.resources.create(kind, "same", config, enabled=kind != "group", actor="cli")  # type: ignore[arg-type]
        found = await store.resources.list(kind)  # type: ignore[arg-type]
        assert [(resource.kind, resource.name) for resource in found] == [(kind, "same")]
    assert [resource.kind for resource in await store.resources.list()] == [
        "client", "credential", "group", "mcp_server",
    ]  # fmt: skip
    assert [resource.kind for resource in await store.resources.list(enabled=False)] == ["group"]
    await store.resources.delete("client", "same", actor="cli")
    assert len(await store.resources.list()) == 3


async def test_a_duplicate_is_refused_and_changes_nothing(store: Store) -> None:
    """Duplicate: a clear error and nothing written, not even to the audit log."""
    await store.resources.create("mcp_server", "files", CONFIG, actor="cli")
    before = raw(store, "SELECT * FROM resource"), await events(store)
    with pytest.raises(Duplicate, match="the server files exists already"):
        await store.resources.create("mcp_server", "files", {**CONFIG, "command": "other"}, actor="cli")
    assert (raw(store, "SELECT * FROM resource"), await events(store)) == before


@pytest.mark.parametrize(
    ("name", "changes"),
    [("Files", {}), ("files", {"config": {"transport": "stdio"}}), ("files", {"description": "x" * 2001})],
)
async def test_what_is_invalid_is_refused_and_changes_nothing(name: str, changes: dict[str, Any], store: Store) -> None:
    """Invalid: a clear error and nothing written, at creation and at update."""
    arguments = {"config": CONFIG, **changes}
    with pytest.raises(Invalid):
        await store.resources.create("mcp_server", name, actor="cli", **arguments)
    assert raw(store, "SELECT * FROM resource") == []
    await store.resources.create("mcp_server", "files", CONFIG, actor="cli")
    before = raw(store, "SELECT * FROM resource"), await events(store)
    with pytest.raises(Invalid):
        await store.resources.update("mcp_server", name, actor="cli", **arguments)
    assert (raw(store, "SELECT * FROM resource"), await events(store)) == before


async def test_every_change_is_audited_with_it(store: Store) -> None:
    """A row for every lifecycle change: when, event, kind, name, actor, and the names of what changed, never values."""
    await store.resources.create("mcp_server", "files", CONFIG, actor="cli")
    await store.resources.update("mcp_server", "files", config=CONFIG, description="", actor="cli")
    await store.resources.update(
        "mcp_server", "files", config={**CONFIG, "args": ["s3cr3t"]}, description="new", actor="api"
    )
    await store.resources.disable("mcp_server", "files", actor="ui")
    await store.resources.disable("mcp_server", "files", actor="ui")
    await store.resources.enable("mcp_server", "files", actor="cli")
    await store.resources.delete("mcp_server", "files", actor="system")
    assert await events(store) == [
        ("resource.created", "files", "cli", {"enabled": True, "fields": ["command", "env", "transport"]}),
        ("resource.updated", "files", "api", {"changed": ["args", "description"]}),
        ("resource.disabled", "files", "ui", {}),
        ("resource.enabled", "files", "cli", {}),
        ("resource.deleted", "files", "system", {}),
    ]
    assert "s3cr3t" not in str(raw(store, "SELECT * FROM audit_log"))


async def test_switching_shows_in_what_is_read(store: Store) -> None:
    """Switched off stays registered."""
    await store.resources.create("mcp_server", "files", CONFIG, actor="cli")
    assert (await store.resources.disable("mcp_server", "files", actor="cli")).enabled is False
    assert await store.resources.list(enabled=True) == []
    assert (await store.resources.enable("mcp_server", "files", actor="cli")).enabled is True
    assert len(await store.resources.list(enabled=True)) == 1


async def test_what_is_not_there_cannot_be_changed(store: Store) -> None:
    """Each change of an unknown name says so, and writes nothing."""
    resources = store.resources
    for attempt in (
        resources.update("group", "absent", description="x", actor="cli"),
        resources.enable("group", "absent", actor="cli"),
        resources.disable("group", "absent", actor="cli"),
        resources.delete("group", "absent", actor="cli"),
    ):
        with pytest.raises(NotFound, match="there is no group absent"):
            await attempt
    assert await events(store) == []


async def test_one_unreadable_configuration_hides_no_other(store: Store) -> None:
    """D08: what cannot be read is named and left as it is; the rest works, and it can be replaced or removed."""
    for name in ("good", "bad", "worse"):
        await store.resources.create("mcp_server", name, CONFIG, actor="cli")
    raw(store, "UPDATE resource SET config = '{\"transport\": \"stdio\"}' WHERE name = 'bad'")
    raw(store, "UPDATE resource SET config = '{half' WHERE name = 'worse'")
    raw(store, "INSERT INTO resource VALUES (9, 'planet', 'mars', '', '{}', 1, 0, 0)")
    assert [resource.name for resource in await store.resources.list()] == ["good"]
    named = {(found.kind, found.name): found.reason for found in await store.resources.unreadable()}
    assert set(named) == {("mcp_server", "bad"), ("mcp_server", "worse"), ("planet", "mars")}
    assert "command" in named["mcp_server", "bad"]
    assert "planet" in named["planet", "mars"]
    with pytest.raises(Invalid) as raised:
        await store.resources.get("mcp_server", "bad")
    assert raised.value.code == "unreadable_config"
    with pytest.raises(Invalid):
        await store.resources.disable("mcp_server", "bad", actor="cli")
    for name in ("bad", "worse"):
        await store.resources.update("mcp_server", name, config=CONFIG, actor="cli")
    await store.resources.delete("planet", "mars", actor="cli")  # type: ignore[arg-type]
    assert await store.resources.unreadable() == []
    assert len(await store.resources.list()) == 3


# ---------------------------------------------------------------------------------------------- preferences


async def test_new_capabilities_follow_the_server_s_policy(store: Store) -> None:
    """New ones are switched on or off by the server's policy, and their discovery is audited as one entry."""
    await store.resources.create("mcp_server", "files", CONFIG, actor="cli")
    assert await store.preferences.seen("files", [("tool", "a"), ("prompt", "a"), ("tool", "a")], True) == [
        ("tool", "a"),
        ("prompt", "a"),
    ]
    assert await store.preferences.seen("files", [("tool", "a"), ("tool", "b")], False) == [("tool", "b")]
    assert await store.preferences.seen("files", [("tool", "a"), ("tool", "b")], False) == []
    assert await store.preferences.load("files") == {
        ("tool", "a"): True,
        ("prompt", "a"): True,
        ("tool", "b"): False,
    }
    first, second = [details for event, _, _, details in await events(store) if event == "capability.discovered"]
    assert first == {
        "enabled": True,
        "count": 2,
        "capabilities": [{"type": "tool", "key": "a"}, {"type": "prompt", "key": "a"}],
    }
    assert second["count"] == 1


async def test_a_huge_catalogue_makes_a_small_audit_entry(store: Store) -> None:
    """A thousand new tools are one entry that says how many there were."""
    await store.resources.create("mcp_server", "files", CONFIG, actor="cli")
    new = await store.preferences.seen("files", [("tool", f"t{number}") for number in range(1000)], True)
    assert len(new) == len(await store.preferences.load("files")) == 1000
    details = (await store.audit.list(event="capability.discovered"))[0].details
    assert (details["count"], len(details["capabilities"])) == (1000, 200)


async def test_a_choice_survives_disappearance(store: Store, clock: Clock) -> None:
    """A key that disappears keeps its row: the choice is there when it comes back; the times tell the story."""
    await store.resources.create("mcp_server", "files", CONFIG, actor="cli")
    await store.preferences.seen("files", [("tool", "a"), ("tool", "b")], True)
    assert await store.preferences.set("files", "tool", "a", False, actor="cli") is True
    clock.time += timedelta(days=1)
    await store.preferences.seen("files", [("tool", "b")], True)
    assert await store.preferences.seen("files", [], True) == []
    assert (await store.preferences.load("files"))["tool", "a"] is False
    clock.time += timedelta(days=1)
    assert await store.preferences.seen("files", [("tool", "a")], True) == []
    assert (await store.preferences.load("files"))["tool", "a"] is False
    day = 86_400_000_000
    times = raw(store, "SELECT key, last_seen_at - first_seen_at FROM capability_preference ORDER BY key")
    assert times == [("a", 2 * day), ("b", day)]


async def test_a_choice_is_audited_once(store: Store) -> None:
    """Switching a capability is a lifecycle change; choosing what is chosen already is none."""
    await store.resources.create("mcp_server", "files", CONFIG, actor="cli")
    await store.preferences.seen("files", [("tool", "a")], True)
    assert await store.preferences.set("files", "tool", "a", True, actor="ui") is False
    assert await store.preferences.set("files", "tool", "a", False, actor="ui") is True
    assert await store.preferences.set("files", "tool", "a", True, actor="cli") is True
    assert (await events(store))[2:] == [
        ("capability.disabled", "files", "ui", {"type": "tool", "key": "a"}),
        ("capability.enabled", "files", "cli", {"type": "tool", "key": "a"}),
    ]


async def test_choices_go_with_their_server_only(store: Store) -> None:
    """Removing a server forgets its choices; those of others stay, and nothing is written for what is gone."""
    for name in ("files", "docs"):
        await store.resources.create("mcp_server", name, CONFIG, actor="cli")
        await store.preferences.seen(name, [("tool", "a")], True)
    await store.resources.create("group", "files", {}, actor="cli")
    await store.resources.delete("group", "files", actor="cli")
    assert set(await store.preferences.load_all()) == {"files", "docs"}
    await store.resources.delete("mcp_server", "files", actor="cli")
    assert await store.preferences.load_all() == {"docs": {("tool", "a"): True}}
    with pytest.raises(NotFound, match="there is no server files"):
        await store.preferences.seen("files", [("tool", "late")], True)
    with pytest.raises(NotFound, match="there is no server files"):
        await store.preferences.set("files", "tool", "a", False, actor="cli")
    with pytest.raises(NotFound, match="never listed a prompt 'a'") as raised:
        await store.preferences.set("docs", "prompt", "a", False, actor="cli")
    assert raised.value.code == "unknown_capability"
    assert await store.preferences.load("files") == {}


# ---------------------------------------------------------------------------------------------- audit


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, [4, 3, 2, 1, 0]),
        ({"kind": "group"}, [1]),
        ({"name": "files"}, [2, 0]),
        ({"event": "daemon.started"}, [3]),
        ({"actor": "ui"}, [2]),
        ({"since": START + timedelta(minutes=3)}, [4, 3]),
        ({"until": START + timedelta(minutes=1)}, [0]),
        ({"limit": 2}, [4, 3]),
        ({"limit": -1}, [4]),
        ({"before": 3}, [1, 0]),
        ({"after": 2}, [4, 3, 2]),
        ({"after": 2, "limit": 2}, [3, 2]),
    ],
)
async def test_the_audit_log_is_searched(
    filters: dict[str, Any], expected: list[int], store: Store, clock: Clock
) -> None:
    """Newest first, by kind, name, event, actor and time, a page at a time."""
    entries: list[dict[str, Any]] = [
        {"event": "resource.created", "kind": "mcp_server", "name": "files", "actor": "cli"},
        {"event": "resource.created", "kind": "group", "name": "work", "actor": "cli"},
        {"event": "resource.updated", "kind": "mcp_server", "name": "files", "actor": "ui"},
        {"event": "daemon.started", "actor": "system", "details": {"version": "1"}},
        {"event": "resource.created", "kind": "mcp_server", "name": "docs", "actor": "api"},
    ]
    for number, entry in enumerate(entries):
        clock.time = START + timedelta(minutes=number)
        await store.audit.add(**entry)
    found = await store.audit.list(**filters)
    assert [(entry.when - START).seconds // 60 for entry in found] == expected


async def test_an_entry_comes_back_as_it_was_written(store: Store) -> None:
    """What concerns no resource has neither kind nor name."""
    await store.audit.add("daemon.started", actor="system", details={"port": 8000, "reason": None})
    (entry,) = await store.audit.list()
    assert (entry.kind, entry.name, entry.details) == (None, None, {"port": 8000, "reason": None})
    assert (entry.when, entry.actor) == (START, "system")


# ---------------------------------------------------------------------------------------------- retention


async def test_each_log_has_its_time(store: Store) -> None:
    """A year of audit, a month of invocations; changes are audited and survive a restart."""
    assert [(policy.table, policy.days) for policy in await store.retention.list()] == [
        ("audit_log", 365),
        ("mcp_invocations", 30),
    ]
    await store.retention.set("mcp_invocations", 7, actor="cli")
    await store.retention.set("audit_log", None, actor="ui")
    assert [(policy.table, policy.days) for policy in await store.retention.list()] == [
        ("audit_log", None),
        ("mcp_invocations", 7),
    ]
    assert await events(store) == [
        ("retention.changed", "mcp_invocations", "cli", {"before": 30, "after": 7}),
        ("retention.changed", "audit_log", "ui", {"before": 365, "after": None}),
    ]


async def test_a_lost_policy_is_the_default(store: Store) -> None:
    """A table without a row in the policies is kept for its default time."""
    raw(store, "DELETE FROM retention_policy")
    assert [policy.days for policy in await store.retention.list()] == [365, 30]
    await store.retention.set("audit_log", 10, actor="cli")
    assert [policy.days for policy in await store.retention.list()] == [10, 30]


async def test_impossible_policies_are_refused(store: Store) -> None:
    """Only the log tables have a time, and only a sensible one."""
    with pytest.raises(NotFound, match="resource"):
        await store.retention.set("resource", 1, actor="cli")
    for days in (0, -1, 36_501):
        with pytest.raises(Invalid):
            await store.retention.set("audit_log", days, actor="cli")
    assert await events(store) == []


async def test_old_rows_go_in_small_batches(store: Store, clock: Clock) -> None:
    """Pruning takes what is older than its time, in many small transactions that a stop may come between."""
    # The store prunes by itself when it is opened: not in the middle of this.
    store._closing.set()
    assert store._pruning is not None
    await store._pruning
    for number in range(25):
        store.invocations.record(call(number))
    store.invocations.record(call(0, when=START + timedelta(days=20)))
    await store.invocations.flush()
    await store.audit.add("old", actor="system")
    clock.time = START + timedelta(days=31)
    stopped, pruning = (Retention(store._database, clock, batch=10) for _ in range(2))
    stopped.stop()
    assert await stopped.prune() == {"audit_log": 0, "mcp_invocations": 10}
    assert await pruning.prune() == {"audit_log": 0, "mcp_invocations": 15}
    assert len(await store.invocations.list()) == 1
    clock.time = START + timedelta(days=366)
    await store.retention.set("mcp_invocations", None, actor="cli")
    assert await store.retention.prune() == {"audit_log": 1, "mcp_invocations": 0}
    assert len(await store.invocations.list()) == 1
