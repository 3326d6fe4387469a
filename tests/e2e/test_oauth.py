"""Logins to servers at a URL, against an authorization server that the test runs: the whole house."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from coffer_common import exits
from tests.fixtures.oauth_server import OAuthServer, state_of, visit
from tests.support.clients import raw_http
from tests.support.daemon import COFFER, Daemon
from tests.support.wait import wait_for

pytestmark = [pytest.mark.e2e]


@pytest.fixture
async def server() -> AsyncIterator[OAuthServer]:
    """The authorization server and what it protects."""
    async with OAuthServer() as found:
        yield found


@pytest.fixture
async def house(daemon: Daemon, server: OAuthServer) -> Daemon:
    """A daemon that keeps secrets in its own file, with the guarded server registered."""
    code, _, err = await cli(daemon, "credential", "use-file")
    assert code == exits.OK, err
    await asyncio.to_thread(daemon.add_server, "web", server.config())
    await asyncio.to_thread(daemon.wait_state, "web", "needs_login")
    return daemon


async def cli(daemon: Daemon, *args: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    done = await asyncio.to_thread(daemon.cli, *args)
    return done.returncode, done.stdout, done.stderr


async def api(daemon: Daemon, method: str, path: str, body: Any = None) -> Any:
    """The management API."""
    return await asyncio.to_thread(daemon.api, method, path, body)


async def log_in(daemon: Daemon) -> dict[str, Any]:
    """What `coffer mcp login` does, with a browser that says yes to everything; how it ended."""
    started = await api(daemon, "POST", "/resources/mcp_server/web/login")
    await visit(started["url"])
    found: dict[str, Any] = await api(daemon, "GET", f"/resources/mcp_server/web/login/{started['login']}?wait=20")
    return found


async def call(daemon: Daemon) -> dict[str, Any]:
    """One call of the guarded tool by a client."""
    async with raw_http(daemon) as client:
        await client.initialize()
        message: dict[str, Any] = (await client.request("tools/call", {"name": "web__echo", "arguments": {}})).message
        return message


async def test_a_person_logs_in_with_one_command(house: Daemon, server: OAuthServer) -> None:
    """A newcomer's second command: the address is shown with its host, the browser's answer ends the wait."""
    refused = await call(house)
    assert refused["error"]["data"]["reason"] == "needs_login"
    assert "coffer mcp login web" in refused["error"]["message"]
    assert server.authorized == []  # a call never begins a login
    process = await asyncio.create_subprocess_exec(
        COFFER,
        *("mcp", "login", "web", "--no-browser"),
        env=house.env,
        stdin=subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    async with asyncio.timeout(30):
        said = (await process.stderr.readline()).decode()
        assert server.base.removeprefix("http://") in said
        status, page = await visit((await process.stderr.readline()).decode().strip())
        assert (status, "logged in to web" in page) == (200, True), page
        out, err = await process.communicate()
    assert process.returncode == exits.OK, (out, err)
    assert "✓ web is ready: 1 tool" in out.decode()
    assert "result" in await call(house)
    asked = server.authorized[0]
    assert asked["resource"] == server.url  # the token is for this server alone
    assert server.forms[0]["code_verifier"]
    # K02: what the login brought is nowhere but in the encrypted store.
    await asyncio.to_thread(house.stop)
    found = [
        path
        for path in sorted(house.home.rglob("*"))
        if path.is_file() and any(token.encode() in path.read_bytes() for token in server.tokens())
    ]
    assert found == []
    # The login outlives the daemon.
    await asyncio.to_thread(house.start)
    await asyncio.to_thread(house.wait_state, "web", "ready")
    assert "result" in await call(house)
    assert (len(server.authorized), server.registrations) == (1, 1)


async def test_calls_after_expiry_share_one_refresh(house: Daemon, server: OAuthServer) -> None:
    """K09: the refresh token counts once; ten calls at once after expiry cause one refresh, and none fails."""
    assert (await log_in(house))["state"] == "done"
    await asyncio.to_thread(house.wait_state, "web", "ready")
    server.expire()
    async with raw_http(house) as client:
        await client.initialize()
        answers = await asyncio.gather(
            *(client.request("tools/call", {"name": "web__echo", "arguments": {"n": n}}) for n in range(10))
        )
    assert all("result" in answer.message for answer in answers)
    assert server.refreshes == 1
    assert sorted(one["arguments"]["n"] for one in server.calls) == list(range(10))  # each was executed once


async def test_a_revoked_login_asks_for_another(house: Daemon, server: OAuthServer) -> None:
    """K10: one attempt to refresh, then the state and a readable error; a new login mends it, registered as before."""
    assert (await log_in(house))["state"] == "done"
    await asyncio.to_thread(house.wait_state, "web", "ready")
    server.revoke()
    answer = await call(house)
    assert answer["error"]["data"]["reason"] == "needs_login"
    assert "revoked" in answer["error"]["message"]
    assert "coffer mcp login web" in answer["error"]["message"]
    await asyncio.to_thread(house.wait_state, "web", "needs_login")
    assert server.refreshes == 1
    assert (await log_in(house))["state"] == "done"
    row = await asyncio.to_thread(house.wait_state, "web", "ready")
    assert row["last_error"] == ""  # what was wanted is there: it is no error any more
    assert (await api(house, "GET", "/resources/mcp_server/web"))["status"]["last_error"] == ""
    assert "result" in await call(house)
    assert server.registrations == 1


async def test_a_crash_in_the_middle_of_a_renewal_asks_for_another_login(house: Daemon, server: OAuthServer) -> None:
    """K09: the new token was handed out and never stored. What is stored is void, which the next worker finds out with
    one attempt, and says; it does not go on trying."""
    assert (await log_in(house))["state"] == "done"
    worker = (await asyncio.to_thread(house.wait_state, "web", "ready"))["worker_pid"]
    server.expire()
    server.held = asyncio.Event()
    calling = asyncio.create_task(call(house))
    async with asyncio.timeout(20):
        await server.answering.wait()
    os.kill(worker, signal.SIGKILL)
    await calling
    server.held.set()
    row = await asyncio.to_thread(house.wait_state, "web", "needs_login")
    assert "a crash cut its last renewal short" in row["last_error"]
    assert "coffer mcp login web" in row["last_error"]
    assert server.refreshes == 2
    assert (await log_in(house))["state"] == "done"
    await asyncio.to_thread(house.wait_state, "web", "ready")
    assert "result" in await call(house)


async def test_a_logout_in_the_middle_of_a_renewal_stands(house: Daemon, server: OAuthServer) -> None:
    """What comes of the renewal is stored over the login that it renewed, or not at all."""
    assert (await log_in(house))["state"] == "done"
    await asyncio.to_thread(house.wait_state, "web", "ready")
    server.expire()
    server.held = asyncio.Event()
    calling = asyncio.create_task(call(house))
    async with asyncio.timeout(20):
        await server.answering.wait()
    assert (await api(house, "POST", "/resources/mcp_server/web/logout"))["forgotten"]
    server.held.set()
    refused = (await calling)["error"]
    assert refused["data"]["reason"] == "needs_login", (refused, house.story())
    await asyncio.to_thread(house.wait_state, "web", "needs_login")
    assert not (await api(house, "POST", "/resources/mcp_server/web/logout"))["forgotten"]
    assert server.refreshes == 1


async def test_a_client_that_a_person_registered(daemon: Daemon, server: OAuthServer) -> None:
    """The provider registers nobody by itself: an id and a secret of one's own, which is nowhere but in the store."""
    server.registers, server.registered = False, {"by-hand": "s3cret-of-the-provider"}
    add = ("mcp", "add", "web", "--url", server.url, "--oauth-client-id", "by-hand", "--oauth-client-secret")
    code, _, err = await cli(daemon, *add, "s3cret-of-the-provider")
    assert code == exits.USAGE, err
    assert "coffer credential set web-oauth-secret" in err
    assert "--oauth-client-secret '${web-oauth-secret}'" in err
    assert "s3cret-of-the-provider" not in err
    await cli(daemon, "credential", "use-file")
    code, _, err = await cli(daemon, *add, "${web-oauth-secret}")
    assert (code != exits.OK, "coffer credential set web-oauth-secret" in err) == (True, True)
    await api(daemon, "PUT", "/credentials/web-oauth-secret", {"value": "s3cret-of-the-provider"})
    code, _, err = await cli(daemon, *add, "${web-oauth-secret}", "--oauth-scope", "read write")
    assert code == exits.OK, err
    await asyncio.to_thread(daemon.wait_state, "web", "needs_login")
    assert (await log_in(daemon))["state"] == "done"
    await asyncio.to_thread(daemon.wait_state, "web", "ready")
    server.expire()
    assert "result" in await call(daemon)
    assert (server.shown, server.registrations) == (["basic", "basic"], 0)
    assert server.authorized[0]["scope"] == "read write"
    _, shown, _ = await cli(daemon, "mcp", "show", "web")
    assert "oauth client id      by-hand" in shown
    assert "oauth client secret  ${web-oauth-secret}" in shown
    users = (await api(daemon, "GET", "/credentials/web-oauth-secret"))["used_by"]
    assert users == ["web"]
    await asyncio.to_thread(daemon.stop)
    found = [
        path for path in daemon.home.rglob("*") if path.is_file() and b"s3cret-of-the-provider" in path.read_bytes()
    ]
    assert found == []


async def test_a_changed_client_id_wants_a_new_login(house: Daemon, server: OAuthServer) -> None:
    """And taking it away lets Coffer register itself again."""
    assert (await log_in(house))["state"] == "done"
    await asyncio.to_thread(house.wait_state, "web", "ready")
    server.registered = {"by-hand": ""}
    code, out, err = await cli(house, "mcp", "update", "web", "--oauth-client-id", "by-hand")
    assert (code, "needs_login" in out or "wants a login" in out) == (exits.OK, True), (out, err)
    assert (await log_in(house))["state"] == "done"
    assert server.authorized[-1]["client_id"] == "by-hand"
    code, _, err = await cli(house, "mcp", "update", "web", "--oauth-client-id", "")
    assert code == exits.OK, err
    assert "oauth" not in (await api(house, "GET", "/resources/mcp_server/web"))["config"]
    assert (await log_in(house))["state"] == "done"
    assert server.authorized[-1]["client_id"] != "by-hand"


async def test_an_authorization_header_and_a_login_exclude_each_other(house: Daemon) -> None:
    """Nothing is stored that would never be used."""
    for options in (["--header", "Authorization=Bearer ${x}"], ["--header", "authorization=Basic ${x}"]):
        code, _, err = await cli(
            house, "mcp", "add", "two", "--url", "http://127.0.0.1:1/", "--oauth-client-id", "a", *options
        )
        assert (code, "with it no login" in err) == (exits.USAGE, True), err
    code, _, err = await cli(house, "mcp", "add", "two", "--oauth-client-id", "a", "--", "true")
    assert (code, "--oauth-... options are for servers with a --url" in err) == (exits.USAGE, True), err
    code, _, err = await cli(
        house, "mcp", "add", "two", "--url", "http://127.0.0.1:1/", "--oauth-issuer", "http://127.0.0.1:1"
    )
    assert (code, "belong to a client_id" in err) == (exits.USAGE, True), err


async def test_an_authorization_server_in_trouble_costs_no_login(house: Daemon, server: OAuthServer) -> None:
    """A refresh that fails for the moment keeps the login, says so, and goes well later."""
    assert (await log_in(house))["state"] == "done"
    await asyncio.to_thread(house.wait_state, "web", "ready")
    server.expire()
    server.token_status = 503
    answer = await call(house)
    assert answer["error"]["data"]["reason"] != "needs_login"
    assert "HTTP 503" in answer["error"]["message"]
    assert "The login is kept" in answer["error"]["message"]
    server.token_status = 0
    await api(house, "POST", "/resources/mcp_server/web/restart")
    await asyncio.to_thread(house.wait_state, "web", "ready")
    assert "result" in await call(house)
    assert len(server.authorized) == 1


async def test_logout_forgets_the_login(house: Daemon, server: OAuthServer) -> None:
    assert (await log_in(house))["state"] == "done"
    await asyncio.to_thread(house.wait_state, "web", "ready")
    code, out, err = await cli(house, "mcp", "logout", "web")
    assert (code, "web is logged out" in out) == (exits.OK, True), err
    await asyncio.to_thread(house.wait_state, "web", "needs_login")
    _, out, _ = await cli(house, "mcp", "logout", "web")
    assert "had no login" in out
    events = [row["event"] for row in (await api(house, "GET", "/audit"))["audit"]]
    assert {"mcp_server.login", "mcp_server.logout"} <= set(events)


async def test_the_callback_takes_each_state_once(house: Daemon, server: OAuthServer) -> None:
    """Without a token, the state is all that guards the callback: a wrong or used one changes nothing."""
    started = await api(house, "POST", "/resources/mcp_server/web/login")
    callback = house.url("/oauth/callback")
    for query in ("", "?code=x", "?code=x&state=guess", "?code=x&state=a&state=b"):
        assert (await visit(callback + query))[0] == 400
    assert (await visit(started["url"]))[0] == 200
    again = await visit(f"{callback}?code=x&state={state_of(started['url'])}")
    assert again[0] == 400
    assert len(server.families) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"denied": True}, "access_denied"),
        ({"issuer_in_answer": "https://evil.example"}, "iss"),
        ({"token_status": 500}, "500"),
    ],
)
async def test_a_login_that_fails_says_why(
    house: Daemon, server: OAuthServer, change: dict[str, Any], words: str
) -> None:
    """The person said no; another issuer answers (mix-up); the token endpoint fails. Nothing is stored."""
    for key, value in change.items():
        setattr(server, key, value)
    outcome = await log_in(house)
    assert outcome["state"] == "failed"
    assert words in outcome["error"]
    assert (await call(house))["error"]["data"]["reason"] == "needs_login"


def opening(house: Daemon, tmp_path: Path) -> Path:
    """Have `webbrowser` start a program that only notes what it is given; where it notes it."""
    opened, script = tmp_path / "opened", tmp_path / "browser"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$1" >> {opened}\n', encoding="utf-8")
    script.chmod(0o755)
    house.extra_env["BROWSER"] = str(script)
    return opened


@pytest.mark.parametrize(
    "endpoint", ["{base}/authorize", "file:///etc/passwd", "javascript:alert(1)", "{base}/$(touch p)", '{base}/";id;"']
)
async def test_a_browser_is_given_web_addresses_alone_and_nothing_for_a_shell(
    house: Daemon, server: OAuthServer, endpoint: str, tmp_path: Path
) -> None:
    """K13: only http and https, after parsing; opened without a shell; what is let through has become harmless."""
    server.metadata = {"authorization_endpoint": endpoint.format(base=server.base)}
    opened = opening(house, tmp_path)
    process = await asyncio.create_subprocess_exec(
        COFFER, "mcp", "login", "web", env=house.env, stdin=subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    ended = asyncio.create_task(process.communicate())
    try:
        await wait_for(lambda: ended.done() or (opened.exists() and opened.read_text().endswith("\n")), 20)
    finally:
        if not ended.done():
            process.terminate()
        await ended
    given = opened.read_text().strip() if opened.exists() else ""
    if endpoint == "{base}/authorize":
        assert given.startswith(f"{server.base}/authorize?")
    assert given.startswith(server.base) or (not given and process.returncode in (exits.FAILURE, exits.CONFLICT))
    assert not set(given) & set("$();\"'` "), given


async def test_a_removed_server_takes_its_login_along(house: Daemon, server: OAuthServer) -> None:
    """And another server of that name begins without one."""
    assert (await log_in(house))["state"] == "done"
    await asyncio.to_thread(house.wait_state, "web", "ready")
    await api(house, "DELETE", "/resources/mcp_server/web")
    await asyncio.to_thread(house.add_server, "web", server.config())
    await asyncio.to_thread(house.wait_state, "web", "needs_login")
