"""``coffer``: the command line's entry point.

Owns the tree of commands and the turning of failures into words and exit codes. Never talks to the daemon itself.
"""

import errno
import io
import os
import sys
from typing import Annotated

import typer

from coffer_cli import state
from coffer_cli.commands import (
    client,
    credential,
    daemon,
    doctor,
    group,
    import_,
    install,
    invocations,
    logs,
    mcp,
    mcp_login,
    mcp_tools,
    ps,
    restore,
    startup,
    top,
)
from coffer_cli.errors import CliError
from coffer_common import exits
from coffer_common.version import VERSION

_INTERRUPTED = 130
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

app = typer.Typer(
    name="coffer",
    help="A gateway for the Model Context Protocol: one endpoint in front of all your MCP servers.",
    epilog="Everywhere: --verbose shows the trace of an error, --no-spawn never starts the daemon.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"coffer {VERSION}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


mcp_tools.add_to(mcp.app)
mcp_login.add_to(mcp.app)
invocations.add_to(mcp.app, app)
app.add_typer(daemon.app, name="daemon", help="The daemon behind it all.")
app.add_typer(mcp.app, name="mcp", help="Your MCP servers.")
app.add_typer(credential.app, name="credential", help="Secrets that servers need, kept in your keychain.")
app.add_typer(client.app, name="client", help="Who may connect: MCP clients with tokens of their own.")
app.add_typer(group.app, name="group", help="Sets of servers and tools with an endpoint of their own.")
app.add_typer(logs.audit, name="audit", help="What was changed, when and by whom.")
app.add_typer(logs.retention, name="retention", help="How long logs are kept.")
ps.add_to(app)
top.add_to(app)
doctor.add_to(app)
daemon.add_backup_to(app)
restore.add_to(app)
import_.add_to(app)
install.add_to(app)
startup.add_to(daemon.app)


def run() -> int:
    """What the installed ``coffer`` calls. Returns or raises the exit code (``coffer_common.exits``)."""
    if sys.platform == "win32":
        sys.stderr.write("Coffer runs on Linux and macOS; on Windows use it inside WSL.\n")
        return exits.FAILURE
    _ready_output()
    try:
        try:
            app(args=state.take_flags(sys.argv[1:]))
        finally:
            sys.stdout.flush()
    except CliError as error:
        return _fail(error)
    except BrokenPipeError:
        _drop_output()  # whoever read it has seen enough
        return exits.OK
    except SystemExit as ended:
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        _drop_output()  # the same, noticed by the library of the options, which would call it a failure
        return exits.OK
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _UNWRITABLE and error.filename is None:
            _drop_output()
            return _fail(CliError(f"the output cannot be written: {error.strerror}", "send it elsewhere, or make room"))
        return _fail(
            CliError(f"coffer hit a fault of its own: {type(error).__name__}: {error}", "run it again with --verbose")
        )
    return exits.OK


def _ready_output() -> None:
    """UTF-8 whatever the locale says, so that JSON and secrets arrive as they are; nowhere, where that is closed."""
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process lives
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(encoding="utf-8")


def _drop_output() -> None:
    """What is still to be written goes nowhere: the interpreter must not complain when it flushes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: CliError) -> int:
    from coffer_cli import render

    if state.verbose():
        import traceback

        render.note("".join(traceback.format_exception(sys.exception())))
    render.error(error.message, error.hint)
    return error.code
