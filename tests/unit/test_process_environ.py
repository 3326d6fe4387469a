"""coffer_worker.process.environ: what an upstream inherits, its directory, its command."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from coffer_common.pidrecord import COOKIE_VARIABLE
from coffer_worker.process import environ
from coffer_worker.process.environ import SpawnError, expand, resolve_command, upstream_environment, working_directory


def script(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


def test_only_the_allow_list_is_inherited() -> None:
    """K03. A secret in the gateway's own environment reaches no upstream; locale, home and CA bundles do."""
    base = {"HOME": "/h", "LC_TIME": "C", "XDG_CACHE_HOME": "/x", "OPENAI_API_KEY": "marker", "COFFER_HOME": "/c"}
    assert upstream_environment(base | {"PATH": "/p"}, None, {}, "c00kie") == {
        "HOME": "/h",
        "LC_TIME": "C",
        "XDG_CACHE_HOME": "/x",
        "PATH": "/p",
        COOKIE_VARIABLE: "c00kie",
    }


def test_configuration_is_merged_over_the_base() -> None:
    """P16. `A: ""` erases nothing else; the PATH captured when the server was added wins over the daemon's; the
    server's own env wins over both, but not over the cookie."""
    base = {"PATH": "/daemon", "HOME": "/h"}
    found = upstream_environment(base, "/captured", {"A": "", COOKIE_VARIABLE: "forged"}, "real")
    assert found == {"PATH": "/captured", "HOME": "/h", "A": "", COOKIE_VARIABLE: "real"}
    assert upstream_environment(base, "/captured", {"PATH": "/own"}, "c")["PATH"] == "/own"
    assert upstream_environment({}, None, {}, "c")["PATH"] == environ.FALLBACK_PATH


def test_home_and_user_are_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """P16. A service manager may leave HOME and USER out."""
    monkeypatch.delenv("HOME")
    monkeypatch.setenv("USER", "somebody")
    me = pwd.getpwuid(os.getuid())
    found = environ.own_environment()
    assert (found["HOME"], found["USER"]) == (me.pw_dir, "somebody")
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    assert "HOME" not in environ.own_environment()


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("~", "/h"),
        ("~/p", "/h/p"),
        ("~other/p", "~other/p"),
        ("$A/x", "1/x"),
        ("${A}x", "1x"),
        ("$B", "$B"),
        ("a~", "a~"),
    ],
)
def test_tilde_and_variables(text: str, expanded: str) -> None:
    assert expand(text, {"HOME": "/h", "A": "1"}) == expanded


def test_tilde_without_a_home_stays() -> None:
    assert expand("~/p", {}) == "~/p"


def test_working_directory(tmp_path: Path) -> None:
    """P17. Home by default, `~` and variables expanded, a relative one below home, a missing one named as such."""
    home = {"HOME": str(tmp_path), "SUB": "p"}
    (tmp_path / "p").mkdir()
    assert working_directory(None, home) == tmp_path
    assert working_directory("~/p", home) == working_directory("$SUB", home) == tmp_path / "p"
    with pytest.raises(SpawnError, match=f"working directory {tmp_path}/q does not exist") as caught:
        working_directory("~/q", home)
    assert caught.value.reason == "bad_cwd"
    assert working_directory(None, {}) == Path("/")


def test_a_command_is_looked_up_in_its_path(tmp_path: Path) -> None:
    tool = script(tmp_path / "bin/tool")
    assert resolve_command("tool", f"/nowhere::{tmp_path}/bin", Path("/"), {}) == str(tool)
    assert resolve_command("tool", "bin", tmp_path, {}) == str(tool)


def test_a_command_with_a_slash_is_relative_to_the_directory(tmp_path: Path) -> None:
    """P17. `./s.sh`, and `~/bin/tool`."""
    tool = script(tmp_path / "s.sh")
    assert resolve_command("./s.sh", "/bin", tmp_path, {}) == str(tool)
    assert resolve_command("~/s.sh", "/bin", Path("/"), {"HOME": str(tmp_path)}) == str(tool)


@pytest.mark.parametrize("command", ["nope", "./nope"])
def test_a_command_that_is_not_there_names_where_it_was_looked_for(tmp_path: Path, command: str) -> None:
    """P09, P16. The error names the command and the PATH searched, or the file."""
    with pytest.raises(SpawnError) as caught:
        resolve_command(command, "/usr/bin:/bin", tmp_path, {})
    assert caught.value.reason == "command_not_found"
    assert command in str(caught.value)
    assert ("/usr/bin:/bin" if command == "nope" else f"{tmp_path}/nope") in str(caught.value)


@pytest.mark.parametrize("command", ["plain", "./plain"])
def test_a_command_that_is_not_executable_says_so(tmp_path: Path, command: str) -> None:
    """P09. Not executable is not "not found"."""
    script(tmp_path / "plain", 0o644)
    with pytest.raises(SpawnError, match="not executable") as caught:
        resolve_command(command, f"/nowhere:{tmp_path}", tmp_path, {})
    assert caught.value.reason == "not_executable"


def test_a_folder_in_place_of_a_command_is_called_one(tmp_path: Path) -> None:
    """P09. No chmod would mend it."""
    with pytest.raises(SpawnError, match="command is a folder: ") as caught:
        resolve_command("./", "/bin", tmp_path, {})
    assert caught.value.reason == "not_executable"
