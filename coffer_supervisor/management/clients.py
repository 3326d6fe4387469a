"""Handlers of ``/clients``: identities get their tokens here. All else about them goes through ``/resources``.

Owns making tokens and the checks of scopes and groups. A token is answered once and kept only as its hash.
"""

import hashlib
import secrets
from collections.abc import Collection
from http import HTTPStatus
from typing import Final

import msgspec

from coffer_common.api import ClientToken, CreateClient
from coffer_common.resources import ClientConfig, GroupConfig, Kind
from coffer_supervisor.management import views
from coffer_supervisor.management.errors import invalid
from coffer_supervisor.management.request import Answer, Management, Request
from coffer_supervisor.store.resources import checked_config

_TOKEN_BYTES: Final = 24
"""32 URL-safe characters."""


async def create(request: Request) -> Answer:
    """A new client (201) and its token, which no later answer shows."""
    wish, management = request.decode(CreateClient), request.management
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    wanted = {"token_sha256": hashed(token), "servers": wish.servers, "groups": wish.groups}
    config: ClientConfig = checked_config("client", wish.name, wanted)
    await check_members(management, "client", wish.name, config)
    resource = await management.store.resources.create(
        "client", wish.name, config, description=wish.description, actor=request.actor
    )
    await management.changed("client", wish.name)
    return HTTPStatus.CREATED, ClientToken(client=views.resource_view(resource), token=token)


async def rotate(request: Request) -> Answer:
    """A new token for a client; the old one is worth nothing from now on."""
    management, name = request.management, request.name
    store = management.store.resources
    before = await store.get("client", name)
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    config = msgspec.structs.replace(before.config, token_sha256=hashed(token))
    resource = await store.update("client", name, config=config, actor=request.actor)
    await management.changed("client", name)
    return ClientToken(client=views.resource_view(resource), token=token)


def hashed(token: str) -> str:
    """A token as it is kept: SHA-256 in hex. It is random, so it needs no salt."""
    return hashlib.sha256(token.encode()).hexdigest()


async def check_members(management: Management, kind: Kind, name: str, config: ClientConfig | GroupConfig) -> None:
    """Refuses a scope or a group that names what is not there: a slip of the pen would leave it empty."""
    servers = {resource.name for resource in await management.store.resources.list("mcp_server")}
    if isinstance(config, GroupConfig):
        _known(kind, name, "server", [*config.servers, *(one.server for one in config.capabilities)], servers)
        return
    groups = {resource.name for resource in await management.store.resources.list("group")}
    _known(kind, name, "server", config.servers or (), servers)
    _known(kind, name, "group", config.groups or (), groups)


def _known(kind: Kind, name: str, noun: str, named: Collection[str], there: Collection[str]) -> None:
    unknown = [one for one in named if one not in there]
    if unknown:
        verb = "mcp" if noun == "server" else "group"
        message = f"the {kind} {name} names the {noun} {unknown[0]}, which there is not; nothing was stored"
        raise invalid(f"unknown_{noun}", message, f"See what there is: coffer {verb} list")
