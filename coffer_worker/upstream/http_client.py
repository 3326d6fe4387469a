"""The HTTP client of one upstream: beside the pool of sockets the only room that knows httpx2.

Owns TLS, proxies, cookies, redirects within one origin, timeouts, and what a failure of the
transport says about whether anything was sent. Never reads a body, never knows what a message means, never shows a
URL beyond its origin.
"""

import contextlib
import os
import socket
import ssl
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import httpx2

from coffer_common import version, weburl
from coffer_common.resources import Limits
from coffer_worker.core import http_rules
from coffer_worker.upstream.http_pool import OneOrigin

Response = httpx2.Response

CONNECT_SECONDS: Final = 10.0
_KEEPALIVE_SECONDS: Final = 30.0
_SPARE_CONNECTIONS: Final = 8
# A peer that is gone without a word is noticed by the system, however long a stream is silent.
_PROBE_AFTER, _PROBE_EVERY, _PROBES = 30, 10, 6


class Trouble(Exception):
    """An exchange failed below HTTP. ``unsent``: not one byte of the request left; ``refused``: the port is closed,
    so that trying again soon may help. The text is for people and shows no secret."""

    def __init__(self, text: str, *, unsent: bool, refused: bool = False) -> None:
        super().__init__(text)
        self.text, self.unsent, self.refused = text, unsent, refused


class BadConfig(Exception):
    """The URL or the headers cannot be used; the text says which, never their values."""


@dataclass(frozen=True, slots=True)
class Place:
    """An upstream's URL, and its configured headers with secrets filled in."""

    url: str
    headers: Mapping[str, str]

    @property
    def shown(self) -> str:
        """What of the URL may be shown."""
        return http_rules.origin(self.url)


class Auth(Protocol):
    """The login to an upstream."""

    why: str

    async def token(self) -> str:
        """The token for the next request, or nothing. Raises Trouble."""

    async def instead(self, used: str, challenge: str) -> str:
        """After a 401: another token to try, or nothing. Raises Trouble."""

    def wants_more(self, challenge: str) -> bool:
        """After a 403: whether the login is good, but not for this."""


def _socket_options() -> list[tuple[int, int, int]]:
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
    for name, value in (("TCP_KEEPIDLE", _PROBE_AFTER), ("TCP_KEEPINTVL", _PROBE_EVERY), ("TCP_KEEPCNT", _PROBES)):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for a URL; never one for this machine."""
    if http_rules.is_loopback(url):
        return None
    parts = httpx2.URL(url)
    proxies = urllib.request.getproxies_environment()
    if urllib.request.proxy_bypass(parts.netloc.decode("ascii", "replace"), proxies):
        return None
    found = proxies.get(parts.scheme) or proxies.get("all")
    return found if found is None or "://" in found else f"http://{found}"


class House:
    """What all connections to one upstream share: the pool of sockets. Made once in a worker's life."""

    def __init__(self, url: str, headers: Mapping[str, str], limits: Limits) -> None:
        """Raises BadConfig."""
        if fault := weburl.fault(url):
            raise BadConfig(f"its URL is not valid: {fault}")
        try:
            self.place = Place(url, http_rules.configured(headers))
            parsed = httpx2.URL(url)
        except httpx2.InvalidURL:
            raise BadConfig("its URL is not valid") from None
        except ValueError as error:
            raise BadConfig(str(error)) from None
        proxy = proxy_for(url)
        most = limits.in_flight + 3 * limits.max_connections + _SPARE_CONNECTIONS
        self.transport: httpx2.AsyncBaseTransport
        try:
            # Loading the certificates takes time and memory that plain HTTP needs not spend.
            trust = _trust() if parsed.scheme == "https" else None
            if proxy is None:
                self.transport = OneOrigin(
                    parsed, trust, most=most, idle_seconds=_KEEPALIVE_SECONDS, options=_socket_options()
                )
            else:
                self.transport = httpx2.AsyncHTTPTransport(
                    verify=trust or _trust(),
                    trust_env=False,
                    limits=httpx2.Limits(max_connections=most, keepalive_expiry=_KEEPALIVE_SECONDS),
                    proxy=proxy,
                )
        except (ValueError, ImportError, OSError) as error:
            raise BadConfig(f"the proxy or the certificates of the environment cannot be used: {error}") from None

    def client(self, auth: Auth | None = None) -> "Client":
        """A client with cookies of its own, on the shared pool."""
        return Client(self.place, self.transport, auth)

    async def close(self) -> None:
        """End all connections."""
        with contextlib.suppress(Exception):
            await self.transport.aclose()


def _trust() -> ssl.SSLContext:
    """The system's certificates, or those that ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` name."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file or folder:
        return ssl.create_default_context(cafile=file or None, capath=folder or None)
    return httpx2.create_ssl_context()


class Client:
    """Exchanges with one upstream, for one connection of the protocol."""

    def __init__(self, place: Place, transport: httpx2.AsyncBaseTransport, auth: Auth | None = None) -> None:
        self.place = place
        self.auth = auth
        # It is never closed: that would close the pool, which is the others' too.
        self._client = httpx2.AsyncClient(
            transport=transport,
            trust_env=False,
            follow_redirects=False,
            headers={**_DEFAULTS, **place.headers},
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
        )
        self._url = httpx2.URL(place.url)

    @contextlib.asynccontextmanager
    async def exchange(
        self,
        method: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        url: str | None = None,
        begun: Callable[[], None] | None = None,
    ) -> AsyncIterator[Response]:
        """The response of one request, its body yet to be read; redirects within the origin are followed.

        ``begun`` is called when the request goes out. Raises Trouble, from reading the body too.
        """
        target: httpx2.URL = self._url if url is None else httpx2.URL(url)
        token = "" if self.auth is None else await self.auth.token()
        with _told(self.place.shown):
            for _ in range(http_rules.MAX_REDIRECTS + 1):
                build = partial(self._client.build_request, method, target, content=body)
                response, token = await self._authorized(build, headers, token, begun)
                following = http_rules.redirected(
                    str(target), response.status_code, response.headers.get("location"), method
                )
                if following is None:
                    break
                await response.aclose()
                target = httpx2.URL(following)
            try:
                yield response
            finally:
                await response.aclose()

    async def _authorized(
        self,
        build: Callable[..., httpx2.Request],
        headers: Mapping[str, str],
        token: str,
        begun: Callable[[], None] | None,
    ) -> tuple[Response, str]:
        """The response, and the token that it was sent with: another one where the first was refused. Each attempt is
        built anew, for it carries the cookies that the one before has brought."""
        rest = 1 if token else 2  # what was stored may be void by now, and is renewed then
        while True:
            request = build(headers={**headers, "authorization": f"Bearer {token}"} if token else headers)
            if begun is not None:
                begun()
            response = await self._client.send(request, stream=True)
            if response.status_code != 401 or not rest or not (another := await self._another(response, token)):
                return response, token
            # Refused before it was executed: once more, with another token.
            token, rest = another, rest - 1

    async def _another(self, response: Response, used: str) -> str:
        """Another token than the one that was refused; its response is closed where there is one. Raises Trouble."""
        if self.auth is None:
            return ""
        found, kept = "", False
        try:
            found = await self.auth.instead(used, response.headers.get("www-authenticate", ""))
            kept = not found
        finally:
            if not kept:
                await response.aclose()
        return found

    async def chunks(self, response: Response) -> AsyncIterator[bytes]:
        """The body of a response, piece by piece. Raises Trouble."""
        with _told(self.place.shown):
            async for chunk in response.aiter_bytes():
                yield chunk


_DEFAULTS: Final = {"user-agent": f"coffer/{version.VERSION}", "accept-encoding": "identity", "accept": "*/*"}


@contextlib.contextmanager
def _told(shown: str) -> Any:
    """Turn failures of the library into Trouble. Their texts are not passed on where they can hold a header."""
    try:
        yield
    except httpx2.ConnectTimeout:
        raise Trouble(f"{shown} did not accept a connection within {CONNECT_SECONDS:g} s", unsent=True) from None
    except httpx2.PoolTimeout:
        raise Trouble(f"no connection to {shown} was free", unsent=True) from None
    except httpx2.ConnectError as error:
        raise _not_connected(shown, error) from None
    except httpx2.ProxyError as error:
        raise Trouble(f"the proxy did not connect to {shown}: {error}", unsent=True) from None
    except (httpx2.UnsupportedProtocol, httpx2.InvalidURL, httpx2.LocalProtocolError) as error:
        raise Trouble(f"the request to {shown} cannot be made: {type(error).__name__}", unsent=True) from None
    except httpx2.RemoteProtocolError as error:
        raise Trouble(f"{shown} broke off the exchange: {error}", unsent=False) from None
    except httpx2.DecodingError:
        raise Trouble(f"{shown} sent a body that cannot be decoded", unsent=False) from None
    except (httpx2.TransportError, httpx2.StreamError) as error:
        what = "reset the connection" if isinstance(error, httpx2.NetworkError) else type(error).__name__
        raise Trouble(f"{shown} {what}", unsent=False) from None


def _not_connected(shown: str, error: httpx2.ConnectError) -> Trouble:
    """Why no connection came about, by what lies beneath."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Trouble(f"the certificate of {shown} is not trusted: {cause.verify_message}", unsent=True)
        if isinstance(cause, ssl.SSLError):
            return Trouble(f"no TLS connection to {shown}: {cause.reason or cause}", unsent=True)
        if isinstance(cause, socket.gaierror):
            return Trouble(f"the name of {shown} cannot be resolved: {cause.strerror}", unsent=True)
        if isinstance(cause, ConnectionRefusedError):
            return Trouble(f"{shown} refused the connection", unsent=True, refused=True)
        cause = cause.__cause__ or cause.__context__
    refused = "All connection attempts failed" in str(error)
    what = "refused the connection" if refused else f"cannot be reached: {error}"
    return Trouble(f"{shown} {what}", unsent=True, refused=refused)


# ---- authorization servers

OUTSIDE_SECONDS: Final = 10.0
_OUTSIDE_BYTES: Final = 1024 * 1024


async def send_outside(request: httpx2.Request, upstream: str) -> Response:
    """One exchange with an authorization server that ``upstream`` names, its body read. Redirects are not followed.
    Raises Trouble: also for an address without TLS, unless it is the upstream's own or on this machine as that is."""
    url = str(request.url)
    near = http_rules.is_loopback(upstream) and http_rules.is_loopback(url)
    shown = http_rules.origin(url)
    if not (request.url.scheme == "https" or (request.url.scheme == "http" and (near or _same(url, upstream)))):
        raise Trouble(f"the authorization server at {shown} is not used: it has no TLS", unsent=True)
    verify = _trust() if request.url.scheme == "https" else False
    transport = httpx2.AsyncHTTPTransport(verify=verify, trust_env=False, proxy=proxy_for(url))
    async with httpx2.AsyncClient(
        transport=transport, trust_env=False, follow_redirects=False, timeout=OUTSIDE_SECONDS
    ) as client:
        with _told(shown):
            request.headers.setdefault("user-agent", _DEFAULTS["user-agent"])
            response = await client.send(request, stream=True)
            held = bytearray()
            async for chunk in response.aiter_bytes():
                held += chunk
                if len(held) > _OUTSIDE_BYTES:
                    raise Trouble(f"{shown} sent more than {_OUTSIDE_BYTES} bytes", unsent=False)
    plain = [(name, value) for name, value in response.headers.items() if name not in _OF_THE_BODY]
    return Response(response.status_code, headers=plain, content=bytes(held), request=request)


_OF_THE_BODY: Final = ("content-encoding", "content-length", "transfer-encoding")


def _same(url: str, upstream: str) -> bool:
    return http_rules.same_origin(url, upstream)


async def outside(
    method: str, url: str, upstream: str, *, headers: Mapping[str, str], form: Mapping[str, str]
) -> tuple[int, bytes]:
    """The same for a form: status and body. Raises Trouble."""
    try:
        request = httpx2.Request(method, url, headers=dict(headers), data=dict(form))
    except httpx2.InvalidURL:
        raise Trouble("the authorization server's address is not valid", unsent=True) from None
    response = await send_outside(request, upstream)
    return response.status_code, response.content
