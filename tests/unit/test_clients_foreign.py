"""Entries of other programs become servers of Coffer; secrets leave the configuration, nothing is lost in silence."""

from pathlib import Path
from typing import Any

import pytest

from coffer_cli.clients import foreign, known

TOKEN = "ghp_aaaaaaaaaaaaaaaaaaaaaaaa"
ENV = {"HOME": "/home/me", "GH": TOKEN, "PLAIN": "yes"}


def read(entry: Any, wish: str = "gh", **more: Any) -> foreign.Plan:
    return foreign.read(wish, entry, "mcpServers", ENV, **more)


def test_a_command_with_everything() -> None:
    """Command, args, env, cwd and switches are taken over; unknown keys are named; secrets are kept apart."""
    plan = read(
        {
            "type": "stdio",
            "command": "npx",
            "args": ["-y", "x", 3],
            "env": {"GITHUB_TOKEN": TOKEN, "DEBUG": True, "N": 4, "GONE": None, "SECRET_KEY": ""},
            "cwd": "${userHome}/w",
            "disabled": True,
            "autoApprove": ["a"],
        },
        "My Server",
    )
    assert plan.problem == ""
    assert (plan.name, plan.enabled, plan.ignored) == ("my-server", False, ["autoApprove"])
    assert plan.config == {
        "transport": "stdio",
        "command": "npx",
        "args": ["-y", "x", "3"],
        "env": {"GITHUB_TOKEN": "${my-server-github-token}", "DEBUG": "true", "N": "4", "SECRET_KEY": ""},
        "cwd": "~/w",
    }
    assert plan.secrets == {"my-server-github-token": TOKEN}
    assert TOKEN not in repr(plan)
    plan.rename("other")
    assert plan.config["env"]["GITHUB_TOKEN"] == "${other-github-token}"
    assert plan.secrets == {"other-github-token": TOKEN}


def test_a_url_with_headers() -> None:
    """The scheme of an Authorization header stays readable; only the secret goes."""
    plan = read({"url": "https://h/mcp", "headers": {"Authorization": f"Bearer {TOKEN}", "X-A": "b"}, "oauth": {}})
    assert plan.config == {
        "transport": "http",
        "url": "https://h/mcp",
        "headers": {"Authorization": "Bearer ${gh-authorization}", "X-A": "b"},
    }
    assert plan.ignored == ["oauth"]
    plan.rename("b")
    assert plan.config["headers"]["Authorization"] == "Bearer ${b-authorization}"


@pytest.mark.parametrize(
    ("url", "shown", "secret"),
    [
        ("https://h/mcp?a=b", "https://h/mcp?a=b", None),
        (f"https://h/mcp?key={TOKEN}", "https://h/mcp?${gh-url}", f"key={TOKEN}"),
        (f"https://h/{TOKEN}/mcp", "https://h/${gh-url}", f"{TOKEN}/mcp"),
        ("https://me:hunter22@h/mcp", "https://${gh-url}", "me:hunter22@h/mcp"),
        ("https://[x/mcp", "https://[x/mcp", None),
    ],
)
def test_secrets_in_a_url(url: str, shown: str, secret: str | None) -> None:
    """The smallest end of the URL that holds the secret becomes a reference."""
    plan = read({"serverUrl": url})
    assert plan.config["url"] == shown
    assert list(plan.secrets.values()) == ([] if secret is None else [secret])
    plan.rename("b")
    assert plan.config["url"] == shown.replace("gh-url", "b-url")


def test_variables_are_filled_in_and_count_as_secrets() -> None:
    """K06: a placeholder is never sent as the secret: it is filled in now, or the entry is refused."""
    plan = read({"command": "x", "args": ["${env:PLAIN}", "${NONE:-d}"], "env": {"A": "${PLAIN}", "B": "${GH}"}})
    assert plan.config["args"] == ["yes", "d"]
    assert plan.config["env"] == {"A": "${gh-a}", "B": "${gh-b}"}
    assert plan.secrets == {"gh-a": "yes", "gh-b": TOKEN}
    assert "NOT_SET" in read({"command": "x", "env": {"A": "${NOT_SET}"}}).problem
    assert "${input:key}" in read({"command": "x", "env": {"A": "${input:key}"}}).problem
    assert "workspaceFolder" in read({"command": "x", "args": ["${workspaceFolder}"]}).problem
    assert read({"command": "x", "args": ["${workspaceFolder}"]}, project="/p").config["args"] == ["/p"]
    assert read({"command": "x"}, project="/p").config["cwd"] == "/p"


@pytest.mark.parametrize("cwd", [None, ".", "./", "${workspaceFolder}", "/p", "/p/"])
def test_a_projects_server_runs_in_each_clients_project(cwd: str | None) -> None:
    """It works on what it is started in; its own folder is for clients that have no project."""
    plan = read({"command": "npx", "args": ["-y", "x"]} | ({"cwd": cwd} if cwd else {}), project="/p")
    assert plan.config == {
        "transport": "stdio",
        "command": "npx",
        "args": ["-y", "x"],
        "cwd": "/p",
        "per_project": True,
    }
    assert plan.tied == ""


@pytest.mark.parametrize(
    ("entry", "cwd", "why"),
    [
        ({"args": ["${workspaceFolder}/a"]}, "/p", "name this folder"),
        ({"args": ["--root", "/p"]}, "/p", "name this folder"),
        ({"env": {"ROOT": "${workspaceFolder}"}}, "/p", "name this folder"),
        ({"cwd": "sub"}, "/p/sub", "its cwd is /p/sub"),
        ({"cwd": "${workspaceFolder}/sub"}, "/p/sub", "its cwd is /p/sub"),
        ({"cwd": "${userHome}/w"}, "~/w", "its cwd is ~/w"),
        ({"cwd": "/elsewhere"}, "/elsewhere", "its cwd is /elsewhere"),
        ({"args": ["server.py"]}, "/p", "starts server.py"),
    ],
)
def test_a_projects_server_that_belongs_to_its_folder_stays_there(entry: dict[str, Any], cwd: str, why: str) -> None:
    """In another project it would work on this one, or not be found."""
    files = [word for word in foreign.words(entry) if word == "server.py"]
    plan = read({"command": "x", **entry}, project="/p", files=files)
    assert (plan.problem, plan.config["cwd"], plan.config.get("per_project")) == ("", cwd, None)
    assert why in plan.tied
    assert plan.config.get("env", {"ROOT": "/p"}) == {"ROOT": "/p"}


def test_a_server_for_all_projects_may_be_meant_for_each() -> None:
    """One that names the workspace as its directory runs in each; one with a directory of its own runs there."""
    plan = read({"command": "x", "cwd": "${workspaceFolder}"})
    assert (plan.config["per_project"], "cwd" in plan.config) == (True, False)
    assert read({"command": "x", "cwd": "~/a"}).config == {"transport": "stdio", "command": "x", "cwd": "~/a"}
    assert "per_project" not in read({"command": "x"}).config


def test_the_words_of_an_entry_that_may_be_files() -> None:
    assert foreign.words({"command": "python", "args": ["-u", "a.py", 3, ""]}) == ["python", "a.py"]
    assert foreign.words({"command": ["node", "b.js"]}) == ["node", "b.js"]
    assert foreign.words({"command": "x", "args": "no list"}) == ["x"]
    assert foreign.words("nothing") == []


@pytest.mark.parametrize(
    ("path", "project"),
    [
        ("/p/.cursor/mcp.json", "/p"),
        ("/p/.vscode/mcp.json", "/p"),
        ("/p/.mcp.json", "/p"),
        ("/p/.codex/config.toml", "/p"),
        ("/home/me/.cursor/mcp.json", ""),
        ("/home/me/.config/Code/User/mcp.json", ""),
        ("/p/mcp.json", ""),
    ],
)
def test_which_project_a_file_belongs_to(path: str, project: str) -> None:
    assert known.project_of(Path(path), Path("/home/me")) == project


def test_a_secret_variable_is_a_secret_whatever_its_value() -> None:
    """K01: what a client kept in a variable with a telling name goes into no argument and no stored URL."""
    env = {"MY_TOKEN": "tiny", "HOST": "h"}
    plan = foreign.read("gh", {"command": "x", "args": ["${MY_TOKEN}"]}, "", env)
    assert "MY_TOKEN" in plan.problem
    plain = foreign.read("gh", {"command": "x", "args": ["${MY_TOKEN}"]}, "", env, allow_plaintext=True)
    assert plain.config["args"] == ["tiny"]
    plan = foreign.read("gh", {"url": "https://h/mcp/${env:MY_TOKEN}?a=b"}, "", env)
    assert (plan.config["url"], plan.secrets) == ("https://h/mcp/${gh-url}", {"gh-url": "tiny?a=b"})
    plan = foreign.read("gh", {"url": "https://${HOST}/mcp"}, "", env)
    assert plan.config["url"] == "https://h/mcp"


def test_headers_that_coffer_sets_itself_stay_behind_and_are_named() -> None:
    """Many give them by habit; registered, they would be refused."""
    plan = read({"url": "https://h/mcp", "headers": {"Content-Type": "application/json", "X-A": "b"}, "oauth": {}})
    assert (plan.problem, plan.config["headers"]) == ("", {"X-A": "b"})
    assert plan.ignored == ["oauth", "the header Content-Type"]


def test_other_programs_shapes() -> None:
    """Codex' limits and header variables, commands as lists and as tables."""
    plan = read({"url": "https://h/mcp", "bearer_token_env_var": "GH", "env_http_headers": {"X-Key": "GH"},
                 "http_headers": {"X-A": "b"}, "startup_timeout_sec": 900, "tool_timeout_sec": 30.5})  # fmt: skip
    assert plan.config["headers"] == {"X-A": "b", "X-Key": "${gh-x-key}", "Authorization": "Bearer ${gh-authorization}"}
    assert plan.config["limits"] == {"start_seconds": 600.0, "total_seconds": 30.5}
    assert plan.ignored == []
    listed = read({"command": ["npx", "x"], "environment": {"A": "b"}, "args": []})
    assert listed.config == {"transport": "stdio", "command": "npx", "args": ["x"], "env": {"A": "b"}}
    nested = read({"command": {"path": "npx", "args": ["x"], "env": {"A": "b"}}})
    assert nested.config == listed.config


def test_two_secrets_with_one_name() -> None:
    """Names that differ in their spelling only do not overwrite each other's secret."""
    plan = read({"command": "x", "env": {"A_TOKEN": TOKEN, "A-TOKEN": TOKEN + "b", "a_token": TOKEN}})
    assert plan.secrets == {"gh-a-token": TOKEN, "gh-a-token-2": TOKEN + "b"}
    assert list(plan.config["env"].values()) == ["${gh-a-token}", "${gh-a-token-2}", "${gh-a-token}"]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (3, "no table"),
        ({}, "neither a command nor a URL"),
        ({"command": []}, "neither a command nor a URL"),
        ({"command": "x", "args": "y"}, "no list of words"),
        ({"command": "x", "args": [{}]}, "no list of words"),
        ({"command": "x", "env": []}, ""),
        ({"command": "x", "env": ["a"]}, "env is no table"),
        ({"command": "x", "env": {"A": {}}}, "env is no table"),
        ({"type": "ws", "url": "wss://h"}, "WebSocket"),
        ({"url": "ftp://h"}, "not what they must be"),
        ({"command": "x", "args": ["--token", TOKEN]}, "--allow-plaintext"),
    ],
)
def test_what_cannot_be_imported_says_why(entry: Any, words: str) -> None:
    """What is not taken over is reported with the reason, and the secret is not in it (K01, K02)."""
    plan = read(entry)
    assert words in plan.problem
    assert bool(plan.problem) == bool(words)
    assert TOKEN not in plan.problem


def test_plaintext_where_it_is_wished() -> None:
    """--allow-plaintext leaves every value where it was."""
    plan = read({"command": "x", "args": ["--token", TOKEN], "env": {"T": "${GH}"}}, allow_plaintext=True)
    assert plan.config == {"transport": "stdio", "command": "x", "args": ["--token", TOKEN], "env": {"T": TOKEN}}
    assert plan.secrets == {}
    url = read({"url": f"https://h/?k={TOKEN}"}, allow_plaintext=True)
    assert url.config["url"].endswith(TOKEN)


def test_where_clients_keep_their_servers() -> None:
    """D09: the right file and key for each client, on both systems."""
    home = Path("/h")
    places = {name: (str(one.file(home, "linux", {})), str(one.file(home, "darwin", {})), one.key)
              for name, one in known.CLIENTS.items()}  # fmt: skip
    assert places == {
        "claude-desktop": (
            "/h/.config/Claude/claude_desktop_config.json",
            "/h/Library/Application Support/Claude/claude_desktop_config.json",
            ("mcpServers",),
        ),
        "claude-code": ("/h/.claude.json", "/h/.claude.json", ("mcpServers",)),
        "cursor": ("/h/.cursor/mcp.json", "/h/.cursor/mcp.json", ("mcpServers",)),
        "vscode": (
            "/h/.config/Code/User/mcp.json",
            "/h/Library/Application Support/Code/User/mcp.json",
            ("servers",),
        ),
        "codex": ("/h/.codex/config.toml", "/h/.codex/config.toml", ("mcp_servers",)),
    }
    moved = {"CODEX_HOME": "/c", "CLAUDE_CONFIG_DIR": "/d", "XDG_CONFIG_HOME": "/x"}
    assert [str(one.file(home, "linux", moved)) for one in known.CLIENTS.values()] == [
        "/x/Claude/claude_desktop_config.json",
        "/d/.claude.json",
        "/h/.cursor/mcp.json",
        "/x/Code/User/mcp.json",
        "/c/config.toml",
    ]


def test_tables_of_servers_and_our_own_entry() -> None:
    """Every client's own key is found, projects of Claude Code too; Coffer's own entry is known by its shim."""
    one = {"a": {"command": "x"}}
    assert known.server_tables({"mcpServers": one, "projects": {"/p": {"mcpServers": one}, "/q": {}}}) == {
        ("mcpServers",): one,
        ("projects", "/p", "mcpServers"): one,
    }
    for key in ("servers", "mcp_servers", "context_servers", "mcp"):
        assert list(known.server_tables({key: one})) == [(key,)]
    assert list(known.server_tables({"mcp": {"servers": one}})) == [("mcp", "servers")]
    assert known.server_tables([]) == known.server_tables({"servers": 3}) == {}
    assert known.is_ours({"command": "/x/coffer-shim"})
    assert not known.is_ours({"command": "x"})
    assert not known.is_ours({"url": "x"})
    assert not known.is_ours(3)


def test_the_entry_that_is_written() -> None:
    """Clients that name a type get one; what is empty is left out elsewhere."""
    assert known.entry(known.CLIENTS["vscode"], "/s", [], {}) == {"type": "stdio", "command": "/s", "args": []}
    assert known.entry(None, "/s", ["--group", "g"], {"A": "b"}) == {
        "command": "/s",
        "args": ["--group", "g"],
        "env": {"A": "b"},
    }
    assert known.entry(known.CLIENTS["cursor"], "/s", [], {}) == {"command": "/s"}
