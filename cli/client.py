"""The command line's end of the management API: HTTP over the daemon's own socket, standard library only.

Owns finding the daemon (and starting it where a command needs one), requests, and turning refusals into
``CliError``. Never shows a token to anything: the socket needs none.
"""

import http.client
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from coffer_cli import state
from coffer_cli.errors import CliError
from coffer_common import discovery, exits, spawn
from coffer_common.api import ACTOR_HEADER, PATH_HEADER, PREFIX, VERSION_HEADER, ErrorBody
from coffer_common.discovery import DiscoveryError, NotRunning, Running
from coffer_common.paths import Home
from coffer_common.version import VERSION, newer

Shape = TypeVar("Shape", bound=msgspec.Struct)
REQUEST_SECONDS: Final = 60.0
_EXITS: Final = {400: exits.USAGE, 404: exits.NOT_FOUND, 409: exits.CONFLICT}


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket whose other end is checked to be this user's."""

    def __init__(self, home: Home, timeout: float) -> None:
        super().__init__("localhost")
        self._home = home
        self._seconds = timeout

    def connect(self) -> None:
        self.sock: socket.socket = discovery.connect(self._home.api_sock)
        self.sock.settimeout(self._seconds)


class Client:
    """The daemon of one home. Methods raise CliError, with the exit code that the failure deserves."""

    def __init__(self, running: Running) -> None:
        self.home = running.home
        self.info = running.info
        self._warned = False

    def get(self, path: str, shape: type[Shape], query: Mapping[str, Any] | None = None) -> Shape:
        """GET ``path`` below ``/api/v1``; members of ``query`` that are None are left out."""
        return self.send("GET", path, shape, query=query)

    def send(
        self,
        method: str,
        path: str,
        shape: type[Shape],
        body: msgspec.Struct | Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        timeout: float = REQUEST_SECONDS,
    ) -> Shape:
        """One request and its answer. ``timeout``: seconds of silence after which the daemon counts as gone."""
        kept = {key: value for key, value in (query or {}).items() if value is not None}
        target = PREFIX + path + (f"?{urlencode(kept)}" if kept else "")
        status, raw = self._exchange(method, target, b"" if body is None else msgspec.json.encode(body), timeout)
        if status >= 300:
            raise _refusal(status, raw)
        try:
            return msgspec.json.decode(raw, type=shape)
        except msgspec.DecodeError as error:
            raise CliError(
                f"coffer-daemon answered what this release ({VERSION}) does not understand: {error}",
                "restart it, so that both are of one release: coffer daemon restart",
            ) from error

    def events(self, path: str) -> Iterator[tuple[str, bytes]]:
        """The server-sent events of ``path`` as (name, data), until the daemon ends them or goes away."""
        connection = _Connection(self.home, REQUEST_SECONDS)
        try:
            connection.request("GET", PREFIX + path, headers={ACTOR_HEADER: "cli"})
            response = connection.getresponse()
            if response.status >= 300:
                raise _refusal(response.status, response.read())
            name = ""
            while line := response.readline():
                key, _, value = line.rstrip(b"\r\n").partition(b": ")
                if key == b"event":
                    name = value.decode()
                elif key == b"data":
                    yield name, value
        except (OSError, http.client.HTTPException, DiscoveryError) as error:
            raise self._broken(error) from error
        finally:
            connection.close()

    def _exchange(self, method: str, target: str, body: bytes, timeout: float) -> tuple[int, bytes]:
        connection = _Connection(self.home, timeout)
        path = os.environ.get("PATH", "")
        headers = {ACTOR_HEADER: "cli", "Content-Type": "application/json"}
        if path.isascii() and path.isprintable():
            headers[PATH_HEADER] = path
        try:
            connection.request(method, target, body=body, headers=headers)
            response = connection.getresponse()
            self._compare(response.getheader(VERSION_HEADER, ""))
            return response.status, response.read()
        except TimeoutError as error:
            raise CliError(
                f"coffer-daemon (pid {self.info.pid}) did not answer within {timeout:.0f} s",
                f"see {self.home.daemon_log}; if it hangs: coffer daemon restart",
                exits.UNREACHABLE,
            ) from error
        except (OSError, http.client.HTTPException, DiscoveryError) as error:
            raise self._broken(error) from error
        finally:
            connection.close()

    def _broken(self, error: Exception) -> CliError:
        if isinstance(error, DiscoveryError):
            return CliError(str(error), "", exits.UNREACHABLE)
        return CliError(
            f"the connection to coffer-daemon (pid {self.info.pid}) broke: {str(error) or type(error).__name__}",
            f"see {self.home.daemon_log}",
            exits.UNREACHABLE,
        )

    def _compare(self, theirs: str) -> None:
        if self._warned or not newer(VERSION, theirs):
            return
        self._warned = True
        sys.stderr.write(
            f"note: this is coffer {VERSION}, but the daemon that runs is {theirs}, which is older.\n"
            f"  bring it up to date: coffer daemon restart\n"
        )


def home() -> Home:
    """The home of this process."""
    return Home.from_env()


def connect(*, start: bool = True) -> Client:
    """The daemon, started where there is none unless ``start`` is False or ``--no-spawn`` was given."""
    allowed = start and not state.no_spawn()
    try:
        return Client(spawn.detect_or_spawn(home(), spawn=allowed, on_wait=_say))
    except NotRunning as error:
        raise CliError(str(error), "", exits.UNREACHABLE) from error
    except DiscoveryError as error:
        raise CliError(str(error), "", exits.UNREACHABLE) from error


def running() -> Client | None:
    """The daemon if one runs; never starts one."""
    try:
        found = discovery.detect(home())
    except DiscoveryError as error:
        raise CliError(str(error), "", exits.UNREACHABLE) from error
    return Client(found) if isinstance(found, Running) else None


def segment(text: str) -> str:
    """One part of a path, whatever characters are in it."""
    return quote(text, safe="")


def server_path(name: str, *rest: str) -> str:
    """``/resources/mcp_server/NAME/...``."""
    return "/".join(["/resources/mcp_server", segment(name), *(segment(part) for part in rest)])


def _say(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"{text} …\n")


def _refusal(status: int, raw: bytes) -> CliError:
    try:
        detail = msgspec.json.decode(raw, type=ErrorBody).error
    except msgspec.DecodeError:
        return CliError(f"coffer-daemon answered with HTTP status {status}", "see: coffer daemon logs")
    return CliError(detail.message, detail.hint, _EXITS.get(status, exits.FAILURE))
