"""The two ways to an upstream, as its configuration says: a process of ours, or a URL.

Owns what belongs to the way and not to a connection: the spawner and its processes, or the pool of sockets; and which
secrets its log must not show. Never negotiates, never decides about restarts.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from coffer_common import errors
from coffer_common.resources import HttpServer, McpServerConfig, StdioServer
from coffer_worker.core import http_rules
from coffer_worker.core.headers import Mirrors
from coffer_worker.log import UpstreamLog, secrets_in
from coffer_worker.process.environ import SpawnError
from coffer_worker.process.spawn import Launch, Spawner
from coffer_worker.upstream.connection import Connection
from coffer_worker.upstream.http import HttpPipe
from coffer_worker.upstream.http_client import Auth, BadConfig, House
from coffer_worker.upstream.negotiate import StartFailed
from coffer_worker.upstream.stdio import StdioPipe

_STOP_SECONDS = 1.0


class Way(Protocol):
    """How connections to one upstream begin."""

    over_http: bool

    @property
    def pids(self) -> tuple[int, ...]:
        """The upstream's processes that are ours."""

    async def begin(self, connection: Connection, project: str) -> None:
        """Give a connection its pipe; ``project``: the directory to start in. Raises StartFailed."""

    async def stop(self, reason: str) -> None:
        """End what is left."""


def way(
    server: str,
    config: McpServerConfig,
    records: Path,
    log: UpstreamLog,
    *,
    mirrors: Mapping[str, Mirrors],
    new_id: Callable[[], int],
    auth: Auth | None = None,
) -> Way:
    """The way that ``config`` asks for."""
    if isinstance(config, HttpServer):
        return HttpWay(server, config, log, mirrors=mirrors, new_id=new_id, auth=auth)
    return StdioWay(server, config, records, log)


def secrets_of(config: McpServerConfig) -> list[str]:
    """What the upstream's log must never show."""
    if isinstance(config, HttpServer):
        named = {"OAuth client secret": config.oauth.client_secret}
        return secrets_in({**config.headers, **http_rules.url_values(config.url), **named})
    return secrets_in(config.env)


def authorized(config: HttpServer) -> bool:
    """Whether the configuration says itself who is there, so that no login is made."""
    return any(name.lower() == "authorization" for name in config.headers)


class StdioWay:
    """A process of its own for each connection."""

    over_http = False

    def __init__(self, server: str, config: StdioServer, records: Path, log: UpstreamLog) -> None:
        self._server = server
        self._log = log
        self._line_bytes = config.limits.line_bytes
        self._launch = Launch(config.command, config.args, config.env, config.path, config.cwd)
        self._spawner = Spawner(server, records)
        self._spawner.adopt_orphans()

    @property
    def pids(self) -> tuple[int, ...]:
        """The upstream's processes."""
        return tuple(self._spawner.pids)

    async def begin(self, connection: Connection, project: str) -> None:
        """Start a process, in ``project`` if that is a directory one can enter. Raises StartFailed."""
        launch, connection.line_bytes = self._launch, self._line_bytes
        if project and os.path.isdir(project) and os.access(project, os.X_OK):
            launch = replace(launch, project=project)
        elif project:
            self._log.note(f"started in its default directory: the client's, {project}, is none that can be entered")
        try:
            connection.pipe = await StdioPipe.start(
                self._server, self._spawner, launch, connection, log=self._log, line_bytes=self._line_bytes
            )
        except SpawnError as error:
            text = f"Upstream {self._server!r} cannot be started: {self._log.mask(str(error))}"
            raise StartFailed(errors.START_FAILED, text) from None

    async def stop(self, reason: str) -> None:
        """End all processes."""
        await self._spawner.stop_all(_STOP_SECONDS, reason)


class HttpWay:
    """Exchanges with a URL, on one pool of sockets for all connections."""

    over_http = True
    pids: tuple[int, ...] = ()

    def __init__(
        self,
        server: str,
        config: HttpServer,
        log: UpstreamLog,
        *,
        mirrors: Mapping[str, Mirrors],
        new_id: Callable[[], int],
        auth: Auth | None = None,
    ) -> None:
        self._server = server
        self._auth = auth
        self._config = config
        self._log = log
        self._mirrors = mirrors
        self._new_id = new_id
        self._house: House | None = None

    async def begin(self, connection: Connection, project: str) -> None:
        """Nothing is sent yet. Raises StartFailed for a URL or headers that cannot be used."""
        config = self._config
        connection.line_bytes = config.limits.line_bytes
        try:
            self._house = self._house or House(config.url, config.headers, config.limits)
        except BadConfig as error:
            text = f"Upstream {self._server!r} cannot be reached: {self._log.mask(str(error))}"
            raise StartFailed(errors.START_FAILED, text, verdict=False) from None
        connection.pipe = HttpPipe(
            self._server,
            self._house.client(self._auth),
            connection,
            log=self._log,
            line_bytes=config.limits.line_bytes,
            mirrors=self._mirrors,
            new_id=self._new_id,
        )

    async def stop(self, reason: str) -> None:
        """Close all sockets."""
        if self._house is not None:
            await self._house.close()
