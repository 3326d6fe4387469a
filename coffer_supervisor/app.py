"""The composition root: makes the rooms, connects them, serves until told to stop, and ends them in order.

Owns that order alone: what each room does is its own. Signal handlers only say that the end is wished.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Final

from coffer_common.paths import Home
from coffer_common.resources import ClientConfig, GroupConfig, Kind
from coffer_common.version import VERSION
from coffer_supervisor import leftlogs, sweep, upkeep
from coffer_supervisor.channel import Channel
from coffer_supervisor.core.calls import CLIENT_PREFIX, DAEMON_PRINCIPAL, Principal
from coffer_supervisor.core.tally import Tally
from coffer_supervisor.credentials import SERVICE, CredentialVault
from coffer_supervisor.daemon import Claimed, StartError
from coffer_supervisor.endpoint.security import Authenticator
from coffer_supervisor.endpoint.server import Endpoint
from coffer_supervisor.forks import ForkError
from coffer_supervisor.logins import Logins
from coffer_supervisor.management.http import handler
from coffer_supervisor.management.request import Management
from coffer_supervisor.pending import Calls
from coffer_supervisor.recording import Recorder
from coffer_supervisor.router import Router
from coffer_supervisor.scoping import Scoping
from coffer_supervisor.store import Store, StoreError
from coffer_supervisor.supervision import Supervision

DRAIN_SECONDS: Final = 10.0
"""How long open calls may go on after the end is wished."""
WRITE_SECONDS: Final = 0.2
WORKERS_SECONDS: Final = 6.0

_log: Final = logging.getLogger(__name__)


async def run(claimed: Claimed, ready: Callable[[], None]) -> int:
    """Serve until a signal or the management API ends it; the exit code. Raises StartError."""
    wish = _Wish()
    with wish.signals():
        try:
            async with _store(claimed.home) as store, _heart(claimed.home, store) as heart:
                await _serve(claimed, heart, wish, ready)
        except StoreError as error:
            raise StartError(f"the store cannot be used: {error}") from error
        except ForkError as error:
            raise StartError(str(error)) from error
    _log.info("coffer-daemon %s ended: %s", VERSION, wish.reason)
    return 0


class _Wish:
    """That the daemon is to end, and why."""

    def __init__(self) -> None:
        self.reason = ""
        self.made = asyncio.Event()

    def make(self, reason: str) -> None:
        """The first reason counts."""
        self.reason = self.reason or reason
        self.made.set()

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """SIGTERM, SIGINT and SIGHUP wish it."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self.make, "stopped")
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


class Heart:
    """The rooms behind the endpoint."""

    def __init__(self, home: Home, store: Store) -> None:
        self.store, self.home = store, home
        self.vault = CredentialVault(service=_service(home), folder=home.credentials)
        self.calls = Calls()
        self.channel = Channel()
        self.scoping = Scoping()
        self.tally = Tally()
        self.supervision = Supervision(store, self.vault, self.channel, self.calls, home)
        self.router = Router(
            self.calls, self.channel, self.supervision, self.scoping, Recorder(store.invocations, self.tally)
        )
        self.channel.callbacks(greeted=self.supervision.greeted, unsent=self.router.unsent)
        self.clients: dict[str, Principal] = {}
        self.cut: Callable[[str, str], None] = lambda principal_id, reason: None
        self.regrouped: Callable[[str], None] = lambda group: None

    async def learn(self) -> None:
        """Read clients and groups from the store. Raises StoreError."""
        clients: dict[str, Principal] = {}
        for resource in await self.store.resources.list("client", enabled=True):
            config: ClientConfig = resource.config
            clients[config.token_sha256] = Principal(
                f"{CLIENT_PREFIX}{resource.name}", resource.name, _scope(config.servers), _scope(config.groups)
            )
        groups: dict[str, GroupConfig] = {
            resource.name: resource.config for resource in await self.store.resources.list("group", enabled=True)
        }
        self.clients, before = clients, self.clients
        self.scoping.set_groups(groups)
        self.supervision.catalogues.invalidate()
        for digest, principal in before.items():
            if self.clients.get(digest) != principal:
                self.cut(principal.id, "the client's token or scope was changed or revoked")

    async def changed(self, kind: Kind, name: str) -> None:
        """A client, group or credential was written."""
        if kind in ("client", "group"):
            await self.learn()
        if kind == "group":
            self.regrouped(name)


@contextlib.asynccontextmanager
async def _store(home: Home) -> AsyncIterator[Store]:
    store = await Store.open(home.db, home.backups)
    store.pruned = partial(leftlogs.remove, store, home.logs)
    try:
        yield store
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def _heart(home: Home, store: Store) -> AsyncIterator[Heart]:
    """The channel is open within; afterwards no worker is left."""
    await asyncio.to_thread(sweep.sweep, home.upstream_pids)
    heart = Heart(home, store)
    heart.channel.open(home.control_ipc, home.bulk_ipc)
    try:
        await heart.learn()
        yield heart
    finally:
        await heart.supervision.stop(WORKERS_SECONDS)
        heart.channel.close()


async def _serve(claimed: Claimed, heart: Heart, wish: _Wish, ready: Callable[[], None]) -> None:
    logins = Logins(heart.supervision, heart.channel, heart.vault, claimed.info.port)
    auth = Authenticator(claimed.info.token, lambda: heart.clients)
    management = Management(
        store=heart.store,
        supervision=heart.supervision,
        router=heart.router,
        vault=heart.vault,
        claimed=claimed,
        tally=heart.tally,
        shutdown=wish.make,
        logins=logins,
        changed=heart.changed,
    )
    endpoint = Endpoint(heart.router, auth, handler(management), VERSION, claimed.info.port)
    endpoint.callback = logins.callback
    heart.cut, heart.regrouped = endpoint.cut, endpoint.notices.group_changed

    def rotated(token: str) -> None:
        auth.set_daemon_token(token)
        endpoint.cut(DAEMON_PRINCIPAL, "the daemon's token was rotated")

    claimed.on_token = rotated
    management.clients = lambda: len(endpoint.sessions) + len(endpoint.shims.connections)
    await heart.supervision.start()
    await endpoint.start(claimed.tcp, claimed.api, claimed.mcp)
    try:
        ready()
        _log.info("coffer-daemon %s is ready: port %d, pid %d", VERSION, claimed.info.port, claimed.info.pid)
        async with upkeep.watching(claimed, endpoint, heart.channel):
            await wish.made.wait()
        _log.info("leaving: %s; %d calls are open", wish.reason, len(heart.calls.table))
        await _drain(claimed.home, heart)
    finally:
        await endpoint.stop(wish.reason or "stopped")


async def _drain(home: Home, heart: Heart) -> None:
    """Take no new calls, and give those that are open some time."""
    for path in (home.mcp_sock, home.api_sock):
        path.unlink(missing_ok=True)  # newcomers find nobody here, and may start a successor
    heart.router.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            await heart.calls.drained()
    heart.router.fail_all()
    # An answer is given within the loop's turn, but its handler writes it in the turns that follow.
    await asyncio.sleep(WRITE_SECONDS)


def _service(home: Home) -> str:
    """The keychain is the user's, whichever home is served: another home's secrets are another service's."""
    usual = Home.from_env({})
    return SERVICE if home.root == usual.root else f"{SERVICE}:{home.root}"


def _scope(names: tuple[str, ...] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)
