"""Servers that work in the directory of the client's project, through the installed commands, shims and daemon."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from coffer_common import exits
from coffer_supervisor.endpoint.shim_socket import project_of
from tests.support import upstreams
from tests.support.clients import ERAS, http_client, json_of
from tests.support.daemon import SHIM, Daemon
from tests.support.upstreams import Upstream
from tests.support.wait import wait_for

pytestmark = pytest.mark.e2e
SERVER = ("--tools", "whoami", "counter")


@asynccontextmanager
async def shim_in(daemon: Daemon, folder: Path, mode: str) -> AsyncIterator[Client]:
    """The SDK's client over a shim that is started in ``folder``."""
    parameters = StdioServerParameters(command=SHIM, env=daemon.env, cwd=str(folder))
    with open(daemon.home / "shim.err", "a", encoding="utf-8") as errors:
        async with Client(stdio_client(parameters, errlog=errors), mode=mode) as client:
            yield client


async def cwd_of(client: Client) -> str:
    """Where the server runs that answers this client."""
    return str(json_of(await client.call_tool("s__whoami", {}))["cwd"])


async def registered(daemon: Daemon, upstream: Upstream, *options: str) -> None:
    """The server ``s``, by command."""
    env = [word for name, value in upstream.env.items() for word in ("--env", f"{name}={value}")]
    done = await asyncio.to_thread(daemon.cli, "mcp", "add", "s", *options, *env, "--", *upstream.argv)
    assert done.returncode == exits.OK, done.stderr
    assert "✓ s is ready" in done.stdout, done.stdout


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two projects."""
    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir()
    b.mkdir()
    return a.resolve(), b.resolve()


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_two_clients_in_two_folders_are_served_in_their_own(
    daemon: Daemon, folders: tuple[Path, Path], era: str, mode: str
) -> None:
    """Each project has its own process, a second client there finds it again, and HTTP clients get the default."""
    await registered(daemon, upstreams.fake("--era", era, *SERVER), "--per-project")
    a, b = folders
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(shim_in(daemon, a, mode))
        second = await stack.enter_async_context(shim_in(daemon, b, mode))
        assert [await cwd_of(first), await cwd_of(second)] == [str(a), str(b)]
        assert await cwd_of(first) == str(a)
        third = await stack.enter_async_context(shim_in(daemon, b, mode))
        assert await cwd_of(third) == str(b)
        fourth = await stack.enter_async_context(http_client(daemon, mode))
        assert await cwd_of(fourth) == daemon.env["HOME"]
    shown = json.loads((await asyncio.to_thread(daemon.cli, "mcp", "show", "s", "--json")).stdout)
    assert "per_project" in json.dumps(shown)


async def test_ps_says_which_projects_a_server_runs_for(daemon: Daemon, folders: tuple[Path, Path]) -> None:
    """The table names their folders; one server in detail says which connection and process is whose, and each call."""
    await registered(daemon, upstreams.fake("--era", "modern", "--tools", "whoami", "hang"), "--per-project")
    a, _ = folders

    async def seen(*words: str) -> dict[str, Any]:
        return dict(json.loads((await asyncio.to_thread(daemon.cli, "ps", *words, "--json")).stdout))

    async def projects() -> bool:
        return (await seen())["workers"][0]["projects"] == [str(a)]

    async with shim_in(daemon, a, "auto") as client:
        assert await cwd_of(client) == str(a)
        await wait_for(projects, 20, "the project in ps")
        hanging = asyncio.create_task(client.call_tool("s__hang", {}))

        async def in_flight() -> dict[str, Any] | None:
            detail = await seen("s")
            return detail if detail["calls"] else None

        detail = await wait_for(in_flight, 20, "the call")
        assert [(call["project"], call["method"]) for call in detail["calls"]] == [(str(a), "tools/call")]
        own = next(one for one in detail["connections"] if one["project"] == str(a))
        assert own["calls"] == 1 and set(own["pids"]) <= {process["pid"] for process in detail["tree"]}
        assert all(process["cpu_percent"] is not None for process in detail["tree"])
        text = (await asyncio.to_thread(daemon.cli, "ps", "s")).stdout
        assert "PROJECTS" in text and text.count(str(a)) >= 2
        assert "tools/call  hang" in text and "coffer_worker/" in text
        hanging.cancel()


async def test_clients_of_one_project_share_a_server_that_is_shared(daemon: Daemon, folders: tuple[Path, Path]) -> None:
    """The counter of a project is seen by its clients, and by nobody of the other one."""
    await registered(daemon, upstreams.fake("--era", "legacy", *SERVER), "--per-project", "--isolation", "shared")
    a, b = folders
    counts = []
    for folder in (a, a, b):
        async with shim_in(daemon, folder, "legacy") as client:
            counts.append((await client.call_tool("s__counter", {})).content[0].text)  # type: ignore[union-attr]
    assert counts == ["1", "2", "1"]


async def test_without_the_option_the_clients_folder_makes_no_difference(
    daemon: Daemon, folders: tuple[Path, Path]
) -> None:
    """The default is the home folder; `update` switches it on and off."""
    await registered(daemon, upstreams.fake(*SERVER))
    for option, where in (
        ("", daemon.env["HOME"]),
        ("--per-project", folders[0]),
        ("--no-per-project", daemon.env["HOME"]),
    ):
        if option:
            assert (await asyncio.to_thread(daemon.cli, "mcp", "update", "s", option)).returncode == exits.OK
        async with shim_in(daemon, folders[0], "legacy") as client:
            assert await cwd_of(client) == str(where)


async def test_a_folder_that_is_gone_means_the_default_and_is_said(daemon: Daemon, folders: tuple[Path, Path]) -> None:
    """The call is served, and the log of the server says where."""
    await registered(daemon, upstreams.fake("--era", "legacy", *SERVER), "--per-project")
    async with shim_in(daemon, folders[0], "legacy") as client:
        await client.list_tools()
        folders[0].rmdir()
        assert await cwd_of(client) == daemon.env["HOME"]
    logs = (await asyncio.to_thread(daemon.cli, "mcp", "logs", "s")).stdout
    assert str(folders[0]) in logs
    assert "default directory" in logs


async def test_a_project_that_is_idle_has_its_server_closed(daemon: Daemon, folders: tuple[Path, Path]) -> None:
    """Its process ends though the daemon and other clients live."""
    await registered(daemon, upstreams.fake("--era", "modern", *SERVER), "--per-project", "--limit", "idle-close=1")

    async def none() -> bool:
        return (await asyncio.to_thread(daemon.server, "s"))["connections"] == 0

    async with shim_in(daemon, folders[0], "auto") as client:
        assert await cwd_of(client) == str(folders[0])
        await wait_for(none, 20, "the processes to be closed")
        assert await cwd_of(client) == str(folders[0])


def test_a_server_at_a_url_has_no_directory(daemon: Daemon) -> None:
    done = daemon.cli("mcp", "add", "web", "--per-project", "--url", "http://127.0.0.1:1/mcp")
    assert done.returncode == exits.USAGE
    assert "--per-project" in done.stderr


@pytest.mark.parametrize(("cwd", "project"), [("/a", "/a"), ("/", ""), ("", ""), ("a", ""), ("/a\0b", "")])
def test_what_counts_as_a_project(cwd: str, project: str) -> None:
    assert project_of(cwd) == project
