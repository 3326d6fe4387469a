"""Logins to upstreams, on the supervisor's side: the person's address, the callback, and where what they bring is kept.

Owns which logins are under way, each ``state`` that may come back once, and the frames Login, LoginUrl, LoginCode,
LoginResult, LoadSecret, StoreSecret. Never speaks OAuth, and never logs what it carries.
Source: RFC 6749, section 4.1.2; RFC 9207.
"""

import asyncio
import logging
import os
import secrets
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from coffer_common import frames, weburl
from coffer_supervisor.channel import Channel, Peer
from coffer_supervisor.credentials import CredentialError, CredentialVault
from coffer_supervisor.supervision import Supervision

METADATA_URL_VARIABLE: Final = "COFFER_CLIENT_METADATA_URL"
ADDRESS_SECONDS: Final = 60.0
RESULT_SECONDS: Final = 20.0
KEPT: Final = 64

_log: Final = logging.getLogger(__name__)


class LoginError(Exception):
    """Why no login can begin, or none came about; for people."""


@dataclass(slots=True, eq=False)
class Login:
    """One login. ``url`` once the upstream's worker named it; ``error`` is empty where it went well."""

    id: str
    server: str
    peer: Peer
    url: str = ""
    state: str = ""
    done: bool = False
    error: str = ""
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def well(self) -> bool:
        """Whether it is over, and went well."""
        return self.done and not self.error


def reference(server: str) -> str:
    """The name under which the outcome of a server's login is kept; no credential of a person's can be named so."""
    return f"{frames.LOGIN_REF}.{server}"


class Logins:
    """Registers itself with the channel. ``port`` is where the browser comes back to."""

    def __init__(self, supervision: Supervision, channel: Channel, vault: CredentialVault, port: int) -> None:
        self._supervision, self._channel, self._vault = supervision, channel, vault
        self._redirect = f"http://127.0.0.1:{port}{weburl.CALLBACK_PATH}"
        self._logins: dict[str, Login] = {}
        self._states: dict[str, Login] = {}
        self._known: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changing = asyncio.Lock()
        channel.on(frames.LoginUrl, self._address)
        channel.on(frames.LoginResult, self._result)
        channel.on(frames.LoadSecret, self._load)
        channel.on(frames.StoreSecret, self._store)

    # ---- for people

    async def begin(self, server: str) -> Login:
        """Begin a login and wait for the address to visit. Raises LoginError."""
        upstream = self._supervision.upstreams.get(server)
        if upstream is None or upstream.peer is None or upstream.life.phase != "running":
            raise LoginError(f"{server} is not running; see why: coffer mcp show {server}")
        login = Login(secrets.token_urlsafe(12), server, upstream.peer)
        while len(self._logins) >= KEPT:
            self._drop(next(iter(self._logins.values())))
        self._logins[login.id] = login
        metadata = os.environ.get(METADATA_URL_VARIABLE, "")
        self._channel.send(upstream.peer, frames.Login(login.id, self._redirect, metadata))
        await self._moved(login, ADDRESS_SECONDS)
        if login.error or not login.url:
            self._drop(login)
            raise LoginError(login.error or "its authorization server did not answer in time")
        return login

    async def wait(self, server: str, id_: str, seconds: float) -> Login | None:
        """The login once it is over, or as it is after ``seconds``; None for one that is not known."""
        login = self._logins.get(id_)
        if login is None or login.server != server:
            return None
        if not login.done:
            await self._moved(login, seconds)
        self._check(login)
        return login

    async def _moved(self, login: Login, seconds: float) -> None:
        login.moved.clear()
        try:
            async with asyncio.timeout(seconds):
                await login.moved.wait()
        except TimeoutError:
            self._check(login)

    def _check(self, login: Login) -> None:
        upstream = self._supervision.upstreams.get(login.server)
        if not login.done and (upstream is None or upstream.peer is not login.peer):
            self._end(login, "its worker ended meanwhile; begin again")

    def _end(self, login: Login, error: str) -> None:
        login.done, login.error = True, error
        self._states.pop(login.state, None)
        login.moved.set()

    def _drop(self, login: Login) -> None:
        self._logins.pop(login.id, None)
        self._states.pop(login.state, None)

    async def logout(self, server: str) -> bool:
        """Forget what a login brought; False if there was nothing. Raises CredentialError."""
        async with self._changing:
            had = await self._vault.delete(reference(server))
        if had:
            self._supervision.renew(server)
        return had

    def forget_soon(self, server: str) -> None:
        """A server is gone, and so is its login, if this daemon's worker ever asked for one."""
        if server in self._known:
            self._known.discard(server)
            self._spawn(self._forget(server))

    async def _forget(self, server: str) -> None:
        try:
            async with self._changing:
                await self._vault.delete(reference(server))
        except CredentialError as error:
            # It is bound to the address it was given for: no other server of that name is shown it.
            _log.warning("the login of '%s' stays in the keychain: %s", server, error.message)

    # ---- the browser

    async def callback(self, query: Mapping[str, str]) -> tuple[bool, str]:
        """What the browser brought; whether the login went well, and the server's name (empty: nobody waits)."""
        login = self._states.pop(query.get("state", ""), None)
        if login is None or login.done:
            return False, ""
        frame = frames.LoginCode(
            login.id,
            query.get("code", ""),
            query.get("state", ""),
            query.get("iss", ""),
            _shown(query.get("error", ""), query.get("error_description", "")),
        )
        self._channel.send(login.peer, frame)
        await self._moved(login, RESULT_SECONDS)
        return login.well, login.server

    # ---- the worker

    def _address(self, peer: Peer, frame: frames.LoginUrl, _: bytes) -> None:
        login = self._logins.get(frame.login)
        if login is None or login.peer is not peer:
            return
        states = parse_qs(urlsplit(frame.url).query).get("state", [])
        if weburl.browsable(frame.url) is None or len(states) != 1:
            self._end(login, "the authorization server's address cannot be used")
            return
        login.url, login.state = frame.url, states[0]
        self._states[login.state] = login
        login.moved.set()

    def _result(self, peer: Peer, frame: frames.LoginResult, _: bytes) -> None:
        login = self._logins.get(frame.login)
        if login is not None and login.peer is peer and not login.done:
            self._end(login, frame.error)
            _log.info("login to '%s': %s", peer.name, "done" if not frame.error else f"failed: {frame.error}")

    def _load(self, peer: Peer, frame: frames.LoadSecret, _: bytes) -> None:
        self._spawn(self._answer(peer, frame))

    def _store(self, peer: Peer, frame: frames.StoreSecret, _: bytes) -> None:
        self._spawn(self._answer(peer, frame))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, peer: Peer, asked: frames.LoadSecret | frames.StoreSecret) -> None:
        found, error, changed = "", "", False
        self._known.add(peer.name)
        try:
            if asked.ref != frames.LOGIN_REF:
                error = "an upstream has no such secret"
            elif isinstance(asked, frames.StoreSecret):
                changed = not await self._replace(reference(peer.name), asked)
            else:
                found = await self._vault.get(reference(peer.name)) or ""
        except CredentialError as failed:
            error = f"{failed.message}. {failed.hint}".rstrip()
        except Exception as failed:  # the worker must not wait in vain; of what failed its kind only, for it is secret
            error = f"Coffer itself failed in it: {type(failed).__name__}"
            _log.error("the login of '%s' was neither read nor kept: %s", peer.name, error)
        self._channel.send(peer, frames.Secret(asked.corr, found, error, changed))

    async def _replace(self, name: str, asked: frames.StoreSecret) -> bool:
        """Store it, unless something else is there than its giver knows of: a renewal that was under way must not undo
        a new login, or a logout. Raises CredentialError."""
        async with self._changing:
            if asked.over and frames.secret_digest(await self._vault.get(name) or "") != asked.over:
                return False
            await self._vault.keep(name, asked.value)
            return True


def _shown(error: str, description: str) -> str:
    text = f"{error}: {description}" if error and description else error
    return "".join(char if char.isprintable() else " " for char in text)[:300]
