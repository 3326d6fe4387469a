"""What a server's configuration must pass before it is written: schema, secrets in the open, references, PATH.

Owns the order of the checks and their refusals; each comes before anything is stored. Never starts a server.
"""

import os
from typing import Any, Final

import msgspec

from coffer_common import plaintext, serverfaults
from coffer_common.resources import HttpServer, McpServerConfig, OAuthClient, StdioServer
from coffer_supervisor.credentials import CredentialError, MissingCredential, references
from coffer_supervisor.management.errors import ApiError, from_credential, invalid
from coffer_supervisor.management.request import Request
from coffer_supervisor.store.resources import checked_config

_DEFAULT_PATH: Final = os.defpath
_SWITCHABLE: Final = frozenset({"idle_seconds", "total_seconds"})


async def checked_server(request: Request, name: str, config: Any, *, allow_plaintext: bool) -> McpServerConfig:
    """The typed configuration of the server ``name``, ready to be stored. Raises ApiError or the store's Invalid."""
    typed: McpServerConfig = checked_config("mcp_server", name, config)
    if not allow_plaintext:
        findings = plaintext.find(name, typed)
        if findings:
            raise invalid("looks_like_secret", *plaintext.refusal(findings))
        _refuse_unfilled(name, typed)
    _refuse_unusable(name, typed)
    _refuse_two_ways_in(name, typed)
    await _check_references(request, name, typed)
    if isinstance(typed, StdioServer) and not typed.path:
        path = request.caller_path or os.environ.get("PATH", _DEFAULT_PATH)
        typed = msgspec.structs.replace(typed, path=path)
    return typed


def _refuse_unfilled(name: str, config: McpServerConfig) -> None:
    """Arguments are not filled in, since every process can read them: a reference there would be sent as it stands."""
    if not isinstance(config, StdioServer):
        return
    for number, word in enumerate(config.args, 1):
        found = [reference for reference in references(word) if reference]
        if found:
            message = f"argument {number} of the server {name} holds ${{{found[0]}}}, but arguments are not filled in"
            hint = (
                f"Give it to the server in its environment: --env 'VARIABLE=${{{found[0]}}}'\n"
                "(or --allow-plaintext, which passes the argument on as it stands)"
            )
            raise invalid("reference_in_argument", message, hint)


def _refuse_unusable(name: str, config: McpServerConfig) -> None:
    """What the system, or HTTP, does not allow: better said now than at each try."""
    faults = serverfaults.faults(config)
    if faults:
        message = f"the configuration of the server {name} is not valid ({'; '.join(faults)})"
        raise invalid("invalid_config", message, "Nothing has been stored.")


def _refuse_two_ways_in(name: str, config: McpServerConfig) -> None:
    """Where a header says who is there, no login is ever made."""
    if not isinstance(config, HttpServer) or config.oauth == OAuthClient():
        return
    if any(header.lower() == "authorization" for header in config.headers):
        message = f"the server {name} has an Authorization header, and with it no login"
        raise invalid("two_ways_in", message, "Give either that header or --oauth-... options, not both.")


async def _check_references(request: Request, name: str, config: McpServerConfig) -> None:
    """Every ``${reference}`` must be one that is stored, and the keychain that holds it must answer."""
    if isinstance(config, HttpServer):
        templates = [(f"the header {key}", value) for key, value in config.headers.items()]
        templates += [("the URL", config.url), ("the OAuth client secret", config.oauth.client_secret)]
    else:
        templates = [(f"the environment variable {key}", value) for key, value in config.env.items()]
    for where, template in templates:
        if "${" not in template:
            continue
        try:
            await request.management.vault.resolve(template, where=f"{where} of the server {name}")
        except MissingCredential as error:
            raise from_credential(error) from error
        except CredentialError as error:
            refusal = from_credential(error)
            wanted = ", ".join(f"${{{reference}}}" for reference in references(template))
            message = f"{where} of the server {name} needs {wanted}, but {refusal.message}"
            raise ApiError(refusal.status, refusal.code, message, refusal.hint) from error


def patched(before: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """A server's configuration after a merge patch; null for a call limit switches that limit off."""
    config: dict[str, Any] = merged(before, patch)
    limits = patch.get("limits")
    if isinstance(limits, dict):
        for key in _SWITCHABLE & limits.keys():
            if limits[key] is None:
                config["limits"][key] = None
    if config.get("oauth") == {}:
        del config["oauth"]  # nothing is left of it
    return config


def merged(before: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7386): members of ``patch`` replace, null removes, objects merge."""
    if not isinstance(patch, dict):
        return patch
    result = dict(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result
