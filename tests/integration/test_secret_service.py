"""The vault against a real Secret Service: GNOME's keyring on a message bus of its own.

Where the programs are missing these tests fail, they do not skip: `.ci/run` installs them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.upstreams import ROOT

PROGRAMS = ("dbus-run-session", "gnome-keyring-daemon")
INSIDE = "tests.fixtures.secret_session"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have keychains of their own")


def session(tmp_path: Path, mode: str) -> dict[str, object]:
    """What happened within a message bus, home and keyring of this test."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        pytest.fail(
            f"{', '.join(absent)} not found: the keychain cannot be tested against a real Secret Service. "
            "On Debian: apt-get install gnome-keyring dbus"
        )
    home = tmp_path / "home"
    run = tmp_path / "run"
    for folder in (home, run):
        folder.mkdir(mode=0o700)
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(run),
        "XDG_DATA_HOME": str(home / "data"),
        "PYTHONPATH": str(ROOT),
        "COFFER_HOME": str(tmp_path / "coffer"),
    }
    done = subprocess.run(
        ["dbus-run-session", "--", sys.executable, "-m", INSIDE, mode],
        env=env,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_secrets_of_any_size_live_in_a_real_keychain(tmp_path: Path) -> None:
    """Stored, read back, replaced, removed; a large one in parts, of which nothing is left."""
    found = session(tmp_path, "unlocked")
    assert "error" not in found, found
    assert found["backend"] == "keyring.backends.SecretService"
    assert (found["first"], found["second"]) == ("s3cr3t-é-1", "s3cr3t-2")
    assert (found["large"], found["shrunk"]) == (True, "small")
    assert found["resolved"] == "Bearer s3cr3t-2"
    assert found["other"] is None
    assert found["deleted"] == [True, False, True]
    assert (found["gone"], found["left"]) == (None, [])
    kept = b"".join(path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file())
    assert b"s3cr3t" not in kept


def test_a_locked_keychain_is_told_with_the_next_step(tmp_path: Path) -> None:
    """K07: nobody is there to unlock it: within a bound, an error that says so."""
    found = session(tmp_path, "locked")
    error = found["error"]
    assert isinstance(error, list), found
    assert error[0] in {"keychain_locked", "keychain_silent", "no_keychain", "keychain_failed"}
    assert "coffer credential use-file" in error[2]
