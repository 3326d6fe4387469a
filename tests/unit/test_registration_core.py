"""How Coffer describes itself to authorization servers, in both places where it does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mcp.shared.auth import OAuthClientMetadata

from coffer_common.weburl import CALLBACK_PATH
from coffer_worker.core import registration

PAGE = Path(__file__).resolve().parents[2] / "docs" / "client-metadata.json"


def test_the_document_in_the_repository_is_what_the_code_says() -> None:
    """Whoever publishes it changes nothing but its address."""
    assert PAGE.read_bytes() == registration.document(registration.EXAMPLE)


def test_the_document_names_where_it_is_and_keeps_no_secret() -> None:
    """An authorization server refuses one whose `client_id` is not the address it was fetched from."""
    found = json.loads(registration.document("https://me.example/coffer.json"))
    assert found["client_id"] == "https://me.example/coffer.json"
    assert found["token_endpoint_auth_method"] == "none"
    assert "http://127.0.0.1:8000/oauth/callback" in found["redirect_uris"]
    assert len(found["redirect_uris"]) == 10
    assert all(uri.endswith(CALLBACK_PATH) for uri in found["redirect_uris"])  # where the daemon takes the answer


@pytest.mark.parametrize(
    ("url", "good"),
    [
        (registration.EXAMPLE, True),
        ("http://example.org/client.json", False),
        ("https://example.org", False),
        ("https://example.org/", False),
        ("https:///client.json", False),
        ("https://[x/client.json", False),
        ("client.json", False),
    ],
)
def test_where_it_can_be_published(url: str, good: bool) -> None:
    assert registration.publishable(url) is good


def test_the_document_says_what_a_registration_says() -> None:
    """By the SDK's own reading of both."""
    published = OAuthClientMetadata.model_validate_json(PAGE.read_bytes())
    assert published.redirect_uris is not None
    registered = OAuthClientMetadata(**registration.description([str(uri) for uri in published.redirect_uris]))
    assert published.model_copy(update={"token_endpoint_auth_method": None}) == registered
