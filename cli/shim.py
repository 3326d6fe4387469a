"""``coffer-shim``: the small program that an MCP client launches; it carries the client's stdio to the daemon.

Owns its arguments. Never imports asyncio, the SDK or the rest of the command line: it must answer within 150 ms
and stay under 20 MB. Standard output carries JSON-RPC and nothing else.
"""

import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coffer_common import exits
from coffer_common.version import VERSION

USAGE: Final = """\
usage: coffer-shim [--server NAME | --group NAME] [--no-spawn] [--version] [--help]

The command for an MCP client's configuration: speaks MCP on stdin and stdout, and carries it to the Coffer daemon,
which it starts where none runs.

  --server NAME   only this server, with nothing renamed (default: all of them)
  --group NAME    only this group
  --no-spawn      never start a daemon; exit with 3 where none runs (also: COFFER_NO_SPAWN=1)

example: claude mcp add coffer -- coffer-shim
"""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class UsageError(Exception):
    """The command line is not understood."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for. ``endpoint`` as in ``shimproto.Hello``."""

    endpoint: str = "/mcp"
    spawn: bool = True
    show: str = ""


def parse(argv: Sequence[str], env: Mapping[str, str]) -> Options:
    """The options. Raises UsageError. (argparse would cost a tenth of the start.)"""
    endpoint, spawn = "", env.get("COFFER_NO_SPAWN", "") in ("", "0")
    words = list(argv)
    while words:
        word, glued, value = words.pop(0).partition("=")
        if word in ("-h", "--help") and not glued:
            return Options(show=USAGE)
        if word in ("-V", "--version") and not glued:
            return Options(show=f"coffer-shim {VERSION}\n")
        if word == "--no-spawn" and not glued:
            spawn = False
        elif word in ("--server", "--group"):
            if not glued:
                value = words.pop(0) if words else ""
            if not _NAME.fullmatch(value):
                raise UsageError(f"{word} takes the name of a {word[2:]}, not {value!r}")
            if endpoint:
                raise UsageError("--server and --group: name one of them, once")
            endpoint = f"/{word[2:]}s/{value}/mcp"
        else:
            raise UsageError(f"unknown argument {word!r}")
    return Options(endpoint or "/mcp", spawn)


def main() -> None:
    """Entry point; ends the process with one of ``coffer_common.exits``."""
    try:
        options = parse(sys.argv[1:], os.environ)
    except UsageError as error:
        sys.stderr.write(f"coffer-shim: {error}\n{USAGE}")
        raise SystemExit(exits.USAGE) from None
    if options.show:
        sys.stdout.write(options.show)
        return
    if sys.platform == "win32":
        sys.stderr.write("coffer-shim: Coffer runs on Linux and macOS; on Windows use it inside WSL.\n")
        raise SystemExit(exits.FAILURE)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing here needs tidying up, least of all a traceback
    raise SystemExit(_run(options))


def _run(options: Options) -> int:
    # Not before the platform is known to have what they import.
    from coffer_cli.shim_attach import Attacher
    from coffer_cli.shim_core import Core
    from coffer_cli.shim_loop import Loop
    from coffer_common import shimproto
    from coffer_common.paths import Home

    hello = shimproto.Hello(shimproto.SHIM_PROTOCOL, VERSION, options.endpoint, _cwd(), os.getpid())
    attacher = Attacher(Home.from_env(), hello, may_spawn=options.spawn, say=_say)
    loop = Loop(Core(spawn=options.spawn), attacher, stdin=0, stdout=1, stderr=2)
    return loop.run()


def _say(text: str) -> None:
    os.write(2, f"coffer-shim: {text}\n".encode())


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # its directory has been removed


if __name__ == "__main__":
    main()
