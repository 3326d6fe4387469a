"""docs/matrix.md: the table as it was found, and where the protocol itself loses something. Pure."""

from __future__ import annotations

from tests.matrix.features import FEATURES
from tests.matrix.run import Table
from tests.matrix.stage import ERAS, PIPES, WAYS

HEAD = """# What works between which client and which server

Made by `make matrix`; a test holds this page against a fresh run. Each cell is a real exchange through one daemon: the
client sends a value that only it knows and gets back one that only the server knows, and both ends are looked at. Two
other clients stand by and see nothing of it (but that a list changed, where it is their list too).

Legacy: the revisions with a handshake, up to 2025-11-25. Modern: 2026-07-28. Clients reach Coffer over HTTP or behind
the shim; servers are started by Coffer (stdio) or stand at a URL (http).

"""
LOSS = """
## Where the protocol itself loses something

Coffer translates between the eras; some things have no counterpart on the other side. Nothing is made up for them.

| client | server | what | what becomes of it |
|---|---|---|---|
"""
LOSSES: tuple[tuple[str, str, str, str], ...] = (
    (
        "legacy",
        "modern",
        "the client answers sampling or roots with an error",
        "there is no place for it in the retry: the call ends with that error, and the server hears no more",
    ),
    (
        "legacy",
        "modern",
        "progress that begins at 0 again in the next round of a call",
        "values that do not rise are left out",
    ),
    (
        "legacy",
        "modern",
        "a cancellation while the client is being asked",
        "no request of ours is open at the server, which hears nothing",
    ),
    (
        "legacy",
        "modern",
        "`notifications/roots/list_changed`",
        "has no modern form: what Coffer keeps of the roots is dropped, and the server gets the new ones when it asks",
    ),
    (
        "legacy",
        "modern",
        "`notifications/elicitation/complete`",
        "the moment at which the person was done is not told",
    ),
    (
        "legacy",
        "modern",
        "log messages before the client set a level",
        "a modern server sends none that were not asked for",
    ),
    (
        "modern",
        "legacy",
        "a refused or forgotten ask",
        "a modern client just does not come back: the server waits for the time that answers may take, "
        "then gets an error",
    ),
    (
        "modern",
        "legacy",
        "a client that gives up while it is being asked",
        "is seen by that time alone",
    ),
    (
        "modern",
        "legacy",
        "progress while the client is being asked",
        "the last value is kept, and sent if the retry brings a token",
    ),
    (
        "modern",
        "legacy",
        "changed roots",
        "are not told; the server's picture may be old until it asks again",
    ),
    (
        "modern",
        "legacy",
        "`notifications/elicitation/complete`",
        "has no modern form",
    ),
    (
        "modern",
        "legacy",
        "log messages that belong to no call for certain",
        "go to the server's log file only",
    ),
    (
        "any",
        "modern, stdio",
        "log messages while several calls run",
        "name no call: they go to the server's log file only",
    ),
    (
        "any",
        "any",
        "changes while a stream to the server was down",
        "the lists are read again and compared, and every subscribed resource is reported once",
    ),
)


def mark(table: Table, cell: tuple[str, str, str, str, str]) -> str:
    """What stands in a cell."""
    if cell not in table.tried:
        return "not tried"
    return "fails" if cell in table.failed else "yes"


def page(table: Table) -> str:
    """The whole page."""
    pairs = [(era, pipe) for era in ERAS for pipe in PIPES]
    lines: list[str] = []
    for era in ERAS:
        for way in WAYS:
            lines.append(f"## A {era} client {'behind the shim' if way == 'shim' else 'over HTTP'}\n")
            lines.append("| | " + " | ".join(f"{there} server, {pipe}" for there, pipe in pairs) + " |")
            lines.append("|---|" + "---|" * len(pairs))
            for kind in FEATURES:
                cells = [mark(table, (era, way, there, pipe, kind)) for there, pipe in pairs]
                lines.append(f"| {kind} | " + " | ".join(cells) + " |")
            lines.append("")
    rows = [f"| {client} | {server} | {what} | {becomes} |" for client, server, what, becomes in LOSSES]
    return HEAD + "\n".join(lines).rstrip("\n") + "\n" + LOSS + "\n".join(rows) + "\n"
