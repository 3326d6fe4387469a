"""The installed `coffer import`, `install`, `uninstall` and `daemon enable` against real files and a real daemon."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from coffer_common import exits
from tests.support.daemon import COFFER, Daemon

pytestmark = pytest.mark.e2e
TOKEN = "ghp_aaaaaaaaaaaaaaaaaaaaaaaa"
ROOT = str(Path(__file__).parents[2])
FAKE = [sys.executable, "-m", "tests.fixtures.fake_mcp_server"]
CURSOR = f"""\
{{
  // my servers
  "mcpServers": {{
    "My Server": {{ "command": {json.dumps(FAKE[0])}, "args": {json.dumps(FAKE[1:])}, // the fake one
                   "cwd": {json.dumps(ROOT)},
                   "env": {{"API_TOKEN": "{TOKEN}"}}, "autoApprove": ["x"] }},
    "away": {{"url": "https://127.0.0.1:1/mcp", "headers": {{"Authorization": "Bearer {TOKEN}b"}}, "disabled": true}},
  }},
  "theme":   "dark"
}}
"""


@pytest.fixture
def cursor(coffer: Daemon) -> Path:
    """Cursor's configuration in this user's home, mode 0600."""
    path = Path(coffer.env["HOME"]) / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text(CURSOR, encoding="utf-8")
    path.chmod(0o600)
    return path


def run(coffer: Daemon, *args: str, code: int = exits.OK) -> subprocess.CompletedProcess[str]:
    done = coffer.cli(*args)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert TOKEN not in done.stdout + done.stderr
    return done


def in_file(coffer: Daemon) -> None:
    run(coffer, "credential", "use-file")


def test_from_a_clients_servers_to_the_same_behind_coffer_and_back(coffer: Daemon, cursor: Path) -> None:
    """Two commands there, one back: secrets are in the credential store, the file is byte for byte what it was."""
    plan = json.loads(run(coffer, "import", "cursor", "--dry-run", "--json").stdout)
    assert [one["state"] for one in plan["servers"]] == ["planned", "planned"]
    assert plan["servers"][0]["ignored"] == ["autoApprove"]
    in_file(coffer)
    assert json.loads(run(coffer, "mcp", "list", "--json").stdout)["resources"] == []

    shown = run(coffer, "import", "cursor", "--yes").stdout
    assert "My Server → my-server" in shown
    assert "autoApprove" in shown
    found = {one["name"]: one for one in coffer.api("GET", "/resources?kind=mcp_server")["resources"]}
    assert found["my-server"]["config"]["env"] == {"API_TOKEN": "${my-server-api-token}"}
    assert found["away"]["config"]["headers"] == {"Authorization": "Bearer ${away-authorization}"}
    assert (found["my-server"]["enabled"], found["away"]["enabled"]) == (True, False)
    assert coffer.api("POST", "/credentials/my-server-api-token/reveal")["value"] == TOKEN
    assert coffer.api("POST", "/credentials/away-authorization/reveal")["value"] == TOKEN + "b"
    coffer.wait_state("my-server")
    again = json.loads(run(coffer, "import", "cursor", "--yes", "--json").stdout)
    assert [one["state"] for one in again["servers"]] == ["present", "present"]

    done = json.loads(run(coffer, "install", "cursor", "--replace", "--json").stdout)
    assert done["state"] == "installed"
    assert done["replaced"] == ["My Server", "away"]
    assert cursor.read_text(encoding="utf-8").startswith('{\n  // my servers\n  "mcpServers": {')
    assert Path(done["backup"]).read_text(encoding="utf-8") == CURSOR
    assert stat.S_IMODE(Path(done["backup"]).stat().st_mode) == 0o600
    run(coffer, "uninstall", "cursor")
    assert cursor.read_text(encoding="utf-8") == CURSOR
    assert [one.name for one in cursor.parent.iterdir()] == ["mcp.json"]


def test_a_projects_servers_are_imported_for_each_project(coffer: Daemon, tmp_path: Path) -> None:
    """The plan says where each will run and why; the same server of another project is no second one."""
    entries = {
        "lsp": {"command": FAKE[0], "args": FAKE[1:], "env": {"PYTHONPATH": ROOT}},
        "own": {"command": FAKE[0], "args": ["server.py"]},
    }
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        (folder / ".cursor").mkdir(parents=True)
        (folder / "server.py").touch()
        (folder / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": entries}), encoding="utf-8")
    file = str(folders[0] / ".cursor" / "mcp.json")
    text = run(coffer, "import", file, "--dry-run").stdout
    assert "runs in the directory of each client's project" in text and "--no-per-project" in text
    assert f"runs in {folders[0]} for every client: it starts server.py of this folder" in text
    rows = json.loads(run(coffer, "import", file, "--yes", "--json").stdout)["servers"]
    assert [(row["name"], row["per_project"], bool(row["note"])) for row in rows] == [
        ("lsp", True, True),
        ("own", False, True),
    ]
    found = {one["name"]: one["config"] for one in coffer.api("GET", "/resources?kind=mcp_server")["resources"]}
    assert (found["lsp"]["per_project"], found["lsp"]["cwd"]) == (True, str(folders[0]))
    assert (found["own"].get("per_project", False), found["own"]["cwd"]) == (False, str(folders[0]))
    file = str(folders[1] / ".cursor" / "mcp.json")
    other = json.loads(run(coffer, "import", file, "--rename", "own=own-b", "--yes", "--json").stdout)["servers"]
    assert [(row["name"], row["state"]) for row in other] == [("lsp", "present"), ("own-b", "imported")]


def test_two_projects_of_one_file_share_a_server(coffer: Daemon, tmp_path: Path) -> None:
    """Claude Code keeps its projects in one file: what is the same in two of them is imported once."""
    entry = {"command": FAKE[0], "args": FAKE[1:], "env": {"PYTHONPATH": ROOT}}
    projects = {str(tmp_path / name): {"mcpServers": {"lsp": entry}} for name in ("a", "b")}
    for folder in projects:
        Path(folder).mkdir()
    (Path(coffer.env["HOME"]) / ".claude.json").write_text(json.dumps({"projects": projects}), encoding="utf-8")
    rows = json.loads(run(coffer, "import", "claude-code", "--yes", "--json").stdout)["servers"]
    assert [(row["name"], row["state"]) for row in rows] == [("lsp", "imported"), ("lsp", "present")]
    assert "runs in each project" in rows[1]["reason"]

    file = Path(coffer.env["HOME"]) / ".claude.json"
    before = file.read_text(encoding="utf-8")
    done = json.loads(run(coffer, "install", "claude-code", "--replace", "--json").stdout)
    assert done["replaced"] == [f"lsp (of {folder})" for folder in projects]
    written = json.loads(file.read_text(encoding="utf-8"))
    assert [one["mcpServers"] for one in written["projects"].values()] == [{}, {}]
    # Claude Code writes into its file all the time: then the entries are put back one by one.
    file.write_text(json.dumps({**written, "numStartups": 2}), encoding="utf-8")
    run(coffer, "uninstall", "claude-code")
    after = json.loads(file.read_text(encoding="utf-8"))
    assert after["projects"] == json.loads(before)["projects"]
    assert (after["numStartups"], after["mcpServers"]) == (2, {})


def test_a_projects_own_server_stays_where_coffers_would_run_elsewhere(coffer: Daemon, tmp_path: Path) -> None:
    """What starts the same in another folder is not the same."""
    entry = {"command": FAKE[0], "args": FAKE[1:]}
    file = Path(coffer.env["HOME"]) / ".claude.json"
    file.write_text(json.dumps({"projects": {str(tmp_path): {"mcpServers": {"lsp": entry}}}}), encoding="utf-8")
    run(coffer, "mcp", "add", "lsp", "--disabled", "--", *FAKE)
    assert json.loads(run(coffer, "install", "claude-code", "--replace", "--json").stdout)["replaced"] == []
    run(coffer, "uninstall", "claude-code")
    run(coffer, "mcp", "update", "lsp", "--per-project", "--no-wait")
    assert json.loads(run(coffer, "install", "claude-code", "--replace", "--json").stdout)["replaced"]


def test_what_was_curated_since_is_still_the_same_server(coffer: Daemon, cursor: Path) -> None:
    """A server is known by what it starts; one that clashes is shown in a dry run, and can be left out."""
    in_file(coffer)
    run(coffer, "import", "cursor", "--yes", "--skip", "away")
    run(coffer, "mcp", "update", "my-server", "--limit", "start=45", "--description", "mine", "--no-wait")
    run(coffer, "mcp", "add", "away", "--disabled", "--", "something-else")
    rows = json.loads(run(coffer, "import", "cursor", "--dry-run", "--json", code=exits.CONFLICT).stdout)["servers"]
    assert [row["state"] for row in rows] == ["present", "skipped"]
    assert "--rename 'away=away-2'" in rows[1]["reason"] and "--skip 'away'" in rows[1]["reason"]
    run(coffer, "import", "cursor", "--yes", code=exits.CONFLICT)
    run(coffer, "import", "cursor", "--yes", "--skip", "away")
    assert "no such entry" in run(coffer, "import", "cursor", "--yes", "--skip", "nobody", code=exits.USAGE).stderr


def test_a_dry_run_leaves_out_what_registration_would_refuse(coffer: Daemon, cursor: Path) -> None:
    """With the reason, and as the import itself then does."""
    entries = {
        "good": {"command": "x"},
        "nul": {"command": "x", "env": {"A=B": "1"}},
        "hostless": {"url": "http://:1/"},
    }
    cursor.write_text(json.dumps({"mcpServers": entries}), encoding="utf-8")
    shown = run(coffer, "import", "cursor", "--dry-run").stdout
    assert "+ good" in shown
    assert "✗ nul: cannot be imported: its settings cannot be used: env: the name 'A=B'" in shown
    assert "✗ hostless: cannot be imported: its settings cannot be used: url: it names no host" in shown
    rows = json.loads(run(coffer, "import", "cursor", "--dry-run", "--json").stdout)["servers"]
    assert [row["state"] for row in rows] == ["planned", "skipped", "skipped"]
    rows = json.loads(run(coffer, "import", "cursor", "--yes", "--json", code=exits.FAILURE).stdout)["servers"]
    assert [row["state"] for row in rows] == ["imported", "skipped", "skipped"]


def test_installing_changes_its_own_entry_alone(coffer: Daemon, cursor: Path) -> None:
    """D09, D07: foreign keys, comments and formatting stay, so do mode and link; a second time changes nothing."""
    target = cursor.with_name("real.json")
    cursor.rename(target)
    cursor.symlink_to(target)
    run(coffer, "install", "cursor")
    text = target.read_text(encoding="utf-8")
    assert cursor.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert all(line in text for line in CURSOR.splitlines()[:6])
    before = target.stat()
    assert "nothing was changed" in run(coffer, "install", "cursor").stdout
    assert target.stat().st_mtime_ns == before.st_mtime_ns
    # Another program writes a key of its own: uninstalling leaves it.
    target.write_text(text.replace('"theme":   "dark"', '"theme":   "light"'), encoding="utf-8")
    run(coffer, "uninstall", "cursor")
    assert target.read_text(encoding="utf-8") == CURSOR.replace("dark", "light")
    run(coffer, "uninstall", "cursor", code=exits.NOT_FOUND)


def test_what_was_taken_out_is_put_back_into_a_file_that_changed(coffer: Daemon, cursor: Path) -> None:
    """D09: uninstalling restores the replaced entries where somebody else has written since."""
    in_file(coffer)
    run(coffer, "import", "cursor", "--yes")
    run(coffer, "install", "cursor", "--replace")
    cursor.write_text(cursor.read_text(encoding="utf-8").replace("dark", "light"), encoding="utf-8")
    run(coffer, "uninstall", "cursor")
    assert run(coffer, "import", "cursor", "--dry-run").stdout.count("Coffer has it already") == 2
    assert '"light"' in cursor.read_text(encoding="utf-8")


def test_a_file_that_was_not_there_goes_again(coffer: Daemon) -> None:
    """Installing makes the file in the client's own format and under its own key; uninstalling takes it away."""
    home = Path(coffer.env["HOME"])
    run(coffer, "install", "codex")
    entry = tomllib.loads((home / ".codex/config.toml").read_text())["mcp_servers"]["coffer"]
    assert entry["command"].endswith("/coffer-shim")
    assert entry["env"] == {"COFFER_HOME": str(coffer.home)}
    run(coffer, "uninstall", "codex")
    assert not (home / ".codex/config.toml").exists()
    run(coffer, "install", "vscode")
    made = json.loads((home / ".config/Code/User/mcp.json").read_text())
    assert made["servers"]["coffer"]["type"] == "stdio"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"mcpServers": {"a": {"command": "x"}', "line 1, column 38"),
        ('{\n  "mcpServers": []}', "line 2, column 17"),
        ('{\n "a" 1}', "line 2, column 6"),
    ],
)
def test_an_unreadable_file_is_left_alone(coffer: Daemon, cursor: Path, text: str, place: str) -> None:
    """D08: refused with line and column, the file untouched."""
    cursor.write_text(text, encoding="utf-8")
    assert place in run(coffer, "install", "cursor", code=exits.USAGE).stderr
    assert cursor.read_text(encoding="utf-8") == text
    assert [one.name for one in cursor.parent.iterdir()] == ["mcp.json"]


def test_a_failed_handshake_is_rolled_back(coffer: Daemon, cursor: Path) -> None:
    """What does not work does not stay: the file is what it was, without a copy beside it."""
    done = run(coffer, "install", "cursor", "--server", "nobody", code=exits.FAILURE)
    assert "could not use Coffer" in done.stderr
    assert cursor.read_text(encoding="utf-8") == CURSOR
    assert [one.name for one in cursor.parent.iterdir()] == ["mcp.json"]


def test_a_disk_that_takes_no_more(coffer: Daemon, cursor: Path) -> None:
    """D07: the old bytes are intact when the write fails half way."""
    cursor.write_text(CURSOR + " " * 9000, encoding="utf-8")
    before = cursor.read_bytes()

    def small() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    done = subprocess.run(
        [COFFER, "install", "cursor"],
        env=coffer.env,
        capture_output=True,
        text=True,
        preexec_fn=small,
        timeout=60,
        check=False,
    )
    assert done.returncode == exits.FAILURE, (done.stdout, done.stderr)
    assert "cannot write" in done.stderr
    assert cursor.read_bytes() == before
    assert [one.name for one in cursor.parent.iterdir()] == ["mcp.json"]


def test_clashing_names_are_asked_about(coffer: Daemon, tmp_path: Path) -> None:
    """N04: different names that become one are never merged: both are named, and a new name is asked for."""
    servers: dict[str, Any] = {
        "my.server": {"command": FAKE[0], "args": FAKE[1:]},
        "my server": {"command": FAKE[0], "args": [*FAKE[1:], "other"]},
    }
    path = tmp_path / "some.json"
    path.write_text(json.dumps({"servers": servers}))
    done = run(coffer, "import", str(path), "--yes", code=exits.CONFLICT)
    assert "my.server" in done.stderr
    assert "my server" in done.stderr
    assert "--rename 'my server=my-server-2'" in done.stderr
    assert coffer.api("GET", "/resources?kind=mcp_server")["resources"] == []
    run(coffer, "import", str(path), "--yes", "--rename", "my server=second")
    names = {one["name"] for one in coffer.api("GET", "/resources?kind=mcp_server")["resources"]}
    assert names == {"my-server", "second"}


def test_plaintext_that_was_wished_is_not_printed(coffer: Daemon, tmp_path: Path) -> None:
    """K02: --allow-plaintext stores what is there, and shows it to nobody."""
    path = tmp_path / "some.json"
    path.write_text(json.dumps({"servers": {"a": {"command": FAKE[0], "args": [*FAKE[1:], TOKEN], "disabled": True}}}))
    refused = run(coffer, "import", str(path), "--yes", code=exits.FAILURE)
    assert "--allow-plaintext" in refused.stdout
    run(coffer, "import", str(path), "--yes", "--allow-plaintext")
    assert coffer.api("GET", "/resources?kind=mcp_server")["resources"][0]["config"]["args"][-1] == TOKEN


def test_without_a_place_for_secrets_nothing_is_half_done(coffer: Daemon, cursor: Path) -> None:
    """Where no keychain is usable the import says so and leaves no server with a reference to nothing."""
    done = run(coffer, "import", "cursor", "--yes", code=exits.FAILURE)
    assert "use-file" in done.stderr
    assert coffer.api("GET", "/resources?kind=mcp_server")["resources"] == []


def test_a_foreign_entry_of_our_name_stays(coffer: Daemon, cursor: Path) -> None:
    """D09: an entry that only has Coffer's name is not Coffer's to change."""
    text = '{"mcpServers": {"coffer": {"command": "coffee"}}}'
    cursor.write_text(text, encoding="utf-8")
    run(coffer, "install", "cursor", code=exits.CONFLICT)
    run(coffer, "uninstall", "cursor", code=exits.CONFLICT)
    assert cursor.read_text(encoding="utf-8") == text


def test_an_unknown_client_gets_the_lines_to_paste(coffer: Daemon) -> None:
    """For a client that Coffer does not know, the snippet is printed, fit to be piped."""
    shown = json.loads(run(coffer, "install", "zed").stdout)
    assert shown["mcpServers"]["coffer"]["command"].endswith("/coffer-shim")
    assert "neither" in run(coffer, "import", "zed", code=exits.USAGE).stderr


def test_start_at_login(coffer: Daemon, tmp_path: Path) -> None:
    """The unit is written, enabled and taken away again, with no manager needed for it."""
    first = json.loads(run(coffer, "daemon", "enable", "--json").stdout)
    assert (first["enabled"], first["changed"]) == (True, True)
    unit = Path(first["files"][0]).read_text()
    assert f'Environment="COFFER_HOME={coffer.home}"' in unit
    assert '"coffer-daemon" "--foreground"' in unit
    assert os.readlink(first["files"][1]) == first["files"][0]
    if analyze := shutil.which("systemd-analyze"):
        run_dir = tmp_path / "run"
        run_dir.mkdir(mode=0o700)
        verified = subprocess.run(
            [analyze, "verify", "--user", first["files"][0]],
            env={**coffer.env, "XDG_RUNTIME_DIR": str(run_dir)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (verified.returncode, verified.stderr) == (0, ""), verified
    assert json.loads(run(coffer, "daemon", "enable", "--json").stdout)["changed"] is False
    assert json.loads(run(coffer, "daemon", "disable", "--json").stdout)["files"] == first["files"][::-1]
    assert json.loads(run(coffer, "daemon", "disable", "--json").stdout)["changed"] is False
