"""Handlers of ``/resources``: create, read, update, delete, on and off, for every kind through one path.

A server's changes are brought to life by supervision after they are written; what fails there shows in its state,
since a server that cannot be reached is registered all the same.
"""

from datetime import timedelta
from http import HTTPStatus
from typing import Any

import msgspec

from coffer_common import clock
from coffer_common.api import CreateResource, PatchResource, Removed, ResourceList, ServerStatus, Unreadable
from coffer_common.resources import KINDS, Kind
from coffer_supervisor.credentials import CredentialError, references
from coffer_supervisor.management import register, views
from coffer_supervisor.management.clients import check_members
from coffer_supervisor.management.errors import ApiError, from_credential, invalid
from coffer_supervisor.management.queries import FORCE_WORDS
from coffer_supervisor.management.request import Answer, Management, Request
from coffer_supervisor.store import Invalid, Resource, StoreError
from coffer_supervisor.store.resources import checked_config


async def list_all(request: Request) -> Answer:
    """All resources, or those of ``?kind=``; servers with their status."""
    wished = request.query.get("kind")
    kind: Kind | None = next((known for known in KINDS if known == wished), None)
    if wished is not None and kind is None:
        raise invalid("unknown_kind", f"there is no kind of resource named {wished!r}", f"Kinds: {', '.join(KINDS)}.")
    management = request.management
    found = await management.store.resources.list(kind)
    calls = await _calls_24h(management) if any(resource.kind == "mcp_server" for resource in found) else None
    shown = [views.resource_view(one, _status(management, one, calls)) for one in found]
    broken = await management.store.resources.unreadable()
    return ResourceList(
        resources=shown,
        unreadable=[
            Unreadable(kind=one.kind, name=one.name, reason=one.reason) for one in broken if kind in (None, one.kind)
        ],
    )


async def get(request: Request) -> Answer:
    """One resource."""
    return await _shown(request.management, await request.management.store.resources.get(request.kind, request.name))


async def create(request: Request) -> Answer:
    """Stores a new one (201). A server is started at once, unless it is switched off."""
    wish = request.decode(CreateResource)
    config: Any = wish.config
    if wish.kind == "credential":
        raise invalid("use_credentials", "a credential is stored with its secret", "PUT /api/v1/credentials/{ref}")
    if wish.kind == "client" and "token_sha256" not in config:
        raise invalid("use_clients", "a client is made with its token", "POST /api/v1/clients")
    if wish.kind == "mcp_server":
        config = await register.checked_server(request, wish.name, config, allow_plaintext=wish.allow_plaintext)
    elif wish.kind in ("client", "group"):
        config = checked_config(wish.kind, wish.name, config)
        await check_members(request.management, wish.kind, wish.name, config)
    resource = await request.management.store.resources.create(
        wish.kind, wish.name, config, description=wish.description, enabled=wish.enabled, actor=request.actor
    )
    await changed(request.management, wish.kind, wish.name)
    return HTTPStatus.CREATED, await _shown(request.management, resource)


async def patch(request: Request) -> Answer:
    """Changes configuration (a merge patch), description or the switch. Connections restart after their calls."""
    wish = request.decode(PatchResource)
    kind, name, store = request.kind, request.name, request.management.store.resources
    before = await store.get(kind, name)
    config: Any = None
    if wish.config is not None:
        if kind == "credential":
            raise invalid("use_credentials", "a credential is changed with its secret", "PUT /api/v1/credentials/{ref}")
        config = register.merged(msgspec.to_builtins(before.config), wish.config)
        if kind == "mcp_server":
            config = register.patched(msgspec.to_builtins(before.config), wish.config)
            if "command" in wish.config and "path" not in wish.config and request.caller_path:
                config.pop("path", None)  # the new command is looked up where its giver finds it
            config = await register.checked_server(request, name, config, allow_plaintext=wish.allow_plaintext)
        elif kind in ("client", "group"):
            if "token_sha256" in wish.config:
                raise invalid("use_rotate", "a client's token is not chosen", "POST /api/v1/clients/{name}/rotate")
            config = checked_config(kind, name, config)
            await check_members(request.management, kind, name, config)
    resource = await store.update(kind, name, config=config, description=wish.description, actor=request.actor)
    if wish.enabled is not None:
        resource = await _switched(request, wish.enabled)
    await changed(request.management, kind, name)
    return await _shown(request.management, resource)


async def delete(request: Request) -> Answer:
    """Removes it for good. A credential that a server refers to stays, unless ``?force=1``."""
    kind, name, management = request.kind, request.name, request.management
    _forced(request)
    if kind == "credential":
        return Removed(removed=f"{kind}:{name}", broken=await remove_credential(request, name))
    await management.store.resources.delete(kind, name, actor=request.actor)
    await changed(management, kind, name)
    if kind == "mcp_server":
        management.logins.forget_soon(name)
    return Removed(removed=f"{kind}:{name}")


async def enable(request: Request) -> Answer:
    """Switches it on."""
    resource = await _switched(request, True)
    await changed(request.management, request.kind, request.name)
    return await _shown(request.management, resource)


async def disable(request: Request) -> Answer:
    """Switches it off: a server's capabilities leave every list at once."""
    resource = await _switched(request, False)
    await changed(request.management, request.kind, request.name)
    return await _shown(request.management, resource)


async def _switched(request: Request, on: bool) -> Resource:
    store = request.management.store.resources
    switch = store.enable if on else store.disable
    return await switch(request.kind, request.name, actor=request.actor)


async def changed(management: Management, kind: Kind, name: str) -> None:
    """Brings reality to what was written."""
    if kind == "mcp_server":
        await management.supervision.apply(name)
    else:
        await management.changed(kind, name)


async def remove_credential(request: Request, name: str) -> list[str]:
    """Removes secret and row; the servers that are broken by it (``?force=1``).

    The secret first: a row without a secret is mended by removing it again, a secret without a row is lost. Only force
    forgets the row while the keychain does not answer.
    """
    management = request.management
    forced = _forced(request)
    try:
        await management.store.resources.get("credential", name)
    except Invalid:  # unreadable: all the more reason to remove it
        pass
    users = await credential_users(management, name)
    if users and not forced:
        message = f"the credential {name} is used by {', '.join(users)}"
        raise ApiError(
            HTTPStatus.CONFLICT, "in_use", message, "Change or remove those first, or use --force: they fail."
        )
    try:
        await management.vault.delete(name)
    except CredentialError as error:
        if not forced:
            raise from_credential(error) from error
    await management.store.resources.delete("credential", name, actor=request.actor)
    await changed(management, "credential", name)
    await renew_users(management, name)
    return users


def _forced(request: Request) -> bool:
    return request.word("force", FORCE_WORDS) is not None


async def renew_users(management: Management, name: str) -> None:
    """Has the servers that refer to a credential start again, with what it is now, once their calls have drained."""
    for server in await credential_users(management, name):
        management.supervision.renew(server)


async def credential_users(management: Management, name: str) -> list[str]:
    """The servers whose configuration refers to a credential."""
    servers = await management.store.resources.list("mcp_server")
    return [server.name for server in servers if name in _references(msgspec.to_builtins(server.config))]


def _references(value: Any) -> set[str]:
    if isinstance(value, str):
        return set(references(value))
    if isinstance(value, dict):
        value = list(value.values())
    return {found for item in value for found in _references(item)} if isinstance(value, list | tuple) else set()


async def _shown(management: Management, resource: Resource) -> msgspec.Struct:
    calls = await _calls_24h(management, resource.name) if resource.kind == "mcp_server" else None
    return views.resource_view(resource, _status(management, resource, calls))


def _status(management: Management, resource: Resource, calls: dict[str, int] | None) -> ServerStatus | None:
    if resource.kind != "mcp_server":
        return None
    count = None if calls is None else calls.get(resource.name, 0)
    return views.server_status(management.supervision.view(resource.name), resource, count)


async def _calls_24h(management: Management, server: str | None = None) -> dict[str, int] | None:
    """Calls by server since yesterday; None where the log cannot be read, which must not hide the servers."""
    try:
        return await management.store.invocations.counts(clock.now() - timedelta(hours=24), server=server)
    except StoreError:
        return None
