"""What a newcomer gets wrong: each mistake is answered with what was wrong and what to do instead."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coffer_common import exits
from tests.support.daemon import COFFER, Daemon

pytestmark = pytest.mark.e2e

SLOW = ("--", sys.executable, "-c", "import signal; signal.pause()")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("mcp", "show", "filse"), exits.NOT_FOUND, ("there is no server filse", "Did you mean files?")),
        (("mcp", "show", "quite-another"), exits.NOT_FOUND, ("no server quite-another\n  See what there is with:",)),
        (("mcp", "add", "files", *SLOW), exits.CONFLICT, ("the server files exists already",)),
        (("mcp", "add", "x", "--isolation", "no", *SLOW), exits.USAGE, ("isolation: it is auto, session or shared",)),
        (("mcp", "add", "x", "--url", "host/mcp"), exits.USAGE, ("url: it begins with http:// or https://",)),
        (
            ("mcp", "add", "x", "--url", "http://127.0.0.1:9/mcp", "--header", "Bad Header=x"),
            exits.USAGE,
            ("the header name 'Bad Header' is not one that HTTP allows", "Nothing has been stored"),
        ),
        (("mcp", "update", "files", "--env", "=x"), exits.USAGE, ("NAME=VALUE, and nothing stands before the '='",)),
        (("mcp", "call", "files", "any"), exits.CONFLICT, ("server 'files' is disabled",)),
        (("mcp", "call", "quite-another", "any"), exits.NOT_FOUND, ("there is no server quite-another",)),
        (("mcp", "tools", "files", "--enable", "a", "--disable", "a"), exits.USAGE, ("a is to be both on and off",)),
        (
            ("mcp", "tools", "files", "--enable", "no-such", "--disable", "nor-such"),
            exits.NOT_FOUND,
            ("no tool 'no-such' on the server files; nothing was switched",),
        ),
        (("mcp", "add", "x", "--url", "http://:9/mcp"), exits.USAGE, ("(url: it names no host)", "Nothing has been")),
        (("mcp", "login", "files"), exits.CONFLICT, ("only servers at a URL have logins, and files is a command",)),
        (("ps", "kill"), exits.USAGE, ("ps kill takes a call", "coffer ps kill c-91")),
        (("mcp", "invocations", "--status", "bad"), exits.USAGE, ("One of: ok, error, timeout, denied, cancelled",)),
    ],
)
def test_a_mistake_is_answered_with_the_remedy(
    daemon: Daemon, words: tuple[str, ...], code: int, said: tuple[str, ...]
) -> None:
    """Errors say what happened, to what, and what to do next; a misspelt name brings the one that was meant."""
    daemon.cli("mcp", "add", "files", "--disabled", *SLOW)
    done = daemon.cli(*words)
    assert done.returncode == code, done
    for text in said:
        assert text in done.stderr, done.stderr


def test_a_command_that_is_not_there_can_be_corrected(daemon: Daemon) -> None:
    """A server whose command is misspelt is registered all the same, with the way to correct it."""
    done = daemon.cli("mcp", "add", "typo", "--", "no-such-command-anywhere")
    assert "command not found: no-such-command-anywhere" in done.stdout, done
    assert "coffer mcp update typo -- COMMAND ARGS..." in done.stdout
    assert "next try in 0 s" not in done.stdout


def test_whoever_does_not_wait_is_told_what_goes_on(daemon: Daemon) -> None:
    """Ctrl-C in the middle of `mcp add` ends the waiting, not the server, and says so."""
    with subprocess.Popen(
        [str(COFFER), "mcp", "add", "slow", *SLOW],
        env=daemon.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background has its children ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 (no threads here)
    ) as adding:
        assert adding.stderr is not None
        assert adding.stderr.readline() == "starting slow …\n"
        adding.send_signal(signal.SIGINT)
        said = adding.communicate(timeout=30)[1]
    assert adding.returncode == 130
    assert "slow stays registered and goes on starting" in said
    assert "coffer mcp remove slow" in said
    (listed,) = json.loads(daemon.cli("mcp", "list", "--json").stdout)["resources"]
    assert listed["name"] == "slow"


def test_output_is_utf_8_where_the_locale_knows_no_such_characters(daemon: Daemon) -> None:
    """JSON is UTF-8 by its own standard, and a table with a tick is no reason to fail."""
    env = {**daemon.env, "PYTHONIOENCODING": "latin-1"}
    shown = subprocess.run([COFFER, "daemon", "status"], env=env, capture_output=True, check=False)
    assert (shown.returncode, shown.stdout.decode()[0]) == (exits.OK, "✓"), shown


@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [
        (">/dev/full", exits.FAILURE, "error: the output cannot be written: No space left on device"),
        (">&-", exits.OK, ""),
        (">&- 2>&-", exits.OK, ""),
    ],
)
def test_output_that_goes_nowhere_is_no_fault_of_ours(daemon: Daemon, redirection: str, code: int, said: str) -> None:
    """A full disk behind the redirection is named; a closed stdout (cron, some launchers) harms nothing."""
    if redirection.endswith("/full") and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    words = ["sh", "-c", f'"$0" mcp list --json {redirection}', str(COFFER)]
    done = subprocess.run(words, env=daemon.env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.partition("\n")[0]) == (code, said)


def test_output_that_nobody_reads_to_its_end_is_no_failure(daemon: Daemon) -> None:
    """`coffer ... | head` ends quietly, whenever the reader leaves."""
    daemon.cli("mcp", "add", "files", "--disabled", *SLOW)
    for words in (("mcp", "list", "--json"), ("mcp", "list"), ("--version",), ("mcp", "--help")):
        reads, writes = os.pipe()
        os.close(reads)
        try:
            done = subprocess.run(
                [COFFER, *words], env=daemon.env, stdout=writes, stderr=subprocess.PIPE, text=True, check=False
            )
        finally:
            os.close(writes)
        assert (done.returncode, done.stderr) == (exits.OK, ""), words


def test_a_server_without_a_url_has_no_login_to_forget(daemon: Daemon) -> None:
    """Where there is no keychain either: that is no reason to fail."""
    daemon.cli("mcp", "add", "files", "--disabled", *SLOW)
    done = daemon.cli("mcp", "logout", "files")
    assert (done.returncode, done.stdout.strip()) == (exits.OK, "✓ files had no login"), done


def test_a_credential_s_name_is_refused_with_the_rule(daemon: Daemon) -> None:
    done = daemon.cli("credential", "set", "Bad Ref", "--stdin", input="x")
    assert (done.returncode, "A name is 1 to 32 characters" in done.stderr) == (exits.USAGE, True), done
