"""Handlers of ``/credentials/{ref}``: a secret goes in, its metadata comes out. Never answers with a secret."""

from http import HTTPStatus

import msgspec

from coffer_common import clock
from coffer_common.api import CredentialView, Removed, SetCredential
from coffer_common.resources import CredentialConfig
from coffer_supervisor.credentials import CredentialError
from coffer_supervisor.management.errors import from_credential
from coffer_supervisor.management.request import Answer, Request
from coffer_supervisor.management.resources import changed, credential_users, remove_credential
from coffer_supervisor.store import NotFound, Resource, StoreError


async def put(request: Request) -> Answer:
    """Stores a secret (201), or replaces it (200); servers that use it start again with the new one."""
    ref, management = request.params["ref"], request.management
    secret = request.decode(SetCredential).value
    try:
        await management.vault.set(ref, secret)
    except CredentialError as error:
        raise from_credential(error) from error
    config = CredentialConfig(backend="keychain", updated_at=clock.now_rfc3339_millis(), length=len(secret))
    store = management.store.resources
    try:
        resource, status = await store.update("credential", ref, config=config, actor=request.actor), HTTPStatus.OK
    except NotFound:
        try:
            resource = await store.create("credential", ref, config, actor=request.actor)
        except StoreError:
            await management.vault.delete(ref)  # a secret without a row could never be found again
            raise
        status = HTTPStatus.CREATED
    await changed(management, "credential", ref)
    for server in await credential_users(management, ref):
        view = management.supervision.view(server)
        if view is not None and view.state != "disabled":
            await management.supervision.restart(server)
    return status, await _shown(request, resource)


async def get(request: Request) -> Answer:
    """When it was stored, where, and who uses it."""
    return await _shown(request, await request.management.store.resources.get("credential", request.params["ref"]))


async def delete(request: Request) -> Answer:
    """Removes secret and metadata; refused while a server refers to it, unless ``?force=1``."""
    ref = request.params["ref"]
    await remove_credential(request, ref)
    return Removed(removed=f"credential:{ref}")


async def _shown(request: Request, resource: Resource) -> msgspec.Struct:
    config: CredentialConfig = resource.config
    return CredentialView(
        ref=resource.name,
        backend=config.backend,
        updated_at=config.updated_at,
        length=config.length,
        used_by=await credential_users(request.management, resource.name),
    )
