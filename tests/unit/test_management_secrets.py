"""Values that look like secrets are found before they are written down, and never repeated."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coffer_common import plaintext
from coffer_common.resources import HttpServer, OAuthClient, StdioServer

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0abc.c2lnbmF0dXJl"


def stdio(*args: str, **env: str) -> StdioServer:
    return StdioServer(command="server", args=args, env=env)


def http(url: str = "https://api.example.com/mcp", **headers: str) -> HttpServer:
    return HttpServer(url=url, headers={key.replace("_", "-"): value for key, value in headers.items()})


@pytest.mark.parametrize(
    "config",
    [
        stdio(GITHUB="ghp_aaaaaaaaaaaaaaaaaaaa"),
        stdio(X="github_pat_11AAAAAAA0aaaaaaa"),
        stdio(X="sk-proj-aaaaaaaaaaaa"),
        stdio(X="xoxb-1234567890"),
        stdio(X="AKIAIOSFODNN7EXAMPLE"),
        stdio(X=JWT),
        stdio(X="Bearer abcdefghijklmnop"),
        stdio(X="-----BEGIN RSA PRIVATE KEY-----\nabc"),
        stdio(API_KEY="q9X2mB7vL4tR8wZ1nK5c"),
        stdio(DB_PASSWORD="hunter2"),
        stdio(DATABASE_URL="postgres://me:hunter2@db/x"),
        stdio("--token=q9X2mB7vL4tR8wZ1nK5c"),
        stdio("--token", "q9X2mB7vL4tR8wZ1nK5c"),
        stdio("API_KEY=q9X2mB7vL4tR8wZ1nK5c"),
        stdio("--ghp_aaaaaaaaaaaaaaaaaaaa"),
        stdio("postgres://me:hunter2@db/x"),
        http(Authorization="Bearer ghp_aaaaaaaaaaaaaaaaaaaa"),
        http(Authorization="Bearer short-one"),
        http(X_Api_Key="abcdef"),
        http(X_Custom="ghp_aaaaaaaaaaaaaaaaaaaa"),
        http("https://me:hunter2@api.example.com/"),
        http("https://q9X2mB7vL4tR8wZ1nK5c@api.example.com/"),
        http("https://api.example.com/?api_key=abcdef12"),
        http("https://api.example.com/?x=q9X2mB7vL4tR8wZ1nK5c"),
        http("https://api.example.com/ghp_aaaaaaaaaaaaaaaaaaaa/mcp"),
        HttpServer(url="https://api.example.com/", oauth=OAuthClient(client_id="a", client_secret="short")),
        HttpServer(url="https://api.example.com/", oauth=OAuthClient(client_id="a", client_secret="x${ref}")),
    ],
)
def test_secrets_in_the_open_are_found(config: StdioServer | HttpServer) -> None:
    """K01: a secret in env, headers, arguments or URL is refused, with the command that stores it."""
    found = plaintext.find("gh", config)
    assert found
    message, hint = plaintext.refusal(found)
    assert "looks like a secret" in message
    assert "coffer credential set gh-" in hint
    assert "${gh-" in hint
    assert "--allow-plaintext" in hint


@pytest.mark.parametrize(
    "config",
    [
        stdio(LOG_LEVEL="debug", KEY_FILE="/home/me/.ssh/id_ed25519", MAX_TOKENS="4096", TOKEN="${gh-token}"),
        stdio(PASSWORD="${db}", AUTH="true", SECRET="", API_URL="https://api.example.com/v1/a/long/path/123"),
        stdio(KEY="a readable sentence of words", TOKEN="aaaaaaaaaaaaaaaaaaaaaaaa1"),
        stdio("-y", "@modelcontextprotocol/server-filesystem", "/home/me/notes", "--port=8080", "--key-file", "/k"),
        stdio("--url", "https://example.com:8080/[x", URL="http://[bad/x"),
        stdio("2f1c9b7e-not-after-an-option-0a1b2c3d"),
        http(Authorization="Bearer ${gh-token}", Accept="application/json", X_Token="${x}"),
        http("https://api.example.com/mcp?project=demo&key=${k}&page=10"),
        http("https://me@api.example.com/mcp"),
        http("https://[bad/mcp"),
    ],
)
def test_what_is_no_secret_passes(config: StdioServer | HttpServer) -> None:
    assert plaintext.find("gh", config) == []


def test_the_refusal_keeps_the_scheme_and_names_the_place() -> None:
    """The hint can be pasted: the header as it was, a reference in the secret's place."""
    message, hint = plaintext.refusal(plaintext.find("gh", http(Authorization="Bearer ghp_aaaaaaaaaaaaaaaaaaaa")))
    assert message == "the header Authorization holds what looks like a secret."
    assert "coffer credential set gh-token\n" in hint
    assert "--header 'Authorization=Bearer ${gh-token}'" in hint


def test_several_findings_are_named_together() -> None:
    message, _ = plaintext.refusal(plaintext.find("gh", stdio("ghp_aaaaaaaaaaaaaaaaaaaa", DB_PASSWORD="hunter2")))
    assert message.startswith("the environment variable DB_PASSWORD and argument 1 (every process")
    assert " hold what" in message


def test_a_secret_in_the_command_itself_is_named_as_such() -> None:
    found = plaintext.find("x", StdioServer(command="ghp_aaaaaaaaaaaaaaaaaaaa"))
    assert found[0].where.startswith("the command")


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", min_size=24, max_size=60))
def test_no_refusal_ever_repeats_what_it_found(secret: str) -> None:
    """K02: partial prints count as leaks."""
    for config in (stdio(MY_TOKEN=f"ghp_{secret}"), stdio(f"--key={secret}x1"), http(Authorization=f"Bearer {secret}")):
        found = plaintext.find("s", config)
        if found:
            assert not any(secret[:12] in part for part in plaintext.refusal(found))
