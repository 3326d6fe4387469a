"""What the commands of every kind of named thing share: one that was changed, switched or removed, and its path.

Owns these steps. Never knows what is in a kind's configuration.
"""

from coffer_cli import client, render
from coffer_cli.errors import CliError
from coffer_cli.options import confirm
from coffer_common import exits
from coffer_common.api import Removed, ResourceView
from coffer_common.resources import Kind


def path(kind: Kind, name: str, *rest: str) -> str:
    """``/resources/KIND/NAME/...``."""
    return "/".join(["/resources", kind, client.segment(name), *rest])


def say(done: ResourceView, what: str, *, as_json: bool, quiet: bool) -> None:
    """One sentence about what was done to it."""
    render.emit(as_json, done, lambda: render.line(f"✓ {done.name} {what}"), quiet=quiet)


def switch(kind: Kind, name: str, verb: str, what: str, *, as_json: bool, quiet: bool) -> None:
    """``enable`` or ``disable``, said in the words of ``what``."""
    done = client.connect().send("POST", path(kind, name, verb), ResourceView)
    say(done, what, as_json=as_json, quiet=quiet)


def remove(kind: Kind, name: str, question: str, *, yes: bool, as_json: bool, quiet: bool) -> None:
    """Removes it once the ``question`` is answered; nobody is asked about what is not there."""
    daemon = client.connect()
    if not yes:
        _must_exist(daemon, kind, name)
    confirm(question, yes)
    done = daemon.send("DELETE", path(kind, name), Removed)
    render.emit(as_json, done, lambda: render.line(f"✓ {name} is removed"), quiet=quiet)


def _must_exist(daemon: client.Client, kind: Kind, name: str) -> None:
    """What is there and cannot be read may go."""
    try:
        daemon.get(path(kind, name), ResourceView)
    except CliError as error:
        if error.code == exits.NOT_FOUND:
            raise
