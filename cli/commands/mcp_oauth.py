"""The ``--oauth-...`` options of ``coffer mcp add`` and ``update``: Coffer as a provider has registered it.

Owns their names, and what they make of a server's configuration. Never logs in: that is ``mcp_login``'s.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from coffer_cli.errors import usage

ClientId = Annotated[
    str | None,
    typer.Option(
        "--oauth-client-id",
        metavar="ID",
        help="Coffer's id where its provider wants it registered by hand; '' for none.",
    ),
]
ClientSecret = Annotated[
    str | None,
    typer.Option(
        "--oauth-client-secret", metavar="${REF}", help="The secret of that id, stored before; '' where it has none."
    ),
]
Scope = Annotated[
    str | None,
    typer.Option(
        "--oauth-scope", metavar="'A B'", help="What to ask for at a login, instead of what the server names."
    ),
]
Issuer = Annotated[
    str | None,
    typer.Option("--oauth-issuer", metavar="URL", help="The provider that the id is for; default: the first login's."),
]


@dataclass(frozen=True, slots=True)
class OAuthOptions:
    """What was given; None: nothing, an empty text: take it away."""

    client_id: str | None
    client_secret: str | None
    scope: str | None
    issuer: str | None

    def config(self, *, url: bool, patch: bool = False) -> dict[str, Any]:
        """The member ``oauth`` of a configuration, or of a patch of one; empty where nothing was given.

        ``url``: whether the server is known to be at a URL, or may be. Raises CliError.
        """
        given = {
            "client_id": self.client_id,
            "client_secret": self.client_secret,
            "scope": self.scope,
            "issuer": self.issuer,
        }
        found = {key: value or None for key, value in given.items() if value is not None}
        if not found:
            return {}
        if not url:
            raise usage("--oauth-... options are for servers with a --url", "a command takes --env K=V")
        if self.client_id == "":
            found |= {"client_secret": None, "issuer": None}
        return {"oauth": found if patch else {key: value for key, value in found.items() if value}}
