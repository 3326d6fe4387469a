"""Handlers of ``/credentials/...``: a secret goes in, its metadata comes out; the secret only where that is audited."""

from http import HTTPStatus
from typing import Final

import msgspec

from coffer_common import clock
from coffer_common.api import (
    CredentialStore,
    CredentialView,
    FileChosen,
    Removed,
    RevealedCredential,
    SetCredential,
)
from coffer_common.names import SERVER_NAME_RULE, is_server_name
from coffer_common.resources import CredentialConfig
from coffer_supervisor.credentials import CredentialError
from coffer_supervisor.logins import reference
from coffer_supervisor.management.errors import from_credential, invalid, missing
from coffer_supervisor.management.request import Answer, Management, Request
from coffer_supervisor.management.resources import changed, credential_users, remove_credential, renew_users
from coffer_supervisor.store import NotFound, Resource, StoreError

_PROBE: Final = "coffer"  # reserved: no credential has this name, so asking for it finds nothing


async def put(request: Request) -> Answer:
    """Stores a secret (201), or replaces it (200); servers that use it start again with the new one."""
    ref, management = request.params["ref"], request.management
    secret = request.decode(SetCredential).value
    if not is_server_name(ref):
        raise invalid("invalid_name", f"{ref!r} cannot name a credential", f"A name is {SERVER_NAME_RULE}.")
    status = HTTPStatus.OK if await _known(management, ref) else HTTPStatus.CREATED
    try:
        await management.vault.set(ref, secret)
    except CredentialError as error:
        raise from_credential(error) from error
    config = CredentialConfig(
        backend=management.vault.backend, updated_at=clock.now_rfc3339_millis(), length=len(secret)
    )
    store = management.store.resources
    if status is HTTPStatus.OK:
        resource = await store.update("credential", ref, config=config, actor=request.actor)
    else:
        try:
            resource = await store.create("credential", ref, config, actor=request.actor)
        except StoreError:
            await management.vault.delete(ref)  # a secret without a row could never be found again
            raise
    await changed(management, "credential", ref)
    await renew_users(management, ref)
    return status, await _shown(request, resource)


async def get(request: Request) -> Answer:
    """When it was stored, where, and who uses it."""
    return await _shown(request, await request.management.store.resources.get("credential", request.params["ref"]))


async def reveal(request: Request) -> Answer:
    """The secret itself. The audit row is written first: without it nothing is shown."""
    ref, management = request.params["ref"], request.management
    await management.store.resources.get("credential", ref)
    await management.store.audit.add("credential.revealed", kind="credential", name=ref, actor=request.actor)
    try:
        secret = await management.vault.get(ref)
    except CredentialError as error:
        raise from_credential(error) from error
    if secret is None:
        hint = f"Store it again: coffer credential set {ref}"
        raise missing(f"secret for {ref} in the {management.vault.backend}, though it was stored once", hint)
    return RevealedCredential(ref=ref, value=secret)


async def delete(request: Request) -> Answer:
    """Removes secret and metadata; refused while a server refers to it, unless ``?force=1``."""
    ref = request.params["ref"]
    return Removed(removed=f"credential:{ref}", broken=await remove_credential(request, ref))


async def store(request: Request) -> Answer:
    """Where secrets are kept, and whether that answers."""
    vault = request.management.vault
    path = str(vault.folder) if vault.backend == "file" else None
    try:
        await vault.get(_PROBE)
    except CredentialError as error:
        return CredentialStore(backend=vault.backend, path=path, usable=False, message=error.message, hint=error.hint)
    return CredentialStore(backend=vault.backend, path=path)


async def use_file(request: Request) -> Answer:
    """Keeps secrets in Coffer's own encrypted file from now on; those that the keychain gives are moved there."""
    management = request.management
    resources = await management.store.resources.list("credential")
    names = [resource.name for resource in resources]
    # What logins brought moves along; where it does not, the server says by itself that it needs a login.
    logins = [reference(server.name) for server in await management.store.resources.list("mcp_server")]
    try:
        moved, left = await management.vault.use_file([*names, *logins])
    except CredentialError as error:
        raise from_credential(error) from error
    moved, left = ([name for name in found if name in names] for found in (moved, left))
    details = {"backend": "file", "moved": moved, "left": left}
    await management.store.audit.add("credential.backend_chosen", actor=request.actor, details=details)
    for resource in resources:
        if resource.name in moved:
            config = msgspec.structs.replace(resource.config, backend="file")
            await management.store.resources.update("credential", resource.name, config=config, actor=request.actor)
    return FileChosen(backend="file", path=str(management.vault.folder), moved=moved, left=left)


async def _known(management: Management, ref: str) -> bool:
    """Whether the store has it. Asked before the keychain is: a store that fails leaves the old secret as it was."""
    try:
        await management.store.resources.get("credential", ref)
    except NotFound:
        return False
    return True


async def _shown(request: Request, resource: Resource) -> msgspec.Struct:
    config: CredentialConfig = resource.config
    return CredentialView(
        ref=resource.name,
        backend=config.backend,
        updated_at=config.updated_at,
        length=config.length,
        used_by=await credential_users(request.management, resource.name),
    )
