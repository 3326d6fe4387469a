"""Secrets put into a server's configuration: where they may stand, and what cannot stand there."""

from __future__ import annotations

from collections.abc import Iterator

import keyring
import pytest

from coffer_common.resources import HttpServer, OAuthClient, StdioServer
from coffer_supervisor import templates
from coffer_supervisor.credentials import CredentialError, CredentialVault, MissingCredential
from tests.unit.test_credentials import Memory


@pytest.fixture
async def vault() -> CredentialVault:
    """One with a secret, one with a line break, one with a zero byte."""
    made = CredentialVault()
    await made.set("gh", "s3cr3t-${gh}")
    await made.set("pem", "s3cr3t\nline")
    await made.set("zero", "s3cr3t\0")
    return made


@pytest.fixture(autouse=True)
def ring() -> Iterator[None]:
    """A keychain of this test."""
    before = keyring.get_keyring()
    keyring.set_keyring(Memory())
    yield
    keyring.set_keyring(before)


async def test_env_headers_and_url_are_filled_and_nothing_else(vault: CredentialVault) -> None:
    """The secrets come along by themselves, each once; neither is shown by the result's own text."""
    stdio = StdioServer(command="${gh}", args=("${gh}",), env={"A": "x ${gh}", "B": "${gh}${pem}", "C": "plain"})
    filled = await templates.resolve(stdio, "up", vault)
    assert isinstance(filled.config, StdioServer)
    assert filled.config.env == {"A": "x s3cr3t-${gh}", "B": "s3cr3t-${gh}s3cr3t\nline", "C": "plain"}
    assert (filled.config.command, filled.config.args) == ("${gh}", ("${gh}",))
    assert filled.secrets == ("s3cr3t-${gh}", "s3cr3t\nline")
    oauth = OAuthClient(client_id="${gh}", client_secret="${gh}", scope="a")
    http = HttpServer(url="http://h/${gh}?k=${gh}", headers={"X": "Bearer ${gh}", "Y": "z"}, oauth=oauth)
    web = await templates.resolve(http, "up", vault)
    assert isinstance(web.config, HttpServer)
    assert (web.config.url, web.config.headers["X"]) == ("http://h/s3cr3t-${gh}?k=s3cr3t-${gh}", "Bearer s3cr3t-${gh}")
    assert web.config.oauth == OAuthClient(client_id="${gh}", client_secret="s3cr3t-${gh}", scope="a")
    assert web.secrets == ("s3cr3t-${gh}",)
    assert "s3cr3t" not in repr(filled) + repr(web)


@pytest.mark.parametrize(
    ("config", "where"),
    [
        (HttpServer(url="http://h", headers={"X-A": "${pem}"}), "header X-A"),
        (HttpServer(url="http://h/${pem}"), "the URL"),
        (
            HttpServer(url="http://h", oauth=OAuthClient(client_id="a", client_secret="${pem}")),
            "the OAuth client secret",
        ),
        (StdioServer(command="c", env={"Z": "${zero}"}), "env Z"),
    ],
)
async def test_a_secret_that_cannot_stand_there_is_told(
    vault: CredentialVault, config: HttpServer | StdioServer, where: str
) -> None:
    """A line break would end a header and begin another; the place is named and the secret is not."""
    with pytest.raises(CredentialError) as refused:
        await templates.resolve(config, "up", vault)
    assert refused.value.code == "unfit_secret"
    assert where in refused.value.message
    assert "s3cr3t" not in str(refused.value)


async def test_what_is_missing_names_its_place(vault: CredentialVault) -> None:
    """K06: the field and the reference."""
    with pytest.raises(MissingCredential, match="env T of server up"):
        await templates.resolve(StdioServer(command="c", env={"T": "${absent}"}), "up", vault)
