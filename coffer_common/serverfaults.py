"""What keeps a server, as it is configured, from ever being started or reached.

Owns that rule, which holds alike where a server is registered and where an import is planned. Never repeats a value,
which may be secret. Source: POSIX.1-2017, Base Definitions, 8.1 (environment), and ``execve`` (words end at a NUL).
"""

from collections.abc import Iterator

from coffer_common import webheaders, weburl
from coffer_common.resources import HttpServer, McpServerConfig, StdioServer

_NUL = "\x00"


def faults(config: McpServerConfig) -> list[str]:
    """Each as words that name the member at fault; none where it can be tried."""
    return list(_of_url(config) if isinstance(config, HttpServer) else _of_command(config))


def _of_url(config: HttpServer) -> Iterator[str]:
    if unreachable := weburl.fault(config.url):
        yield f"url: {unreachable}"
    yield from filter(None, (webheaders.fault(*header) for header in config.headers.items()))


def _of_command(config: StdioServer) -> Iterator[str]:
    words = {"command": config.command, "cwd": config.cwd or "", "path": config.path or ""}
    words |= {f"argument {number}": word for number, word in enumerate(config.args, 1)}
    for where, word in words.items():
        if _NUL in word:
            yield f"{where}: it holds a NUL character, at which a program would take it to end"
    for name, value in config.env.items():
        if not name:
            yield "env: a variable has no name"
        elif "=" in name or _NUL in name:
            yield f"env: the name {name!r} holds a '=' or NUL character, which no variable's name may"
        if _NUL in value:
            yield f"env: the value of {name!r} holds a NUL character, at which a program would take it to end"
