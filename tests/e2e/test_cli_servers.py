"""The installed `coffer` with real servers: registering, curating, calling, watching, removing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coffer_common import exits
from tests.support import upstreams
from tests.support.daemon import COFFER, Daemon
from tests.support.upstreams import ROOT
from tests.support.wait import wait_until

pytestmark = pytest.mark.e2e

SECRET = "ghp_aaaaaaaaaaaaaaaaaaaa"


def add(coffer: Daemon, name: str, *flags: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """`coffer mcp add` of the fake server."""
    upstream = upstreams.fake(*flags)
    return coffer.cli("mcp", "add", name, "--env", f"PYTHONPATH={ROOT}", *options, "--", *upstream.argv)


def raw(coffer: Daemon, name: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """`coffer mcp add` of the misbehaving server."""
    return coffer.cli("mcp", "add", name, "--", *upstreams.raw(*flags).argv)


def data(done: subprocess.CompletedProcess[str]) -> Any:
    """What a command printed with --json."""
    assert done.returncode == exits.OK, done
    return json.loads(done.stdout)


def test_add_prints_what_was_found_and_call_uses_it(daemon: Daemon) -> None:
    """A server that is added is started, discovered, and what was found is printed; then its tools can be called."""
    done = add(daemon, "files", "--tools", "echo", "fail", "--resources", "memo://a", "--prompts")
    assert done.returncode == exits.OK, done
    assert "✓ files is ready: 2 tools, 1 resource, 0 prompts  (stdio, MCP " in done.stdout
    assert "files__echo  files__fail" in done.stdout
    called = daemon.cli("mcp", "call", "files", "echo", "--arg", "text=hé", "--arg", "n=3")
    assert called.returncode == exits.OK, called
    assert json.loads(called.stdout) == {"text": "hé", "n": 3}
    outcome = data(daemon.cli("mcp", "call", "files", "echo", "--json-args", '{"big": 12345678901234567890}', "--json"))
    assert outcome["ok"] is True
    assert "12345678901234567890" in outcome["result"]["content"][0]["text"]


def test_a_tool_that_fails_ends_the_command_with_its_own_words(daemon: Daemon) -> None:
    """isError: exit code 1, the tool's own answer on stderr."""
    add(daemon, "files", "--tools", "fail", "raise")
    done = daemon.cli("mcp", "call", "files", "fail", "--arg", "text=ENOENT: no such file")
    assert done.returncode == exits.FAILURE
    assert done.stderr == "error: files: fail failed: ENOENT: no such file\n"
    assert done.stdout == ""
    done = daemon.cli("mcp", "call", "files", "raise", "--arg", "code=-32042", "--arg", "message=own words")
    assert done.returncode == exits.FAILURE
    assert "own words" in done.stderr


def test_a_tool_that_is_in_no_list_is_answered_without_its_server(daemon: Daemon, tmp_path: Path) -> None:
    """A misspelt tool brings the one that was meant, and the server, whose lists are known, hears nothing of it."""
    server = upstreams.fake("--tools", "echo", "fail", log=tmp_path / "log")
    daemon.add_server("files", server)
    daemon.wait_state("files")
    for tool, said in (("ehco", "Did you mean echo? "), ("files__echo", "Did you mean echo? "), ("qqq", "")):
        done = daemon.cli("mcp", "call", "files", tool)
        assert done.returncode == exits.NOT_FOUND
        assert f"there is no tool '{tool}' on the server files" in done.stderr
        assert f"{said}See what it offers: coffer mcp tools files" in done.stderr
    assert server.messages("tools/call") == []


def test_a_server_that_dies_at_start_is_registered_and_says_why(daemon: Daemon) -> None:
    """P09: exit code and last stderr lines at once, no wait for the start limit; registered all the same."""
    done = raw(daemon, "broken", "--stderr-at-start", "Error: API_KEY missing", "--die-at-start", "3")
    assert done.returncode == exits.OK, done
    assert "✗ broken is registered, but not ready" in done.stdout
    assert "API_KEY missing" in done.stdout
    listed = data(daemon.cli("mcp", "list", "--json"))["resources"]
    assert [one["name"] for one in listed] == ["broken"]
    assert listed[0]["status"]["state"] in ("backoff", "failed", "starting")
    done = daemon.cli("mcp", "test", "broken")
    assert done.returncode == exits.FAILURE
    done = daemon.cli("mcp", "add", "ghost", "--", "no-such-command-anywhere")
    assert done.returncode == exits.OK
    assert "no-such-command-anywhere" in done.stdout


def test_what_looks_like_a_secret_is_refused_with_the_remedy(daemon: Daemon) -> None:
    """K01: nothing is registered, the value is not repeated, and the commands that help are named."""
    header = f"Authorization=Bearer {SECRET}"
    done = daemon.cli("mcp", "add", "gh", "--url", "https://api.example.com/mcp", "--header", header)
    assert done.returncode == exits.USAGE
    assert "the header Authorization holds what looks like a secret." in done.stderr
    assert "coffer credential set gh-token" in done.stderr
    assert "--header 'Authorization=Bearer ${gh-token}'" in done.stderr
    assert SECRET not in done.stderr + done.stdout
    done = daemon.cli("mcp", "add", "gh", "--env", f"TOKEN={SECRET}", "--", "true")
    assert done.returncode == exits.USAGE
    assert data(daemon.cli("mcp", "list", "--json"))["resources"] == []
    assert SECRET not in (daemon.home / "logs" / "daemon.log").read_text(encoding="utf-8")


def test_a_missing_credential_refuses_the_registration(daemon: Daemon) -> None:
    """Registration fails naming the reference and the remedy; nothing is half-written."""
    done = daemon.cli("mcp", "add", "gh", "--env", "TOKEN=${gh-token}", "--", "true")
    assert done.returncode != exits.OK
    assert "${gh-token}" in done.stderr
    assert data(daemon.cli("mcp", "list", "--json"))["resources"] == []


@pytest.mark.parametrize("name", ["my.server", "my server", "My_Server", "a__b", "coffer"])
def test_a_name_outside_the_rule_is_refused_with_the_rule(daemon: Daemon, name: str) -> None:
    """N04: the message holds the rule, so that one can choose a name at once."""
    done = daemon.cli("mcp", "add", name, "--", "true")
    assert done.returncode == exits.USAGE
    assert "1 to 32 characters" in done.stderr


def test_a_name_can_be_taken_once(daemon: Daemon) -> None:
    """A duplicate is a conflict, and what was there stays as it was."""
    assert add(daemon, "files", "--tools", "echo").returncode == exits.OK
    done = daemon.cli("mcp", "add", "files", "--", "true")
    assert done.returncode == exits.CONFLICT
    assert "files" in done.stderr
    assert daemon.cli("mcp", "call", "files", "echo", "--arg", "text=still").returncode == exits.OK


def test_tools_are_switched_off_and_on(daemon: Daemon) -> None:
    """A tool that is off is refused, naming it; the choice shows and can be taken back."""
    add(daemon, "files", "--tools", "echo", "fail")
    done = daemon.cli("mcp", "tools", "files", "--disable", "echo", "--json")
    rows = {one["key"]: one for one in data(done)["capabilities"]}
    assert rows["echo"]["enabled"] is False
    assert rows["fail"]["enabled"] is True
    assert rows["echo"]["exposed"] == "files__echo"
    refused = daemon.cli("mcp", "call", "files", "echo")
    assert refused.returncode == exits.CONFLICT
    assert "echo" in refused.stderr
    assert "disabled; enable it with: coffer mcp tools files --enable echo\n" in refused.stderr
    assert "1/2" in daemon.cli("mcp", "list").stdout
    assert daemon.cli("mcp", "tools", "files", "--enable", "files__echo").returncode == exits.OK
    assert daemon.cli("mcp", "call", "files", "echo").returncode == exits.OK
    unknown = daemon.cli("mcp", "tools", "files", "--disable", "nothing")
    assert unknown.returncode == exits.NOT_FOUND
    audit = data(daemon.cli("audit", "list", "--json"))["audit"]
    events = [(row["event"], row["actor"]) for row in audit]
    assert ("capability.disabled", "cli") in events
    assert ("capability.enabled", "cli") in events
    assert ("resource.created", "cli") in events


def test_disable_update_and_remove(daemon: Daemon) -> None:
    """A disabled server is not called; a changed one starts again with the change; a removed one is gone."""
    add(daemon, "files", "--tools", "echo", "environ")
    assert daemon.cli("mcp", "disable", "files").returncode == exits.OK
    refused = daemon.cli("mcp", "call", "files", "echo")
    assert refused.returncode == exits.CONFLICT
    assert daemon.cli("mcp", "restart", "files").returncode == exits.CONFLICT
    assert daemon.cli("mcp", "enable", "files").returncode == exits.OK
    assert daemon.cli("mcp", "update", "files", "--env", "MARK=here").returncode == exits.OK
    environment = wait_until(lambda: json.loads(daemon.cli("mcp", "call", "files", "environ").stdout or "{}"))
    assert environment["MARK"] == "here"
    assert environment["PYTHONPATH"] == str(ROOT)
    assert daemon.cli("mcp", "remove", "files").returncode == exits.USAGE  # nobody is here to ask
    assert daemon.cli("mcp", "rm", "files", "--yes").returncode == exits.OK
    assert daemon.cli("mcp", "show", "files").returncode == exits.NOT_FOUND
    assert daemon.cli("mcp", "call", "files", "echo").returncode == exits.NOT_FOUND


def test_the_path_is_the_callers_at_the_time_of_adding(daemon: Daemon, tmp_path: Path) -> None:
    """Upstreams get the PATH as captured when the server was added, not the daemon's."""
    script = tmp_path / "only-here"
    script.write_text(f"#!/bin/sh\nexec {sys.executable} -S {upstreams.FIXTURES / 'raw_server.py'}\n")
    script.chmod(0o755)
    env = {**daemon.env, "PATH": f"{tmp_path}:{daemon.env['PATH']}"}
    words = [COFFER, "mcp", "add", "own", "--", "only-here"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "✓ own is ready" in done.stdout, done


def test_hostile_names_do_not_reach_the_terminal(daemon: Daemon, tmp_path: Path) -> None:
    """K14: tool names, answers, stderr and errors of a server are escaped in tables, text and error paths."""
    bad = "red\x1b[31m\u202egnp\nforged  row"
    script = {
        "serverInfo": {"name": bad, "version": bad},
        "replies": {
            "tools/list": {"result": {"tools": [{"name": bad, "inputSchema": {"type": "object"}}]}},
            "tools/call": {"result": {"content": [{"type": "text", "text": bad}], "isError": True}},
        },
    }
    upstream = upstreams.raw("--stderr-at-start", bad.replace("\n", "\r"), script=script, at=tmp_path)
    outputs = [daemon.cli("mcp", "add", "evil", "--", *upstream.argv)]
    for words in (
        ["mcp", "list"],
        ["mcp", "list", "--tree"],
        ["mcp", "show", "evil"],
        ["mcp", "tools", "evil"],
        ["mcp", "call", "evil", bad],
        ["mcp", "logs", "evil"],
        ["mcp", "invocations", "evil"],
        ["ps"],
        ["ps", "evil"],
        ["audit", "list"],
        ["doctor"],
    ):
        outputs.append(daemon.cli(*words))
    for done in outputs:
        for stream in (done.stdout, done.stderr):
            assert not {"\x1b", "\u202e", "\r"} & set(stream), done
            assert "forged  row" not in [line.strip() for line in stream.splitlines()], done
    assert "red\\x1b[31m" in daemon.cli("mcp", "tools", "evil").stdout
    shown = daemon.cli("mcp", "tools", "evil", "--json").stdout
    assert json.loads(shown)["capabilities"][0]["key"] == bad
    assert not {"\x1b", "\u202e"} & set(shown)


def test_ps_shows_the_hung_call_and_kill_ends_it(daemon: Daemon) -> None:
    """`ps` names the oldest call and who waits; `ps NAME` says where it stands; `ps kill` ends that call only."""
    add(daemon, "slow", "--tools", "hang", "echo")
    call = subprocess.Popen(
        [COFFER, "mcp", "call", "slow", "hang"],
        env=daemon.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        row = wait_until(lambda: next((one for one in workers(daemon) if one["in_flight"]), None))
        assert row["oldest_key"] == "hang"
        assert row["worker_pid"]
        assert "hang" in daemon.cli("ps").stdout
        detail = data(daemon.cli("ps", "slow", "--json"))
        assert [one["key"] for one in detail["calls"]] == ["hang"]
        assert detail["tree"][0]["pid"] in [one["pid"] for one in detail["worker"]["upstreams"]]
        assert daemon.cli("mcp", "call", "slow", "echo").returncode == exits.OK
        text = daemon.cli("ps", "slow").stdout
        assert "upstream process tree" in text
        assert "client cli" in text
        killed = daemon.cli("ps", "kill", detail["calls"][0]["id"])
        assert killed.returncode == exits.OK, killed
        _, error = call.communicate(timeout=20)
        assert call.returncode == exits.FAILURE
        assert "slow" in error
    finally:
        call.kill()
        call.communicate()
    assert daemon.cli("ps", "kill", "c-999999").returncode == exits.NOT_FOUND
    assert daemon.cli("ps", "nobody").returncode == exits.NOT_FOUND


def workers(daemon: Daemon) -> list[dict[str, Any]]:
    """The rows of `coffer ps --json`."""
    return list(data(daemon.cli("ps", "--json"))["workers"])


def test_ps_says_that_a_process_is_stopped(daemon: Daemon) -> None:
    """A stopped upstream and a stopped worker are reported as stopped, with what to do."""
    add(daemon, "still", "--tools", "echo")
    assert daemon.cli("mcp", "call", "still", "echo").returncode == exits.OK
    row = wait_until(lambda: next((one for one in workers(daemon) if one["upstreams"]), None))
    pid = row["upstreams"][0]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        shown = wait_until(lambda: text if "(stop)" in (text := daemon.cli("ps", "still").stdout) else "")
        assert "stopped (SIGSTOP)" in shown
        assert "coffer mcp restart still ends it and starts it again" in shown
    finally:
        os.kill(pid, signal.SIGCONT)
    os.kill(row["worker_pid"], signal.SIGSTOP)
    try:
        shown = daemon.cli("ps", "still").stdout
        assert "the worker itself is stopped" in shown
    finally:
        os.kill(row["worker_pid"], signal.SIGCONT)


def test_a_slow_start_shows_progress_and_ends_ready(daemon: Daemon) -> None:
    """A server that takes long to start is waited for, and the person is told."""
    done = add(daemon, "late", "--scenario", "basic", "--init-delay-ms", "2500", "--tools", "echo")
    assert "starting late …" in done.stderr
    assert "✓ late is ready: 1 tool" in done.stdout


def test_an_operators_call_starts_no_second_process(daemon: Daemon, tmp_path: Path) -> None:
    """A server of both eras is called by `coffer mcp call` on the connection that is there."""
    log = tmp_path / "log"
    add(daemon, "files", "--tools", "echo", "--era", "dual", "--log", str(log))
    assert daemon.cli("mcp", "call", "files", "echo").returncode == exits.OK
    assert log.read_text().count('"event": "start"') == 1


def test_invocations_are_logged_without_arguments(daemon: Daemon) -> None:
    """A row for each call, never its arguments or its result."""
    add(daemon, "files", "--tools", "echo", "fail")
    marker = f"marker-{time.time_ns()}"
    daemon.cli("mcp", "call", "files", "echo", "--arg", f"text={marker}")
    daemon.cli("mcp", "call", "files", "fail", "--arg", f"text={marker}")
    rows = data(daemon.cli("mcp", "invocations", "files", "--json"))["invocations"]
    assert [(row["key"], row["status"]) for row in rows] == [("fail", "error"), ("echo", "ok")]
    assert rows[1]["client"] == "cli"
    traces = {row["trace_id"] for row in rows}
    assert len(traces) == 2
    assert all(traces)
    assert marker not in json.dumps(rows)
    failed = data(daemon.cli("mcp", "invocations", "--status", "error", "--since", "1h", "--json"))["invocations"]
    assert [row["key"] for row in failed] == ["fail"]


def test_quiet_and_piped_output_is_for_scripts(daemon: Daemon) -> None:
    """-q prints names only; nothing is coloured or cut when piped."""
    long = "a" * 150
    add(daemon, "one", "--tools", "echo", options=("--description", long))
    add(daemon, "two", "--tools", "echo", options=("-q",))
    assert daemon.cli("mcp", "ls", "-q").stdout == "one\ntwo\n"
    assert daemon.cli("mcp", "tools", "one", "-q").stdout == "echo\n"
    table = daemon.cli("mcp", "list").stdout
    assert long in table
    assert "\x1b" not in table


def test_commands_start_the_daemon_unless_told_not_to(coffer: Daemon, make_daemon: Callable[..., Daemon]) -> None:
    """A command that needs the daemon starts one; with --no-spawn it fails with 3."""
    done = coffer.cli("mcp", "list", "--no-spawn")
    assert done.returncode == exits.UNREACHABLE
    assert "coffer daemon start" in done.stderr
    done = coffer.cli("mcp", "list")
    assert done.returncode == exits.OK, done
    assert "no servers yet" in done.stdout


def test_the_working_directory_is_home_or_the_one_named(daemon: Daemon, tmp_path: Path) -> None:
    """P17: the documented default is the home folder; `~` is expanded; a missing folder is reported as such."""
    home = Path(daemon.env["HOME"])
    (home / "p").mkdir()
    add(daemon, "plain", "--tools", "whoami")
    add(daemon, "named", "--tools", "whoami", options=("--cwd", "~/p"))
    for name, folder in (("plain", home), ("named", home / "p")):
        answer = daemon.cli("mcp", "call", name, "whoami")
        assert json.loads(answer.stdout)["cwd"] == str(folder)
    done = add(daemon, "lost", "--tools", "whoami", options=("--cwd", str(tmp_path / "absent")))
    assert "✗ lost is registered, but not ready" in done.stdout
    assert str(tmp_path / "absent") in done.stdout
    assert "command not found" not in done.stdout
    script = tmp_path / "s.sh"
    script.write_text(f"#!/bin/sh\nexec {sys.executable} -S {upstreams.FIXTURES / 'raw_server.py'}\n")
    script.chmod(0o755)
    assert "✓ near is ready" in daemon.cli("mcp", "add", "near", "--", "./s.sh", cwd=tmp_path).stdout


def test_a_file_named_relative_to_the_person_is_pointed_out(daemon: Daemon, tmp_path: Path) -> None:
    """P17: `python server.py` would be looked for in the home folder; the person is told before wondering."""
    (tmp_path / "server.py").write_text("raise SystemExit(3)\n")
    done = daemon.cli("mcp", "add", "rel", "--no-wait", "--", sys.executable, "server.py", cwd=tmp_path)
    assert "server.py is relative" in done.stderr
