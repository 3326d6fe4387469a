"""Fills the secrets into a server's configuration, at the moment its worker is forked.

Owns which members of a configuration may hold references. The result goes to the worker over the channel and is
kept nowhere.
"""

import msgspec

from coffer_common.resources import McpServerConfig, StdioServer
from coffer_supervisor.credentials import CredentialVault


async def resolve(config: McpServerConfig, name: str, vault: CredentialVault) -> McpServerConfig:
    """``config`` with every ``${reference}`` of env, headers and URL replaced. Raises CredentialError."""
    if isinstance(config, StdioServer):
        env = {
            key: await vault.resolve(value, where=f"env {key} of server {name}") for key, value in config.env.items()
        }
        return msgspec.structs.replace(config, env=env)
    headers = {
        key: await vault.resolve(value, where=f"header {key} of server {name}") for key, value in config.headers.items()
    }
    url = await vault.resolve(config.url, where=f"the URL of server {name}")
    return msgspec.structs.replace(config, headers=headers, url=url)
