"""Credentials and clients. Two shapes carry a secret and say so; neither prints it."""

from coffer_common.api.resources import ResourceView
from coffer_common.api.shape import Shape


class SetCredential(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The only shape that carries a secret, inwards."""

    value: str

    def __repr__(self) -> str:
        return "SetCredential(value=***)"


class CredentialView(Shape, frozen=True, kw_only=True):
    """A reference and its metadata; never the secret. ``used_by``: the servers whose configuration names it."""

    ref: str
    backend: str
    updated_at: str
    length: int
    used_by: list[str] = []


class RevealedCredential(Shape, frozen=True, kw_only=True):
    """The only shape that carries a secret outwards; each one is in the audit log."""

    ref: str
    value: str

    def __repr__(self) -> str:
        return f"RevealedCredential(ref={self.ref!r}, value=***)"


class CredentialStore(Shape, frozen=True, kw_only=True):
    """Where secrets are kept. ``path``: the folder of Coffer's own file, where that was chosen. ``usable`` False:
    ``message`` says why, ``hint`` what to do.
    """

    backend: str
    path: str | None = None
    usable: bool = True
    message: str = ""
    hint: str = ""


class FileChosen(Shape, frozen=True, kw_only=True):
    """Secrets are in the encrypted file from now on. ``moved``: those that were taken over from the keychain;
    ``left``: those it does not give, to be stored again.
    """

    backend: str
    path: str
    moved: list[str] = []
    left: list[str] = []


class ClientToken(Shape, frozen=True, kw_only=True):
    """A client's token, shown this once: only its hash is kept."""

    client: ResourceView
    token: str

    def __repr__(self) -> str:
        return f"ClientToken(client={self.client.name!r}, token=***)"


class CreateClient(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A downstream identity. ``servers`` and ``groups``: what it may reach; None for all of them."""

    name: str
    servers: list[str] | None = None
    groups: list[str] | None = None
    description: str = ""
