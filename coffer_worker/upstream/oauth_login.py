"""One login at an upstream's authorization server, by the SDK's provider.

Owns driving that provider's flow, request by request, apart from the traffic: its lock is held for as long as a person
takes. Discovery, registration, PKCE, ``state`` and ``iss`` are the provider's; that a client id which a person gave is
shown to one authorization server only is ours. The SDK's client is loaded here and nowhere else, in a worker that needs
it. Source: MCP 2025-11-25 and 2026-07-28, Authorization.
"""

import asyncio
import importlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import httpx2

from coffer_common import frames, weburl
from coffer_common.resources import OAuthClient
from coffer_common.version import VERSION
from coffer_worker.core import grant as grants
from coffer_worker.core import http_rules, registration
from coffer_worker.core.grant import Grant
from coffer_worker.upstream.http_client import Trouble, send_outside

_PROBE: Final = b'{"jsonrpc":"2.0","id":0,"method":"ping"}'
_SHOWN: Final = 300


class LoginFailed(Exception):
    """Why there is no login, for people."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A login to the upstream at ``url``. ``before``: what is known from an earlier one. ``challenge``: the status and
    ``WWW-Authenticate`` with which the upstream asked for it. ``show`` is given the address for the browser;
    ``brought`` waits for what comes of it. ``client``: how a person registered Coffer there, if one did. ``server`` is
    the upstream's name."""

    url: str
    frame: frames.Login
    before: Grant | None
    challenge: tuple[int, str] | None
    show: Callable[[str], None]
    brought: Callable[[], Awaitable[frames.LoginCode]]
    client: OAuthClient = grants.NOBODY
    server: str = "NAME"


async def login(wish: Wish) -> Grant:
    """Log in. Raises LoginFailed."""
    published = wish.frame.metadata_url
    if published and not registration.publishable(published):
        raise LoginFailed(
            "COFFER_CLIENT_METADATA_URL names no HTTPS address with a path; mend it, and restart the daemon"
        )
    try:
        auth, shared = await asyncio.to_thread(_load)
        return await _Flow(wish, auth, shared).run()
    except LoginFailed:
        raise
    except Trouble as trouble:
        raise LoginFailed(trouble.text) from None
    except ValueError as error:  # pydantic's, and unusable addresses
        raise LoginFailed(f"the authorization server's answer cannot be used: {_short(error)}") from None


def _load() -> tuple[Any, Any]:
    """The SDK's client; it takes a while."""
    # Its traces may quote answers of the authorization server.
    quiet = logging.getLogger("mcp")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    return importlib.import_module("mcp.client.auth"), importlib.import_module("mcp.shared.auth")


class _Storage:
    """The provider's storage, for this one login: what comes of it is kept afterwards, whole."""

    def __init__(self, tokens: Any, client: Any) -> None:
        self.tokens, self.client = tokens, client

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return self.client

    async def set_client_info(self, client_info: Any) -> None:
        self.client = client_info


class _Flow:
    def __init__(self, wish: Wish, auth: Any, shared: Any) -> None:
        self._wish, self._auth, self._shared = wish, auth, shared
        self._storage = _Storage(self._tokens(), self._client())
        self._provider = auth.OAuthClientProvider(
            wish.url,
            shared.OAuthClientMetadata(
                **registration.description([wish.frame.redirect_uri]),
                software_version=VERSION,
                scope=wish.client.scope or None,
            ),
            self._storage,
            self._show,
            self._brought,
            wish.frame.metadata_url or None,
        )

    def _client(self) -> Any:
        """Whom a person registered; else the earlier registration, where it still names the place to which the browser
        comes back."""
        before, frame, given = self._wish.before, self._wish.frame, self._wish.client
        if given.client_id:
            return self._shared.OAuthClientInformationFull(
                client_id=given.client_id,
                client_secret=given.client_secret or None,
                redirect_uris=[frame.redirect_uri],
                issuer=given.issuer or (before.issuer if before is not None else "") or None,
            )
        if before is None or not before.client or before.redirect_uri != frame.redirect_uri:
            return None
        return self._shared.OAuthClientInformationFull.model_validate_json(before.client)

    def _tokens(self) -> Any:
        """Only where the present login is to be widened: the scopes it has are asked for again."""
        before, challenge = self._wish.before, self._wish.challenge
        if before is None or not before.access or challenge is None or challenge[0] != 403:
            return None
        return self._shared.OAuthToken(access_token=before.access, scope=before.scope or None)

    async def run(self) -> Grant:
        """The whole flow."""
        request = httpx2.Request("POST", self._wish.url, content=_PROBE, headers={"content-type": "application/json"})
        flow = self._provider.async_auth_flow(request)
        try:
            outgoing, asked = await anext(flow), False
            while outgoing is not request or not asked:
                self._check_issuer()
                if outgoing is request:
                    asked, response = True, await self._challenged(request)
                else:
                    response = await send_outside(outgoing, self._wish.url)
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            pass
        except self._auth.OAuthRegistrationError as error:
            raise LoginFailed(f"{_short(error)}. {self._by_hand()}") from None
        except self._auth.OAuthFlowError as error:
            raise LoginFailed(_short(error)) from None
        finally:
            await flow.aclose()
        return self._grant()

    def _by_hand(self) -> str:
        return (
            "Where a provider registers nobody by itself, register Coffer there, with the redirect URL "
            f"{self._wish.frame.redirect_uri}, and give what you get: "
            f"coffer mcp update {self._wish.server} --oauth-client-id ID"
        )

    def _check_issuer(self) -> None:
        """The provider forgets a client that belongs to another authorization server, and would go on without it."""
        context, server = self._provider.context, self._wish.server
        if self._wish.client.client_id and context.client_info is None:
            raise LoginFailed(
                f"the server sends logins to {http_rules.origin(self._issuer())}, which is not the "
                f"authorization server that its client id is for. If that is right: coffer mcp logout {server}, then "
                f"coffer mcp update {server} --oauth-issuer URL"
            )

    async def _challenged(self, request: httpx2.Request) -> httpx2.Response:
        """The answer by which the upstream asks for a login: the one it gave, or one that it is made to give."""
        known = self._wish.challenge
        if known is not None:
            return self._answered(request, known[0], known[1])
        response = await send_outside(request, self._wish.url)
        status, challenge = response.status_code, response.headers.get("www-authenticate", "")
        if status != 401 and not (status == 403 and "insufficient_scope" in challenge):
            raise LoginFailed(f"the upstream asks for no login (it answered HTTP {status})")
        return self._answered(request, status, challenge)

    def _answered(self, request: httpx2.Request, status: int, challenge: str) -> httpx2.Response:
        """The scopes that a person gave come before those that the upstream names, unless it wants more than those."""
        scope = self._wish.client.scope
        if scope and status == 401:
            challenge = f'Bearer scope="{scope}"' + (f", {challenge}" if challenge else "")
        headers = {"www-authenticate": challenge} if challenge else {}
        return httpx2.Response(status, headers=headers, request=request)

    async def _show(self, url: str) -> None:
        if weburl.browsable(url) is None:
            raise LoginFailed("the authorization server wants the browser sent to what is no web address")
        self._check_pkce()
        self._settle_method()
        self._wish.show(url)

    def _check_pkce(self) -> None:
        """Where its metadata says how it takes the challenge, it must be as it is made. It may be silent: some of the
        largest providers are."""
        metadata = self._provider.context.oauth_metadata
        methods = None if metadata is None else metadata.code_challenge_methods_supported
        if methods is not None and "S256" not in methods:
            raise LoginFailed("its authorization server does not protect logins as MCP asks for (PKCE with S256)")

    def _settle_method(self) -> None:
        """How a secret that a person gave is shown: the authorization server says so, and has been asked by now."""
        given, context = self._wish.client, self._provider.context
        if not given.client_id:
            return
        if given.client_secret and context.oauth_metadata is None and context.auth_server_url:
            at = http_rules.origin(context.auth_server_url)
            raise LoginFailed(f"the authorization server at {at} does not say where it takes a client's secret")
        metadata = context.oauth_metadata
        methods = None if metadata is None else metadata.token_endpoint_auth_methods_supported
        shown = grants.secret_method(methods) if given.client_secret else "none"
        context.client_info.token_endpoint_auth_method = shown

    def _issuer(self) -> str:
        """The authorization server that this login is at."""
        context = self._provider.context
        if context.oauth_metadata is not None:
            return str(context.oauth_metadata.issuer)
        return str(context.auth_server_url or _base(self._wish.url))

    async def _brought(self) -> Any:
        found = await self._wish.brought()
        if found.error:
            raise LoginFailed(f"the authorization server did not allow it: {found.error[:_SHOWN]}")
        return self._auth.AuthorizationCodeResult(code=found.code, state=found.state, iss=found.issuer or None)

    def _grant(self) -> Grant:
        context, tokens, client = self._provider.context, self._storage.tokens, self._storage.client
        if tokens is None or client is None:
            raise LoginFailed("the authorization server gave no token")
        metadata = context.oauth_metadata
        endpoint = str(metadata.token_endpoint) if metadata is not None else urljoin(_base(self._wish.url), "/token")
        preset = bool(self._wish.client.client_id)
        return Grant(
            url=self._wish.url,
            token_endpoint=endpoint,
            client_id=client.client_id,
            client_secret=client.client_secret or "",
            auth_method=client.token_endpoint_auth_method or "",
            client="" if preset else client.model_dump_json(exclude_none=True),
            redirect_uri=self._wish.frame.redirect_uri,
            resource=context.get_resource_url() if context.should_include_resource_param() else "",
            scope=tokens.scope or "",
            access=tokens.access_token,
            refresh=tokens.refresh_token or "",
            expires_at=grants.expiry(tokens.expires_in, time.time()),
            preset=preset,
            issuer=self._issuer(),
        )


def _base(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _short(error: Exception) -> str:
    """The beginning of an error's text: what follows may be a page of the server's."""
    text = http_rules.excerpt(str(error).encode())
    return text[:_SHOWN] or type(error).__name__
