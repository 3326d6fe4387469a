"""``coffer credential ...``: secrets go to the keychain by prompt or stdin, never over the command line."""

import sys
from typing import Annotated

import typer

from coffer_cli import client, render
from coffer_cli.errors import usage
from coffer_cli.options import Json, Quiet, Yes, confirm
from coffer_cli.text import local_time
from coffer_common.api import CredentialView, Removed, ResourceList, SetCredential

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
    done = client.connect().send(
        "PUT", f"/credentials/{client.segment(ref)}", CredentialView, SetCredential(value=secret)
    )
    if as_json:
        render.data(done)
    elif not quiet:
        used = f"; {', '.join(done.used_by)} will use it" if done.used_by else f"; use it as ${{{done.ref}}}"
        render.line(f"✓ {done.ref} is stored in the {done.backend}{used}")


def list_(as_json: Json = False, quiet: Quiet = False) -> None:
    """List credentials; never the secrets."""
    found = client.connect().get("/resources", ResourceList, {"kind": "credential"})
    if quiet and not as_json:
        for one in found.resources:
            render.line(one.name)
        return
    rows = [
        [one.name, str(one.config.get("backend", "-")), local_time(one.config.get("updated_at"))]
        for one in found.resources
    ]
    columns = [render.Column("REF"), render.Column("KEPT IN"), render.Column("CHANGED")]
    render.emit(as_json, found, lambda: render.table(columns, rows))


app.command("list", epilog="Example: coffer credential list")(list_)
app.command("ls", hidden=True)(list_)


@app.command("get", epilog="Example: coffer credential get gh-token")
def get(ref: Ref, as_json: Json = False) -> None:
    """Show when a credential was stored, where, and which servers use it."""
    found = client.connect().get(f"/credentials/{client.segment(ref)}", CredentialView)

    def human() -> None:
        render.line(
            f"{found.ref}: {found.length} characters in the {found.backend}, changed {local_time(found.updated_at)}"
        )
        render.line(f"used by: {', '.join(found.used_by) or 'no server'}")

    render.emit(as_json, found, human)


def delete(
    ref: Ref,
    yes: Yes = False,
    force: Annotated[bool, typer.Option("--force", help="Also while a server refers to it.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Delete a secret for good."""
    daemon = client.connect()
    path = f"/credentials/{client.segment(ref)}"
    daemon.get(path, CredentialView)
    confirm(f"Delete the secret {ref} for good?", yes)
    done = daemon.send("DELETE", path, Removed, query={"force": 1 if force else None})
    if as_json:
        render.data(done)
    elif not quiet:
        render.line(f"✓ {ref} is deleted")


app.command("delete", epilog="Example: coffer credential delete gh-token --yes")(delete)
app.command("rm", hidden=True)(delete)
