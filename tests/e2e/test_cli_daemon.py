"""The installed `coffer daemon`, `doctor`, `retention`, `backup`, `credential` against a real daemon."""

from __future__ import annotations

import json
import sqlite3
import stat
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from coffer_common import exits
from tests.support.daemon import DAEMON, Daemon
from tests.support.procs import alive

pytestmark = pytest.mark.e2e


def test_start_status_restart_stop(coffer: Daemon) -> None:
    """One daemon from start to stop; token and port survive a restart; status never starts one."""
    assert coffer.cli("daemon", "status").returncode == exits.UNREACHABLE
    assert json.loads(coffer.cli("daemon", "status", "--json").stdout)["running"] is False
    started = coffer.cli("daemon", "start")
    assert started.returncode == exits.OK, started
    first = coffer.info
    assert f"pid {first['pid']}, http://127.0.0.1:{first['port']}" in started.stdout
    assert "runs already" in coffer.cli("daemon", "start").stdout
    assert coffer.info == first
    status = json.loads(coffer.cli("daemon", "status", "--json").stdout)
    assert status["running"] is True
    assert status["daemon"]["pid"] == first["pid"]
    assert coffer.cli("daemon", "restart").returncode == exits.OK
    second = coffer.info
    assert second["pid"] != first["pid"]
    assert (second["token"], second["port"]) == (first["token"], first["port"])
    assert not alive(first["pid"])
    stopped = coffer.cli("daemon", "stop")
    assert stopped.returncode == exits.OK, stopped
    assert not alive(second["pid"])
    assert coffer.cli("daemon", "stop").returncode == exits.OK
    assert coffer.cli("daemon", "logs").returncode == exits.OK


def test_rotate_token_writes_it_where_it_belongs_and_nowhere_else(daemon: Daemon) -> None:
    """The token changes only when told to, and is never printed or logged."""
    before = daemon.token
    done = daemon.cli("daemon", "rotate-token")
    assert done.returncode == exits.OK, done
    after = daemon.token
    assert after != before
    shown = done.stdout + done.stderr + (daemon.home / "logs" / "daemon.log").read_text(encoding="utf-8")
    assert after not in shown
    assert before not in shown
    assert stat.S_IMODE((daemon.home / "daemon.json").stat().st_mode) == 0o600


def test_a_newer_cli_says_that_the_daemon_is_older(daemon: Daemon) -> None:
    """D04: never silent service by an old daemon: it says so and what to do."""
    script = (
        "import coffer_common.version as v; v.VERSION = '99.0.0'\n"
        "import sys; sys.argv = ['coffer', 'mcp', 'list']\n"
        "from coffer_cli.main import run; sys.exit(run())"
    )
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", script], env=daemon.env, capture_output=True, text=True, timeout=60, check=False
    )
    assert "which is older" in done.stderr, done
    assert "coffer daemon restart" in done.stderr
    assert done.returncode == exits.OK


def test_retention_is_listed_set_and_audited(daemon: Daemon) -> None:
    """Days or for ever for each log table; a change of it is audited."""
    policies = json.loads(daemon.cli("retention", "list", "--json").stdout)["policies"]
    assert {row["table"]: row["days"] for row in policies} == {"audit_log": 365, "mcp_invocations": 30}
    assert daemon.cli("retention", "set", "mcp_invocations", "forever").returncode == exits.OK
    assert daemon.cli("retention", "set", "mcp_invocations", "soon").returncode == exits.USAGE
    assert daemon.cli("retention", "set", "nothing", "3").returncode == exits.NOT_FOUND
    assert daemon.cli("retention", "set", "audit_log", "0").returncode == exits.USAGE
    assert "for ever" in daemon.cli("retention", "list").stdout
    audit = json.loads(daemon.cli("audit", "list", "--event", "retention.changed", "--json").stdout)["audit"]
    assert [(row["name"], row["details"]) for row in audit] == [("mcp_invocations", {"before": 30, "after": None})]
    pruned = daemon.cli("retention", "prune", "--json")
    assert json.loads(pruned.stdout)["pruned"] == {"audit_log": 0, "mcp_invocations": 0, "server_logs": 0}


def test_backup_is_a_healthy_private_copy(daemon: Daemon, tmp_path: Path) -> None:
    """A copy made in use; an existing file is never overwritten."""
    target = tmp_path / "copy.db"
    done = daemon.cli("backup", str(target), "-q")
    assert done.stdout == f"{target}\n", done
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with closing(sqlite3.connect(target)) as copy:
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert daemon.cli("backup", str(target)).returncode == exits.CONFLICT
    assert daemon.cli("backup").returncode == exits.OK


def test_a_backup_is_put_back_and_what_was_there_is_kept(daemon: Daemon, tmp_path: Path) -> None:
    """Restoring brings the servers of then, restarts the daemon that runs, and loses nothing."""
    ghost = {"transport": "stdio", "command": "no-such-command-anywhere"}
    daemon.add_server("before", ghost)
    copy = tmp_path / "copy.db"
    assert daemon.cli("backup", str(copy)).returncode == exits.OK
    daemon.add_server("after", ghost)
    first = daemon.info["pid"]
    assert daemon.cli("restore", str(copy)).returncode == exits.USAGE  # nobody is here to answer
    assert daemon.info["pid"] == first
    done = daemon.cli("restore", str(copy), "--yes", "--json")
    assert done.returncode == exits.OK, done
    assert daemon.info["pid"] != first
    assert daemon.cli("mcp", "list", "-q").stdout == "before\n"
    kept = json.loads(done.stdout)["kept"]
    with closing(sqlite3.connect(kept)) as old:
        assert {row[0] for row in old.execute("SELECT name FROM resource")} == {"before", "after"}
    assert stat.S_IMODE(daemon.home.joinpath("coffer.db").stat().st_mode) == 0o600


def test_only_a_sound_copy_is_restored_and_a_damaged_store_is_mended_by_it(coffer: Daemon, tmp_path: Path) -> None:
    """What is no store is refused and changes nothing; a damaged store is kept, and Coffer works again."""
    coffer.start()
    copy, other, foreign = tmp_path / "copy.db", tmp_path / "other.db", tmp_path / "foreign.db"
    assert coffer.cli("backup", str(copy)).returncode == exits.OK
    coffer.stop()
    other.write_text("no database")
    with closing(sqlite3.connect(foreign)) as made:
        made.execute("CREATE TABLE mine (x)")
    for path, code in ((other, exits.USAGE), (foreign, exits.USAGE), (tmp_path / "none", exits.NOT_FOUND)):
        assert coffer.cli("restore", str(path), "--yes").returncode == code
    assert coffer.cli("restore", str(coffer.home / "coffer.db"), "--yes").returncode == exits.USAGE
    for suffix in ("-wal", "-shm"):
        (coffer.home / f"coffer.db{suffix}").unlink(missing_ok=True)
    (coffer.home / "coffer.db").write_text("damaged")
    refused = coffer.cli("mcp", "list")
    assert "coffer restore" in refused.stderr, refused
    done = coffer.cli("restore", str(copy), "--yes")
    assert done.returncode == exits.OK, done
    assert coffer.cli("mcp", "list").returncode == exits.OK
    assert [path.read_text() for path in (coffer.home / "backups").glob("coffer-replaced-*.db")] == ["damaged"]


def test_doctor_without_and_with_a_daemon(coffer: Daemon) -> None:
    """PATH, launchers, ports, permissions, the database and each upstream are looked at; trouble is exit code 1."""
    done = coffer.cli("doctor")
    assert done.returncode == exits.OK, done
    assert "is not running" in done.stdout
    coffer.start()
    coffer.add_server("ghost", {"transport": "stdio", "command": "no-such-command-anywhere"})
    done = coffer.cli("doctor", "--json")
    assert done.returncode == exits.FAILURE
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert found["mcp ghost"]["status"] == "fail"
    assert "no-such-command-anywhere" in found["mcp ghost"]["message"]
    assert found["database"]["status"] == "ok"
    assert found["home"]["status"] == "ok"
    (coffer.home / "coffer.db").chmod(0o644)
    found = {check["name"]: check for check in json.loads(coffer.cli("doctor", "--json").stdout)["checks"]}
    assert found["coffer.db"]["hint"].startswith("chmod 600")


def test_doctor_says_why_the_last_start_failed(coffer: Daemon) -> None:
    """What looks sound from without, a store of a newer release say, is no reason to send somebody in a circle."""
    coffer.start()
    coffer.stop()
    with closing(sqlite3.connect(coffer.home / "coffer.db")) as store, store:
        store.execute("UPDATE alembic_version SET version_num = 'ffff'")
    assert coffer.cli("daemon", "start").returncode == exits.UNREACHABLE
    done = coffer.cli("doctor", "--json")
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert (done.returncode, found["daemon"]["status"]) == (exits.FAILURE, "fail")
    assert "a newer version has written it" in found["daemon"]["message"]


def test_a_folder_that_cannot_be_made_is_named(coffer: Daemon) -> None:
    coffer.home.mkdir(exist_ok=True)
    (coffer.home / "logs").write_text("in the way")
    done = coffer.cli("daemon", "start")
    assert (done.returncode, f"cannot make the folder {coffer.home / 'logs'}: " in done.stderr) == (3, True), done


def test_without_a_keychain_storing_a_secret_is_refused_with_a_hint(daemon: Daemon) -> None:
    """No silent plaintext: where there is no keychain nothing is stored, and the way out is named."""
    done = daemon.cli("credential", "set", "gh-token", "--stdin", input="hunter2-marker\n")
    assert done.returncode == exits.FAILURE
    assert "keychain" in done.stderr
    assert "hunter2" not in done.stderr + done.stdout
    assert json.loads(daemon.cli("credential", "list", "--json").stdout)["resources"] == []
    assert daemon.cli("credential", "get", "gh-token").returncode == exits.NOT_FOUND
    assert daemon.cli("credential", "set", "x", "--stdin", input="").returncode == exits.USAGE


def test_usage_errors_and_help(coffer: Daemon) -> None:
    """What is not a command is a usage error; help has an example for every command."""
    assert coffer.cli("no-such-noun").returncode == exits.USAGE
    assert coffer.cli("mcp", "add", "x").returncode == exits.USAGE
    assert coffer.cli("ps", "a", "b").returncode == exits.USAGE
    for words in (["mcp", "add"], ["mcp", "list"], ["mcp", "call"], ["ps"], ["daemon", "start"], ["credential", "set"]):
        shown = coffer.cli(*words, "--help")
        assert shown.returncode == exits.OK
        assert "Example" in shown.stdout
    said = coffer.cli("--version").stdout
    assert said.startswith("coffer ")
    program = subprocess.run([DAEMON, "--version"], env=coffer.env, capture_output=True, text=True, check=True)
    assert program.stdout == said.replace("coffer ", "coffer-daemon ")


def test_the_trace_of_an_error_is_shown_when_asked_for(daemon: Daemon) -> None:
    """--verbose anywhere shows the trace; without it there is only what, why and what next."""
    plain = daemon.cli("mcp", "show", "absent")
    assert plain.returncode == exits.NOT_FOUND
    assert "Traceback" not in plain.stderr
    assert plain.stderr.splitlines()[1].strip().startswith("See what there is")
    verbose = daemon.cli("mcp", "show", "absent", "--verbose")
    assert verbose.returncode == exits.NOT_FOUND
    assert "Traceback" in verbose.stderr


def test_names_complete_in_a_shell(daemon: Daemon) -> None:
    """Completion for shells, names included; it starts no daemon."""
    daemon.add_server("files", {"transport": "stdio", "command": "true"})
    daemon.extra_env.update(_COFFER_COMPLETE="complete_bash", COMP_WORDS="coffer mcp show f", COMP_CWORD="3")
    assert daemon.cli().stdout.split() == ["files"]
