"""The `auth/*` scenarios: Coffer is the OAuth client of the mock, and this is the person with the browser.

It registers the mock in Coffer, uses it as a client does, and logs in whenever Coffer says that this is needed, and
only then. It judges nothing: the mock does, by what it saw.
"""

from __future__ import annotations

import asyncio
import sys
import urllib.error
import urllib.request
from typing import Any

from mcp import Client
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from tests.conformance.gateway import add_client
from tests.support.clients import LEGACY
from tests.support.daemon import ApiError, Daemon

# The document that the mocks expect Coffer to have published.
METADATA = {"COFFER_CLIENT_METADATA_URL": "https://conformance-test.local/client-metadata.json"}
# A person's patience. Scenarios allow three logins; it is Coffer that must not ask for more.
PATIENCE = 5
SETTLED = ("ready", "needs_login", "failed", "backoff")
ASKED = "coffer mcp login"


class _Stay(urllib.request.HTTPRedirectHandler):
    """A browser whose redirects are looked at first."""

    def redirect_request(self, *_: Any) -> None:
        """Follow nothing."""


def drive(url: str, wire: str, context: dict[str, Any]) -> None:
    """One scenario, against the mock at `url`."""
    daemon = Daemon(extra_env=METADATA)
    daemon.start()
    try:
        daemon.api("POST", "/credential-store/use-file")
        daemon.add_server("mock", config(daemon, url, context))
        endpoint = daemon.url(f"/key/{add_client(daemon)}/servers/mock/mcp")
        for _ in range(PATIENCE):
            state = daemon.wait_state("mock", *SETTLED, bound=30)
            wanted = state["state"] == "needs_login" or asyncio.run(use(endpoint, wire))
            if not wanted or not log_in(daemon):
                return
    finally:
        daemon.close()


def config(daemon: Daemon, url: str, context: dict[str, Any]) -> dict[str, Any]:
    """The mock as a server of Coffer's; what was registered beforehand with its secret in the store."""
    if "client_id" not in context:
        return {"transport": "http", "url": url}
    daemon.api("PUT", "/credentials/mock-secret", {"value": context["client_secret"]})
    oauth = {"client_id": context["client_id"], "client_secret": "${mock-secret}"}
    if "issuer" in context:
        oauth["issuer"] = context["issuer"]
    return {"transport": "http", "url": url, "oauth": oauth}


async def use(endpoint: str, wire: str) -> bool:
    """List and call everything; whether Coffer answered that a login is needed."""
    said: list[str] = []
    mode = "auto" if wire in MODERN_PROTOCOL_VERSIONS else LEGACY
    try:
        async with Client(endpoint, mode=mode) as client:
            for tool in (await client.list_tools()).tools:
                try:
                    await client.call_tool(tool.name, {})
                except Exception as error:
                    said += words(error)
    except Exception as error:
        said += words(error)
    for text in said:
        print(f"the client was told: {text}", file=sys.stderr)
    return any(ASKED in text for text in said)


def words(error: BaseException) -> list[str]:
    """What an error says, and each in a group of them."""
    if isinstance(error, BaseExceptionGroup):
        return [text for inner in error.exceptions for text in words(inner)]
    return [str(error) or repr(error)]


def log_in(daemon: Daemon) -> bool:
    """`coffer mcp login mock`, with a browser that says yes; whether it came to a login."""
    path = "/resources/mcp_server/mock/login"
    try:
        started = daemon.api("POST", path)
    except ApiError as error:
        print(f"no login: {error}", file=sys.stderr)
        return False
    urllib.request.urlopen(authorized(started["url"])).close()
    ended = daemon.api("GET", f"{path}/{started['login']}?wait=20")
    print(f"the login: {ended['state']} {ended['error']}", file=sys.stderr)
    return bool(ended["state"] == "done")


def authorized(url: str) -> str:
    """Where the authorization server sends the browser back to."""
    try:
        urllib.request.build_opener(_Stay).open(url).close()
    except urllib.error.HTTPError as answer:
        answer.close()
        return str(answer.headers["Location"])
    raise AssertionError("the authorization server asks for more than a visit")
