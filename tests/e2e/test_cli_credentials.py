"""Secrets from the command line to the upstream's environment, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

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

    def coffer(*words: str, **more: str) -> str:
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
