"""Handlers of a server's login: begin, wait for its end, log out."""

from http import HTTPStatus
from typing import Final

from coffer_common import weburl
from coffer_common.api import LoggedOut, LoginStarted, LoginStatus
from coffer_common.resources import HttpServer
from coffer_supervisor.credentials import CredentialError
from coffer_supervisor.logins import LoginError
from coffer_supervisor.management.errors import ApiError, from_credential, missing
from coffer_supervisor.management.request import Answer, Request
from coffer_supervisor.management.servers import running

LONGEST_WAIT: Final = 30


async def begin(request: Request) -> Answer:
    """Begins a login at the server's authorization server: the address that the person must visit."""
    if not await _at_url(request):
        message = f"only servers at a URL have logins, and {request.name} is a command that Coffer starts"
        hint = f"Give it its secret in its environment: coffer mcp update {request.name} --env 'VARIABLE=${{NAME}}'"
        raise ApiError(HTTPStatus.CONFLICT, "no_login", message, hint)
    await running(request)
    management = request.management
    try:
        login = await management.logins.begin(request.name)
    except LoginError as error:
        message = f"no login to {request.name}: {error}"
        raise ApiError(HTTPStatus.CONFLICT, "no_login", message, f"See: coffer mcp logs {request.name}") from error
    await management.store.audit.add("mcp_server.login", kind="mcp_server", name=request.name, actor=request.actor)
    return LoginStarted(login=login.id, url=login.url, host=weburl.browsable(login.url) or "")


async def wait(request: Request) -> Answer:
    """How a login is; waits at most ``?wait=`` seconds for its end."""
    login = await request.management.logins.wait(
        request.name, request.params["login"], request.number("wait", 0, least=0, most=LONGEST_WAIT)
    )
    if login is None:
        raise missing("such login", f"Begin one: coffer mcp login {request.name}")
    if not login.done:
        return LoginStatus(login=login.id, state="waiting")
    return LoginStatus(login=login.id, state="failed" if login.error else "done", error=login.error)


async def logout(request: Request) -> Answer:
    """Forgets what a login brought; the server starts again without it."""
    management = request.management
    at_url = await _at_url(request)
    try:
        forgotten = await management.logins.logout(request.name)
    except CredentialError as error:
        if at_url:
            raise from_credential(error) from error
        forgotten = False  # a command has none, whether or not there is a keychain
    await management.store.audit.add("mcp_server.logout", kind="mcp_server", name=request.name, actor=request.actor)
    return LoggedOut(server=request.name, forgotten=forgotten)


async def _at_url(request: Request) -> bool:
    """Whether the server is one that can have a login."""
    resource = await request.management.store.resources.get("mcp_server", request.name)
    return isinstance(resource.config, HttpServer)
