"""What a login at an authorization server brought, and what follows from the answers of its token endpoint.

Owns the stored form of a grant, the request that renews it, and telling a refusal for good from a trouble that passes.
No I/O and no clock. Source: RFC 6749, sections 5 and 6; RFC 8707; MCP 2025-11-25, Authorization.
"""

import base64
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import quote

import msgspec

_PASSING: Final = frozenset({"temporarily_unavailable", "server_error", "slow_down"})
_SHARE_OF_LIFE: Final = 0.1
_MOST_EARLY: Final = 10.0


class Grant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``url`` is the upstream it was given for: no other ever sees it. ``client`` is the registration, as JSON;
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
    """``refused``: only a new login helps; ``passing``: the same may go well later. ``text`` names no secret."""

    kind: Literal["refused", "passing"]
    text: str


def load(stored: str, url: str) -> Grant | None:
    """The grant in a stored text; None where there is none, or one for another address."""
    try:
        grant = msgspec.json.decode(stored, type=Grant)
    except msgspec.MsgspecError:
        return None
    return grant if grant.url == url else None


def dump(grant: Grant) -> str:
    """The text to store."""
    return msgspec.json.encode(grant).decode()


def stale(grant: Grant, now: float) -> bool:
    """Whether its access token has run out, or is about to."""
    return grant.expires_at is not None and now >= grant.expires_at


def expiry(expires_in: float | None, now: float) -> float | None:
    """When a token that lives ``expires_in`` seconds is to be renewed: a little before its end."""
    if expires_in is None:
        return None
    return now + expires_in - min(_MOST_EARLY, expires_in * _SHARE_OF_LIFE)


def without_tokens(grant: Grant) -> Grant:
    """What is left when the login is over: the registration."""
    return msgspec.structs.replace(grant, access="", refresh="", expires_at=None)


def renewal(grant: Grant) -> tuple[dict[str, str], dict[str, str]]:
    """Headers and form fields of the request that renews it."""
    form = {"grant_type": "refresh_token", "refresh_token": grant.refresh, "client_id": grant.client_id}
    headers = {"accept": "application/json"}
    if grant.resource:
        form["resource"] = grant.resource
    if grant.client_secret and grant.auth_method == "client_secret_basic":
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
    if status in (400, 401, 403) and code and code not in _PASSING:
        return NotRenewed("refused", f"the authorization server ended the login{shown}")
    return NotRenewed("passing", f"the authorization server answered HTTP {status}{shown}")
