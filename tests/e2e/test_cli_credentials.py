"""Secrets from the command line to the upstream's environment, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coffer_common import exits
from tests.support import upstreams
from tests.support.daemon import Daemon
from tests.support.upstreams import ROOT
from tests.support.wait import wait_until

pytestmark = pytest.mark.e2e

MARKER = "s3cr3t-marker-8f1e"
SECOND = "s3cr3t-marker-second"


@pytest.fixture
def keychained(make_daemon: Callable[..., Daemon], tmp_path: Path) -> Daemon:
    """A running daemon whose keychain is a file of this test."""
    env = {
        "PYTHON_KEYRING_BACKEND": "tests.fixtures.file_keyring.FileKeyring",
        "PYTHONPATH": str(ROOT),
        "FAKE_KEYRING": str(tmp_path / "keyring.json"),
    }
    return make_daemon(extra_env=env).start()


def command_lines() -> bytes:
    """The command line of every process of this machine."""
    found = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += path.read_bytes() + b"\n"
        except OSError:
            continue
    return found


def written(home: Path) -> bytes:
    """All that Coffer wrote down under its home."""
    return b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())


def test_a_secret_reaches_the_upstream_and_nothing_else(keychained: Daemon) -> None:
    """K01, K02: in no argv, row, log, audit entry or output; configuration holds the reference."""
    shown: list[str] = []

    def coffer(*words: str, **more: Any) -> str:
        done = keychained.cli(*words, **more)
        shown.append(done.stdout + done.stderr)
        assert done.returncode == exits.OK, done
        return done.stdout

    stored = coffer("credential", "set", "fake-token", "--stdin", input=f"{MARKER}\n")
    assert "use it as ${fake-token}" in stored
    upstream = upstreams.fake("--tools", "environ", "raise")
    env = ("--env", f"PYTHONPATH={ROOT}", "--env", "TOKEN=pre-${fake-token}")
    assert "✓ fake is ready" in coffer("mcp", "add", "fake", *env, "--", *upstream.argv)
    answer = keychained.cli("mcp", "call", "fake", "environ")
    assert json.loads(answer.stdout)["TOKEN"] == f"pre-{MARKER}"
    for words in (["mcp", "show", "fake"], ["mcp", "list"], ["ps", "fake"], ["ps"], ["audit", "list"], ["doctor"]):
        coffer(*words)
        if words[0] != "doctor":
            coffer(*words, "--json")
    assert "${fake-token}" in coffer("mcp", "show", "fake")
    assert "used by: fake" in coffer("credential", "get", "fake-token")
    coffer("daemon", "logs")
    coffer("mcp", "logs", "fake")
    assert MARKER not in "".join(shown)
    assert MARKER.encode() not in command_lines()
    assert MARKER.encode() not in written(keychained.home)


def test_a_changed_secret_is_used_and_one_in_use_is_not_deleted(keychained: Daemon) -> None:
    """Servers start again with the new secret; deleting one that is referred to is a conflict."""
    keychained.cli("credential", "set", "fake-token", "--stdin", input=MARKER)
    upstream = upstreams.fake("--tools", "environ")
    env = ("--env", f"PYTHONPATH={ROOT}", "--env", "TOKEN=${fake-token}")
    keychained.cli("mcp", "add", "fake", *env, "--", *upstream.argv)
    changed = keychained.cli("credential", "set", "fake-token", "--stdin", input=SECOND)
    assert "fake will use it" in changed.stdout, changed

    def token() -> str:
        done = keychained.cli("mcp", "call", "fake", "environ")
        return str(json.loads(done.stdout).get("TOKEN")) if done.returncode == exits.OK else ""

    assert wait_until(lambda: token() == SECOND)
    refused = keychained.cli("credential", "delete", "fake-token", "--yes")
    assert refused.returncode == exits.CONFLICT
    assert "fake" in refused.stderr
    assert keychained.cli("credential", "rm", "fake-token", "--yes", "--force").returncode == exits.OK
    assert keychained.cli("credential", "get", "fake-token").returncode == exits.NOT_FOUND
    missing = keychained.cli("mcp", "add", "other", "--env", "T=${fake-token}", "--", "true")
    assert missing.returncode == exits.USAGE
    assert "coffer credential set fake-token" in missing.stderr


def test_the_encrypted_file_once_it_is_chosen(make_daemon: Callable[..., Daemon]) -> None:
    """K07: without a keychain storing is refused with the exact next step; after it everything works, also for the
    next daemon, and nothing stands in plain text."""
    home = make_daemon(extra_env={"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}).start()
    refused = home.cli("credential", "set", "gh", "--stdin", input=MARKER)
    assert refused.returncode == exits.FAILURE
    assert "coffer credential use-file" in refused.stderr
    assert home.cli("credential", "get", "gh").returncode == exits.NOT_FOUND
    chosen = json.loads(home.cli("credential", "use-file", "--json").stdout)
    assert chosen == {"backend": "file", "path": str(home.home / "credentials"), "moved": [], "left": []}
    large = MARKER * 500
    assert "encrypted file" in home.cli("credential", "set", "gh", "--stdin", input=large).stdout
    listed = home.cli("credential", "list")
    assert "encrypted file" in listed.stdout
    assert str(home.home / "credentials") in listed.stderr
    assert home.stop() == 0
    home.start()
    assert home.cli("credential", "get", "gh", "--reveal").stdout == f"{large}\n"
    assert MARKER.encode() not in written(home.home)
    events = [row["event"] for row in home.api("GET", "/audit")["audit"]]
    assert {"credential.backend_chosen", "credential.revealed"} <= set(events)
    assert home.api("GET", "/credential-store") == {
        "backend": "file",
        "path": str(home.home / "credentials"),
        "usable": True,
        "message": "",
        "hint": "",
    }


def test_a_secret_moves_from_the_keychain_to_the_file(keychained: Daemon) -> None:
    """Choosing the file takes along what the keychain gives; servers go on with it."""
    keychained.cli("credential", "set", "fake-token", "--stdin", input=MARKER)
    moved = keychained.cli("credential", "use-file")
    assert "moved there from the keychain: fake-token" in moved.stdout
    shown = json.loads(keychained.cli("credential", "get", "fake-token", "--json").stdout)
    assert shown["backend"] == "file"
    assert keychained.cli("credential", "get", "fake-token", "--reveal").stdout == f"{MARKER}\n"
    assert MARKER.encode() not in written(keychained.home)


def test_showing_a_secret_needs_a_word_and_is_audited(keychained: Daemon) -> None:
    """`--reveal` prints it, exactly; each time is in the audit log, with who asked. Nothing else ever shows it."""
    secret = f"{MARKER}-\u00e9\n  second line"
    keychained.cli("credential", "set", "pem", "--stdin", input=secret)
    assert MARKER not in keychained.cli("credential", "get", "pem").stdout
    assert keychained.cli("credential", "get", "pem", "--reveal").stdout == f"{secret}\n"
    assert json.loads(keychained.cli("credential", "get", "pem", "--reveal", "--json").stdout)["value"] == secret
    rows = keychained.api("GET", "/audit?event=credential.revealed")["audit"]
    assert [(row["name"], row["actor"]) for row in rows] == [("pem", "cli"), ("pem", "cli")]
    assert MARKER not in json.dumps(keychained.api("GET", "/audit"))
    assert keychained.cli("credential", "get", "absent", "--reveal").returncode == exits.NOT_FOUND


def test_force_says_what_breaks(keychained: Daemon) -> None:
    """A deletion that is forced names the servers that fail without the secret, and they say why they do."""
    keychained.cli("credential", "set", "fake-token", "--stdin", input=MARKER)
    upstream = upstreams.fake("--tools", "environ")
    env = ("--env", f"PYTHONPATH={ROOT}", "--env", "TOKEN=${fake-token}")
    keychained.cli("mcp", "add", "fake", *env, "--", *upstream.argv)
    done = keychained.cli("credential", "delete", "fake-token", "--yes", "--force")
    assert done.returncode == exits.OK
    assert "fake cannot start without it" in done.stderr
    keychained.wait_state("fake", "failed")
    failed = keychained.cli("mcp", "call", "fake", "environ")
    assert failed.returncode == exits.FAILURE
    assert "coffer credential set fake-token" in failed.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--", "true", "--token", "${absent}"], "argument 2"),
        (["--env", "T=${VAR:-d}", "--", "true"], "${VAR:-d}"),
        (["--env", "T=${MISSING}", "--", "true"], "${MISSING}"),
        (["--env", "T=${absent}", "--", "true"], "coffer credential set absent"),
        (["--url", "http://127.0.0.1:1/${absent}"], "coffer credential set absent"),
        (["--url", "http://127.0.0.1:1/", "--header", "X-A=${absent}"], "the header X-A"),
    ],
)
def test_a_reference_that_names_nothing_is_refused(keychained: Daemon, words: list[str], told: str) -> None:
    """K06: the field and the name are told, nothing is registered, and the literal is never sent."""
    done = keychained.cli("mcp", "add", "unfilled", *words)
    assert done.returncode == exits.USAGE, done
    assert told in done.stderr
    assert keychained.cli("mcp", "show", "unfilled").returncode == exits.NOT_FOUND
