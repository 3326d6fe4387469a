"""``coffer credential ...``: secrets go to the keychain by prompt or stdin, never over the command line."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from coffer_cli import client, render
from coffer_cli.errors import usage
from coffer_cli.options import Json, Quiet, Yes, confirm
from coffer_cli.text import local_time
from coffer_common.api import (
    CredentialStore,
    CredentialView,
    FileChosen,
    Removed,
    ResourceList,
    RevealedCredential,
    SetCredential,
)

if TYPE_CHECKING:
    from coffer_cli.client import Client

_REVEAL_HELP = "Print the secret itself. The audit log says that you did."

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
Ref = Annotated[str, typer.Argument(metavar="REF", help="The credential's name, used as ${REF}.")]


@app.command("set", epilog="Example: printenv GITHUB_TOKEN | coffer credential set gh-token --stdin")
def set_(
    ref: Ref,
    stdin: Annotated[bool, typer.Option("--stdin", help="Read the secret from standard input.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Store a secret, asked for without echo. Servers that use it start again with the new one."""
    if stdin:
        secret = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    elif sys.stdin.isatty():
        secret = typer.prompt(f"secret for {ref}", hide_input=True, err=True)
    else:
        raise usage(
            "there is no terminal to ask for the secret", f"pipe it in: ... | coffer credential set {ref} --stdin"
        )
    if not secret:
        raise usage(f"the secret for {ref} is empty; nothing was stored")
    done = client.connect().send("PUT", _path(ref), CredentialView, SetCredential(value=secret))
    if as_json:
        render.data(done)
    elif not quiet:
        used = f"; {', '.join(done.used_by)} will use it" if done.used_by else f"; use it as ${{{done.ref}}}"
        render.line(f"✓ {done.ref} is stored in the {_place(done.backend)}{used}")


def list_(as_json: Json = False, quiet: Quiet = False) -> None:
    """List credentials, and say where they are kept; never the secrets."""
    daemon = client.connect()
    found = daemon.get("/resources", ResourceList, {"kind": "credential"})
    rows = [
        [one.name, _place(str(one.config.get("backend", "-"))), local_time(one.config.get("updated_at"))]
        for one in found.resources
    ]
    columns = [render.Column("REF"), render.Column("KEPT IN"), render.Column("CHANGED")]

    def human() -> None:
        render.table(columns, rows)
        _say_where(daemon)

    render.emit(as_json, found, human, quiet=quiet, names=[one.name for one in found.resources])


def _say_where(daemon: "Client") -> None:
    store = daemon.get("/credential-store", CredentialStore)
    if not store.usable:
        render.note(f"note: {store.message}\n  {store.hint}")
    elif store.path is not None:
        render.note(f"secrets are kept in the encrypted file in {store.path}")


app.command("list", epilog="Example: coffer credential list")(list_)
app.command("ls", hidden=True)(list_)


@app.command("get", epilog="Example: coffer credential get gh-token")
def get(
    ref: Ref,
    reveal: Annotated[bool, typer.Option("--reveal", help=_REVEAL_HELP)] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show when a credential was stored, where, and which servers use it."""
    daemon = client.connect()
    if reveal:
        shown = daemon.send("POST", f"{_path(ref)}/reveal", RevealedCredential)
        render.emit(as_json, shown, lambda: render.exact(shown.value))
        return
    found = daemon.get(_path(ref), CredentialView)

    def human() -> None:
        place = _place(found.backend)
        render.line(f"{found.ref}: {found.length} characters in the {place}, changed {local_time(found.updated_at)}")
        render.line(f"used by: {', '.join(found.used_by) or 'no server'}")

    render.emit(as_json, found, human, quiet=quiet, names=[found.ref])


def delete(
    ref: Ref,
    yes: Yes = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also while a server refers to it; says which fail without it.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Delete a secret for good. One that a server refers to stays, unless forced."""
    daemon = client.connect()
    found = daemon.get(_path(ref), CredentialView)
    broken = f" {', '.join(found.used_by)} will fail without it." if found.used_by and force else ""
    confirm(f"Delete the secret {ref} for good?{broken}", yes)
    done = daemon.send("DELETE", _path(ref), Removed, query={"force": 1 if force else None})
    if as_json:
        render.data(done)
    elif not quiet:
        render.line(f"✓ {ref} is deleted")
        if done.broken:
            render.note(
                f"{', '.join(done.broken)} cannot start without it; store it again (coffer credential set {ref}), "
                f"or change what refers to it (coffer mcp update {done.broken[0]})"
            )


app.command("delete", epilog="Example: coffer credential delete gh-token --yes")(delete)
app.command("rm", hidden=True)(delete)


@app.command("use-file", epilog="Example: coffer credential use-file")
def use_file(as_json: Json = False, quiet: Quiet = False) -> None:
    """Keep secrets in Coffer's own encrypted file, for machines without a keychain. It stays chosen.

    The key lies beside the file, readable by you alone: this protects copies and backups of one of the two, not from
    programs that run as you.
    """
    daemon = client.connect()
    done = daemon.send("POST", "/credential-store/use-file", FileChosen, timeout=600.0)
    if as_json:
        render.data(done)
        return
    if not quiet:
        render.line(f"✓ secrets are kept in the encrypted file in {done.path} from now on (readable by you alone)")
        if done.moved:
            render.line(f"  moved there from the keychain: {', '.join(done.moved)}")
    for ref in done.left:
        render.note(f"the keychain does not give {ref}; store it again: coffer credential set {ref}")


def _path(ref: str) -> str:
    return f"/credentials/{client.segment(ref)}"


def _place(backend: str) -> str:
    return "encrypted file" if backend == "file" else backend
