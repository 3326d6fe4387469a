"""Where files are, and that folders for sockets and secrets are the user's own."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from coffer_common import paths
from coffer_common.paths import Home, UnsafeDirectory, check_private


def test_the_home_follows_the_environment(tmp_path: Path) -> None:
    assert Home.from_env({"COFFER_HOME": str(tmp_path)}).root == tmp_path
    assert Home.from_env({"COFFER_HOME": "~/x"}).root == Path.home() / "x"
    assert Home.from_env({}).root == Path.home() / ".coffer"
    assert Home.from_env().root == Path(os.environ["COFFER_HOME"])


def test_names_are_where_users_find_them() -> None:
    home = Home.from_env({"COFFER_HOME": "/c"})
    assert [str(p) for p in (home.db, home.daemon_json, home.daemon_lock, home.daemon_alive)] == [
        "/c/coffer.db",
        "/c/daemon.json",
        "/c/daemon.lock",
        "/c/daemon.alive",
    ]
    assert str(home.daemon_log) == "/c/logs/daemon.log"
    assert str(home.daemon_stderr) == "/c/logs/daemon.stderr"
    assert str(home.upstream_log("files")) == "/c/logs/upstream-files.log"
    assert [str(p) for p in (home.upstream_pids, home.backups)] == ["/c/upstream-pids", "/c/backups"]
    assert [str(p) for p in (home.api_sock, home.mcp_sock)] == ["/c/run/api.sock", "/c/run/mcp.sock"]
    assert (home.control_ipc, home.bulk_ipc) == ("ipc:///c/run/control.ipc", "ipc:///c/run/bulk.ipc")


def test_folders_are_made_private_and_mended(tmp_path: Path) -> None:
    home = Home.from_env({"COFFER_HOME": str(tmp_path / "a" / "b")})
    home.ensure()
    for folder in (home.root, home.run):
        folder.chmod(0o755)
    home.ensure()
    for folder in (home.root, home.run, home.logs, home.upstream_pids, home.backups):
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's."""
    with tempfile.TemporaryDirectory(prefix="cf-", dir="/tmp") as found:
        yield Path(found)


def test_where_the_socket_path_would_be_too_long_another_folder_is_taken(tmp_path: Path, short: Path) -> None:
    """A socket path ends at 107 bytes: then under XDG_RUNTIME_DIR, or in a checked folder under /tmp."""
    root = f"/{'long' * 30}"
    runtime = short
    there = Home.from_env({"COFFER_HOME": root, "XDG_RUNTIME_DIR": str(runtime)})
    assert there.run.parent == runtime
    for bad in ("", "relative", str(tmp_path / "missing"), f"/{'x' * 100}"):
        run = Home.from_env({"COFFER_HOME": root, "XDG_RUNTIME_DIR": bad}).run
        assert run.parent == Path("/tmp")
        assert run.name.startswith(f"coffer-{os.getuid()}-")
        assert len(str(run / "control.ipc")) <= paths.SOCKET_PATH_LIMIT
    assert Home.from_env({"COFFER_HOME": root + "2"}).run != run


def test_the_recorded_folder_counts() -> None:
    home = Home.from_env({"COFFER_HOME": "/c"})
    assert str(home.at_run("/r").mcp_sock) == "/r/mcp.sock"
    assert home.at_run("") is home


def test_a_folder_outside_the_home_is_checked_and_not_mended(tmp_path: Path) -> None:
    outside = tmp_path / "run"
    outside.mkdir(mode=0o755)
    outside.chmod(0o755)
    with pytest.raises(UnsafeDirectory, match="chmod 700"):
        Home(tmp_path / "home", outside).ensure()


def test_links_files_and_strangers_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(target)
    with pytest.raises(UnsafeDirectory, match="not a directory"):
        check_private(link)
    check_private(target)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    with pytest.raises(UnsafeDirectory, match="belongs to user"):
        check_private(target)
