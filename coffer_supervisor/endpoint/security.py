"""The door: Host and Origin (DNS rebinding), tokens, and which endpoint a path names.

Owns these checks and nothing behind them. Never logs a token or a path that holds one.
Source: MCP 2025-11-25 and 2026-07-28, Transports, security warning.
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import Final

from coffer_common import names
from coffer_supervisor.core.calls import DAEMON_PRINCIPAL, Principal, Scope

DAEMON: Final = Principal(DAEMON_PRINCIPAL, "daemon")

_LOOPBACK: Final = r"(?:localhost|127\.0\.0\.1|\[::1\])"
_ORIGIN: Final = re.compile(rf"https?://{_LOOPBACK}(?::[0-9]{{1,5}})?", re.IGNORECASE | re.ASCII)
_SCOPED: Final = re.compile(r"/(servers|groups)/([^/]+)/mcp")
_KEYED: Final = re.compile(r"/key/([^/]+)(/.+)")
_MASKED: Final = re.compile(r"/key/[^/]*")
AGGREGATE: Final = Scope("/mcp")


def host_allowed(host: str | None, port: int) -> bool:
    """Whether a Host header names this machine's loopback and our own port."""
    if host is None:
        return False
    name, colon, given = host.rpartition(":")
    return bool(colon) and given == str(port) and name.lower() in ("localhost", "127.0.0.1", "[::1]")


def origin_allowed(origin: str | None) -> bool:
    """Whether a request may come from a page of ``origin``: none, or a page of this machine."""
    return origin is None or _ORIGIN.fullmatch(origin) is not None


def split_key(path: str) -> tuple[str, str]:
    """(token, path without it) of ``/key/TOKEN/...``; an empty token for any other path."""
    match = _KEYED.fullmatch(path)
    return (match.group(1), match.group(2)) if match else ("", path)


def masked(path: str) -> str:
    """A path that may be logged, whole or not."""
    return _MASKED.sub(r"/key/***", path)


def scope_of(path: str) -> Scope | None:
    """The endpoint that a path names, or None."""
    if path == "/mcp":
        return AGGREGATE
    match = _SCOPED.fullmatch(path)
    if match is None or not names.is_server_name(match.group(2)):
        return None
    kind, name = match.groups()
    return Scope(path, server=name) if kind == "servers" else Scope(path, group=name)


def may_enter(principal: Principal, scope: Scope) -> bool:
    """Whether a principal's scope holds that endpoint (what it sees there is the router's business)."""
    if scope.server is not None:
        return principal.servers is None or scope.server in principal.servers
    if scope.group is not None:
        return principal.groups is None or scope.group in principal.groups
    return True


def presented(headers: Mapping[str, str]) -> str:
    """The token of a request's headers; empty where there is none."""
    token = headers.get("X-Coffer-Token")
    if token is not None:
        return token
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class Authenticator:
    """Tokens to principals. ``clients`` gives the SHA-256 (hex) of each client's token and who that is.

    Only hashes are compared, in constant time; the table of clients is looked up by the hash of what was shown.
    """

    def __init__(self, daemon_token: str, clients: Callable[[], Mapping[str, Principal]] = dict) -> None:
        self._clients = clients
        self._daemon = b""
        self.set_daemon_token(daemon_token)

    def set_daemon_token(self, token: str) -> None:
        """After ``rotate-token``: the old one is refused from now on."""
        self._daemon = hashlib.sha256(token.encode()).digest()

    def principal(self, token: str, *, in_path: bool = False) -> Principal | None:
        """Who shows ``token``, or None. In a path, where it may be seen, only a client's own token counts."""
        if not token:
            return None
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        if hmac.compare_digest(digest, self._daemon) and not in_path:
            return DAEMON
        return self._clients().get(digest.hex())
