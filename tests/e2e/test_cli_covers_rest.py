"""The command line against the management API: every operation has its command, and every command is tried here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from coffer_cli import client, main
from coffer_common import exits
from coffer_common.api import LOG_TABLES, PREFIX
from coffer_supervisor.management import http, openapi, routes
from tests.support.daemon import Daemon
from tests.support.upstreams import ROOT, fake

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

SERVER = ("--env", f"PYTHONPATH={ROOT}", "--", *fake("--tools", "echo").argv)
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("daemon", "start"),
    ("daemon", "status"),
    ("daemon", "rotate-token"),
    ("mcp", "add", "files", *SERVER),
    ("mcp", "list"),
    ("mcp", "show", "files"),
    ("mcp", "update", "files", "--description", "mine"),
    ("mcp", "disable", "files"),
    ("mcp", "enable", "files"),
    ("mcp", "restart", "files"),
    ("mcp", "test", "files"),
    ("mcp", "refresh", "files"),
    ("mcp", "tools", "files", "--disable", "echo"),
    ("mcp", "tools", "files", "--enable", "echo"),
    ("mcp", "resources", "files"),
    ("mcp", "prompts", "files"),
    ("mcp", "call", "files", "echo"),
    ("mcp", "invocations"),
    ("mcp", "invocations", "files"),
    ("mcp", "logs", "files"),
    ("ps",),
    ("ps", "files"),
    ("ps", "kill", "c-123456"),
    ("top", "--once"),
    ("credential", "use-file"),
    ("credential", "set", "key", "--stdin"),
    ("credential", "list"),
    ("credential", "get", "key"),
    ("credential", "get", "key", "--reveal"),
    ("credential", "delete", "key", "--yes"),
    ("client", "add", "cursor"),
    ("client", "list"),
    ("client", "show", "cursor"),
    ("client", "update", "cursor", "--server", "files"),
    ("client", "disable", "cursor"),
    ("client", "enable", "cursor"),
    ("client", "rotate", "cursor"),
    ("client", "remove", "cursor", "--yes"),
    ("group", "add", "work", "--server", "files"),
    ("group", "list"),
    ("group", "show", "work"),
    ("group", "update", "work", "--description", "mine"),
    ("group", "disable", "work"),
    ("group", "enable", "work"),
    ("group", "remove", "work", "--yes"),
    ("audit", "list"),
    ("retention", "list"),
    ("retention", "list", "audit_log"),
    ("retention", "set", "audit_log", "90"),
    ("retention", "prune"),
    ("stats",),
    ("backup",),
    ("mcp", "remove", "files", "--yes"),
    ("daemon", "restart"),
    ("daemon", "stop"),
)
# They work on files of this machine, or put together what other commands give.
NOT_REST = frozenset(
    {
        "import",
        "install",
        "uninstall",
        "restore",
        "doctor",
        "daemon enable",
        "daemon disable",
        "daemon run",
        "daemon logs",
    }
)
# Read by programs, not by people.
NOT_COMMANDS = frozenset({"openapi.show", "exposition.show"})
# A login needs a server that asks for one: their own tests try these.
LOGINS = frozenset({"mcp login", "mcp logout"})
LOGIN_OPERATIONS = frozenset({"logins.begin", "logins.wait", "logins.logout"})
# What a command asks for only where it prints for people.
FOR_PEOPLE = (("credential", "list"),)
NOT_THERE: dict[tuple[str, ...], int] = {("ps", "kill", "c-123456"): exits.NOT_FOUND}


def tree(commands: Mapping[str, Any], *above: str) -> Iterator[str]:
    """Every command that help shows."""
    for name, command in commands.items():
        if below := getattr(command, "commands", None):
            yield from tree(below, *above, name)
        elif not command.hidden:
            yield " ".join((*above, name))


@pytest.fixture
def asked(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations that commands of this process ask for, as they ask the real daemon."""
    for key, value in daemon.env.items():
        monkeypatch.setenv(key, value)
    seen: list[str] = []

    def note(method: str, target: str) -> None:
        seen.append(openapi.operation_id(http.match(method, target.partition("?")[0])[0]))

    exchange, events = client.Client._exchange, client.Client.events

    def exchanged(self: client.Client, method: str, target: str, *more: Any) -> Any:
        note(method, target)
        return exchange(self, method, target, *more)

    def followed(self: client.Client, path: str) -> Any:
        note("GET", PREFIX + path)
        return events(self, path)

    monkeypatch.setattr(client.Client, "_exchange", exchanged)
    monkeypatch.setattr(client.Client, "events", followed)
    return seen


def documented() -> dict[str, tuple[set[str], set[str]]]:
    """By command: the top-level keys of its JSON that docs/cli.md names, and those of them that may be absent."""
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    found: dict[str, tuple[set[str], set[str]]] = {}
    for row in page.partition("### `--json`")[2].partition("\n## ")[0].splitlines():
        commands, _, rest = row.removeprefix("| ").partition(" | ")
        keys, _, optional = rest.partition(" | ")[0].partition("(")
        always, sometimes = set(re.findall(r"`(\w+)`", keys)), set(re.findall(r"`(\w+)`", optional))
        for one in re.findall(r"`([^`]+)`", commands):
            first, *others = one.split(" / ")
            noun = first.rpartition(" ")[0]
            for name in (first, *(f"{noun} {other}" for other in others)):
                found[name] = (always, sometimes)
    return found


def as_json(words: tuple[str, ...]) -> list[str]:
    """The command with --json, before what belongs to the server's own command."""
    end = words.index("--") if "--" in words else len(words)
    return [*words[:end], "--json", *words[end:]]


def named(words: tuple[str, ...], page: dict[str, Any]) -> str:
    """The longest name on the page that a command line begins with; what is optional stands in capitals or dashes."""
    line = " ".join(words).replace("ps files", "ps NAME").replace("get key --reveal", "get --reveal")
    return max((name for name in page if f"{line} ".startswith(f"{name} ")), key=len, default="")


def test_every_operation_has_its_command(asked: list[str]) -> None:
    """Whatever the API can do, the command line does through it; its JSON has the keys that the page promises."""
    page = documented()
    for words in COMMANDS:
        before = len(asked)
        done = CliRunner().invoke(main.app, as_json(words), input="a secret\n")
        code = getattr(done.exception, "code", 1) if done.exception is not None else exits.OK
        assert code == NOT_THERE.get(words, exits.OK), (words, done.output, done.exception)
        assert len(asked) > before, f"{words} asked the daemon nothing"
        if code == exits.OK:
            keys = set(json.loads(done.stdout))
            always, sometimes = page[named(words, page)]
            assert always <= keys <= always | sometimes, words
        if words in FOR_PEOPLE:
            assert CliRunner().invoke(main.app, list(words)).exit_code == exits.OK
    assert {openapi.operation_id(route) for route in routes.ROUTES} - set(asked) - LOGIN_OPERATIONS == NOT_COMMANDS


def test_every_command_takes_json_and_quiet() -> None:
    """One rule for all: `--json`, `-q`, and help with an example; the daemon in the foreground is its own log."""

    def lacking(commands: Mapping[str, Any], *above: str) -> Iterator[str]:
        for name, command in commands.items():
            if below := getattr(command, "commands", None):
                yield from lacking(below, *above, name)
                continue
            options = {option for parameter in command.params for option in parameter.opts}
            example = command.hidden or "coffer " in (command.epilog or "")
            if not {"--json", "--quiet", "-q"} <= options or not example:
                yield " ".join((*above, name))

    assert set(lacking(vars(typer.main.get_command(main.app))["commands"])) == {"daemon run"}


def test_quiet_prints_names_or_what_was_asked_for(daemon: Daemon) -> None:
    """A name a line, without headings or marks, for scripts; nothing where there is no name to print."""
    assert daemon.cli("mcp", "add", "files", "-q", *SERVER).returncode == exits.OK
    assert daemon.cli("mcp", "call", "files", "echo").returncode == exits.OK
    assert daemon.cli("group", "add", "work", "--server", "files", "-q").stdout == ""
    assert daemon.cli("client", "add", "cursor", "-q").stdout.count("\n") == 1
    for words, printed in (
        (("mcp", "list"), "files\n"),
        (("mcp", "show", "files"), "files\n"),
        (("mcp", "tools", "files"), "echo\n"),
        (("mcp", "invocations"), "files echo\n"),
        (("audit", "list", "--client", "cursor"), "client:cursor\n"),
        (("retention", "list"), "".join(f"{table}\n" for table in LOG_TABLES)),
        (("client", "show", "cursor"), "cursor\n"),
        (("group", "show", "work"), "work\n"),
        (("ps",), "files\n"),
        (("top",), "files\n"),
        (("stats",), "files echo\n"),
        (("daemon", "rotate-token"), ""),
        (("mcp", "disable", "files"), ""),
    ):
        done = daemon.cli(*words, "-q")
        assert (done.returncode, done.stdout) == (exits.OK, printed), (words, done)
    assert daemon.cli("daemon", "logs", "-q").stdout


def test_every_command_is_tried() -> None:
    """A command that is new stands in one of the two lists above."""
    known = set(tree(vars(typer.main.get_command(main.app))["commands"]))
    tried = {name for name in known for words in COMMANDS if words[: len(name.split())] == tuple(name.split())}
    assert known - tried - LOGINS == NOT_REST
