"""``coffer mcp login|logout``: servers that want a person to log in at their authorization server."""

import webbrowser
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coffer_cli import client, render
from coffer_cli.commands.mcp_wait import report, settle
from coffer_cli.errors import CliError
from coffer_cli.options import Json, Quiet, Server
from coffer_cli.text import safe
from coffer_common import exits, weburl
from coffer_common.api import LoggedOut, LoginStarted, LoginStatus, ResourceView, TestServer

if TYPE_CHECKING:
    from coffer_cli.client import Client

_BEGIN_SECONDS: Final = 90.0
_WAIT_SECONDS: Final = 20

NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Print the address instead of opening a browser.")]


def add_to(app: typer.Typer) -> None:
    """The commands stand beside those of ``mcp``."""
    app.command("login", epilog="Example: coffer mcp login linear")(login)
    app.command("logout", epilog="Example: coffer mcp logout linear")(logout)


def login(name: Server, no_browser: NoBrowser = False, as_json: Json = False, quiet: Quiet = False) -> None:
    """Log in to a server at a URL: your browser opens, and Coffer keeps what it brings in your keychain."""
    daemon = client.connect()
    started = daemon.send("POST", client.server_path(name, "login"), LoginStarted, timeout=_BEGIN_SECONDS)
    _send_person(started, no_browser)
    _wait(daemon, name, started.login)
    found = daemon.send("POST", client.server_path(name, "test"), ResourceView, TestServer(timeout=0.0))
    found, waited = settle(daemon, found, quiet=quiet or as_json)
    report(found, waited, as_json=as_json, quiet=quiet, verb="logged in to", daemon=daemon)


def _send_person(started: LoginStarted, no_browser: bool) -> None:
    host = weburl.browsable(started.url)
    if host is None:
        message = "the address to log in at is no web address, and is not opened"
        raise CliError(message, "ask whoever runs that server", exits.FAILURE)
    if not no_browser and webbrowser.open(started.url):
        render.note(f"your browser asks you to log in at {safe(host)}; waiting for it …")
        return
    render.note(f"log in at {safe(host)}, in a browser on this machine:")
    render.note(f"  {safe(started.url)}")


def _wait(daemon: "Client", name: str, login_id: str) -> None:
    path = client.server_path(name, "login", login_id)
    while True:
        status = daemon.get(path, LoginStatus, {"wait": _WAIT_SECONDS})
        if status.state == "failed":
            raise CliError(f"no login to {name}: {status.error}", f"try again: coffer mcp login {name}", exits.FAILURE)
        if status.state == "done":
            return


def logout(name: Server, as_json: Json = False, quiet: Quiet = False) -> None:
    """Forget a login. The server starts again without it."""
    done = client.connect().send("POST", client.server_path(name, "logout"), LoggedOut)
    if as_json:
        render.data(done)
    elif not quiet:
        said = "is logged out; its access can be ended for good on its own site" if done.forgotten else "had no login"
        render.line(f"✓ {name} {said}")
