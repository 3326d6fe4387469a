"""What a login at an authorization server brought, and what follows from the answers of its token endpoint.

Owns the stored form of a grant, the request that renews it, and telling a refusal for good from a trouble that passes.
No I/O and no clock. Source: RFC 6749, sections 5 and 6; RFC 8707; MCP 2025-11-25, Authorization.
"""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import quote

import msgspec

from coffer_common.resources import OAuthClient

NOBODY: Final = OAuthClient()
"""Nobody registered Coffer: it does that itself."""

_BASIC: Final = "client_secret_basic"
_POST: Final = "client_secret_post"
_ENDED: Final = "it was revoked, has run out, or a crash cut its last renewal short"
_PASSING: Final = frozenset({"temporarily_unavailable", "server_error", "slow_down"})
_SCOPE: Final = re.compile(r'(?<![\w-])scope=(?:"([^"]*)"|([^\s,]+))')
_SHARE_OF_LIFE: Final = 0.1
_MOST_EARLY: Final = 10.0


class Grant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``url`` is the upstream it was given for: no other ever sees it. ``client`` is the registration, as JSON;
    ``preset``: there is none, a person gave the client id; ``issuer``: the authorization server it is for.
    ``expires_at`` wall-clock seconds, None where nobody said. Without ``access`` it is a registration alone."""

    url: str
    token_endpoint: str = ""
    client_id: str = ""
    client_secret: str = ""
    auth_method: str = ""
    client: str = ""
    redirect_uri: str = ""
    resource: str = ""
    scope: str = ""
    access: str = ""
    refresh: str = ""
    expires_at: float | None = None
    preset: bool = False
    issuer: str = ""

    def secrets(self) -> list[str]:
        """What of it must never be shown."""
        return [one for one in (self.access, self.refresh, self.client_secret) if one]


class _Answer(msgspec.Struct):
    access_token: str
    token_type: str = "Bearer"
    refresh_token: str | None = None
    expires_in: float | str | None = None
    scope: str | None = None


class _Error(msgspec.Struct):
    error: str = ""


@dataclass(frozen=True, slots=True)
class NotRenewed:
    """``refused``: only a new login helps; ``unknown``: and only a new registration; ``passing``: the same may go well
    later. ``text`` names no secret."""

    kind: Literal["refused", "unknown", "passing"]
    text: str


def load(stored: str, url: str, client: OAuthClient = NOBODY) -> Grant | None:
    """The grant in a stored text; None where there is none, or one for another address or another client id than
    the one that a person gave. Its secret is what ``client`` says now."""
    try:
        grant = msgspec.json.decode(stored, type=Grant)
    except msgspec.MsgspecError:
        return None
    if grant.url != url or grant.preset != bool(client.client_id):
        return None
    if not grant.preset:
        return grant
    issuer = client.issuer.rstrip("/") or grant.issuer.rstrip("/")
    same = grant.client_id == client.client_id and grant.issuer.rstrip("/") == issuer
    return msgspec.structs.replace(grant, client_secret=client.client_secret) if same else None


def dump(grant: Grant) -> str:
    """The text to store. A secret that a person gave has its place elsewhere."""
    kept = msgspec.structs.replace(grant, client_secret="") if grant.preset else grant
    return msgspec.json.encode(kept).decode()


def secret_method(supported: Sequence[str] | None) -> str:
    """How a client with a secret shows it, by what the authorization server's metadata says; where that says nothing,
    the way that each must take (RFC 8414, section 2; RFC 6749, section 2.3.1)."""
    if supported is not None and _BASIC not in supported and _POST in supported:
        return _POST
    return _BASIC


def stale(grant: Grant, now: float) -> bool:
    """Whether its access token has run out, or is about to."""
    return grant.expires_at is not None and now >= grant.expires_at


def expiry(expires_in: float | None, now: float) -> float | None:
    """When a token that lives ``expires_in`` seconds is to be renewed: a little before its end."""
    if expires_in is None:
        return None
    return now + expires_in - min(_MOST_EARLY, expires_in * _SHARE_OF_LIFE)


def beyond(grant: Grant, challenge: str) -> bool:
    """Whether a 403's challenge wants scopes that the login does not have: if not, another login brings no more.
    Source: RFC 6750, section 3.1."""
    if "insufficient_scope" not in challenge:
        return False
    named = _SCOPE.search(challenge)
    return named is None or not set((named.group(1) or named.group(2)).split()) <= set(grant.scope.split())


def without_tokens(grant: Grant, *, registered: bool = True) -> Grant:
    """What is left when the login is over: the registration, if the authorization server knows it still."""
    left = msgspec.structs.replace(grant, access="", refresh="", expires_at=None)
    return left if registered else msgspec.structs.replace(left, client="")


def renewal(grant: Grant) -> tuple[dict[str, str], dict[str, str]]:
    """Headers and form fields of the request that renews it."""
    form = {"grant_type": "refresh_token", "refresh_token": grant.refresh, "client_id": grant.client_id}
    headers = {"accept": "application/json"}
    if grant.resource:
        form["resource"] = grant.resource
    if grant.client_secret and grant.auth_method == _BASIC:
        pair = f"{quote(grant.client_id, safe='')}:{quote(grant.client_secret, safe='')}"
        headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    elif grant.client_secret:
        form["client_secret"] = grant.client_secret
    return headers, form


def renewed(grant: Grant, status: int, body: bytes, now: float) -> Grant | NotRenewed:
    """What a token endpoint's answer makes of a grant."""
    if status == 200:
        try:
            answer = msgspec.json.decode(body, type=_Answer)
            lives = None if answer.expires_in is None else float(answer.expires_in)
        except (msgspec.MsgspecError, ValueError):
            return NotRenewed("passing", "the authorization server answered with no token")
        return msgspec.structs.replace(
            grant,
            access=answer.access_token,
            refresh=answer.refresh_token or grant.refresh,
            expires_at=expiry(lives, now),
            scope=answer.scope or grant.scope,
        )
    try:
        code = msgspec.json.decode(body, type=_Error).error
    except msgspec.MsgspecError:
        code = ""
    shown = f" ({code})" if code.isascii() and code.replace("_", "").isalnum() else ""
    if status in (400, 401) and code == "invalid_client":
        if grant.preset:
            return NotRenewed("passing", f"the authorization server does not take its client id and secret{shown}")
        return NotRenewed("unknown", f"the authorization server does not know Coffer any more{shown}")
    if status in (400, 401, 403) and code and code not in _PASSING:
        return NotRenewed("refused", f"the authorization server renews its login no more{shown}: {_ENDED}")
    return NotRenewed("passing", f"the authorization server answered HTTP {status}{shown}")
