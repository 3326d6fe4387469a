"""Fills the secrets into a server's configuration, at the moment its worker is forked.

Owns which members of a configuration may hold references. The result goes to the worker over the channel and is
kept nowhere.
"""

import re
from dataclasses import dataclass, field
from typing import Final

import msgspec

from coffer_common.resources import McpServerConfig, StdioServer
from coffer_supervisor.credentials import CredentialError, CredentialVault

_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""What no header and no URL can carry; a tab may stand in a header."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A configuration with its secrets in place, and those by themselves."""

    config: McpServerConfig = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)


async def resolve(config: McpServerConfig, name: str, vault: CredentialVault) -> Filled:
    """``config`` with every ``${reference}`` of env, headers, URL and OAuth client replaced. Raises CredentialError."""
    used: dict[str, None] = {}

    async def filled(template: str, where: str, *, header: bool) -> str:
        where = f"{where} of server {name}"
        text, secrets = await vault.fill(template, where=where)
        if secrets and (_CONTROL.search(text) if header else "\0" in text):
            what = "line breaks or control characters" if header else "a zero byte"
            raise CredentialError("unfit_secret", f"the secret for {where} holds {what}, which cannot stand there", "")
        used.update(dict.fromkeys(secrets))
        return text

    if isinstance(config, StdioServer):
        env = {key: await filled(value, f"env {key}", header=False) for key, value in config.env.items()}
        return Filled(msgspec.structs.replace(config, env=env), tuple(used))
    headers = {key: await filled(value, f"header {key}", header=True) for key, value in config.headers.items()}
    url = await filled(config.url, "the URL", header=True)
    secret = await filled(config.oauth.client_secret, "the OAuth client secret", header=True)
    oauth = msgspec.structs.replace(config.oauth, client_secret=secret)
    return Filled(msgspec.structs.replace(config, headers=headers, url=url, oauth=oauth), tuple(used))
