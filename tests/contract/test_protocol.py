"""What stands in coffer_common.protocol is what the SDK, the authority on the protocol, says."""

import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import jsonrpc, version

from coffer_common import protocol


def test_revisions() -> None:
    assert protocol.LEGACY_REVISIONS == version.HANDSHAKE_PROTOCOL_VERSIONS
    assert protocol.MODERN_REVISIONS == version.MODERN_PROTOCOL_VERSIONS
    assert protocol.LATEST_LEGACY == version.LATEST_HANDSHAKE_VERSION


def test_meta_keys() -> None:
    assert protocol.META_PROTOCOL_VERSION == mcp_types.PROTOCOL_VERSION_META_KEY
    assert protocol.META_CLIENT_INFO == mcp_types.CLIENT_INFO_META_KEY
    assert protocol.META_CLIENT_CAPABILITIES == mcp_types.CLIENT_CAPABILITIES_META_KEY
    assert protocol.META_LOG_LEVEL == mcp_types.LOG_LEVEL_META_KEY
    assert protocol.META_SERVER_INFO == mcp_types.SERVER_INFO_META_KEY
    assert protocol.META_SUBSCRIPTION_ID == SUBSCRIPTION_ID_META_KEY


def test_headers_and_statuses() -> None:
    assert protocol.HEADER_VERSION == inbound.MCP_PROTOCOL_VERSION_HEADER
    assert protocol.HEADER_METHOD == inbound.MCP_METHOD_HEADER
    assert protocol.HEADER_NAME == inbound.MCP_NAME_HEADER
    assert inbound.MCP_PARAM_HEADER_PREFIX.lower() == protocol.HEADER_PARAM_PREFIX
    assert dict(protocol.NAME_MEMBER) == dict(inbound.NAME_BEARING_METHODS)
    assert dict(protocol.HTTP_STATUS) == dict(inbound.ERROR_CODE_HTTP_STATUS)


def test_codes() -> None:
    assert protocol.HEADER_MISMATCH == jsonrpc.HEADER_MISMATCH
    assert protocol.MISSING_CAPABILITY == jsonrpc.MISSING_REQUIRED_CLIENT_CAPABILITY
    assert protocol.UNSUPPORTED_VERSION == jsonrpc.UNSUPPORTED_PROTOCOL_VERSION
    assert protocol.URL_ELICITATION_REQUIRED == mcp_types.URL_ELICITATION_REQUIRED


@given(st.text())
def test_header_values_are_encoded_as_the_sdk_does(value: str) -> None:
    try:
        expected = inbound.encode_header_value(value)
    except UnicodeEncodeError:
        return
    assert protocol.encode_header(value) == expected
    assert protocol.decode_header(expected) == value


@given(st.text() | st.from_regex(r"=\?base64\?[A-Za-z0-9+/=]{0,9}\?=", fullmatch=True))
def test_header_values_are_decoded_as_the_sdk_does(value: str) -> None:
    """E10: a damaged base64 form equals no body value."""
    assert protocol.decode_header(value) == inbound.decode_header_value(value)


@pytest.mark.parametrize("value", [True, False, 1, 1.5, "x", None, [], {}, pytest.param(10**6000, id="huge")])
def test_scalars_are_mirrored_as_the_sdk_does(value: object) -> None:
    mirrored = inbound.mcp_param_headers({("p",): "P"}, {"p": value})
    rendered = protocol.header_scalar(value)
    assert ({} if rendered is None else {"Mcp-Param-P": protocol.encode_header(rendered)}) == mirrored


@pytest.mark.parametrize(
    ("asked", "answered"),
    [("2024-11-05", "2024-11-05"), ("2099-01-01", "2025-11-25"), (None, "2025-11-25"), (7, "2025-11-25")],
)
def test_initialize_never_answers_a_revision_without_handshake(asked: object, answered: str) -> None:
    """E08: a version really served, and not the modern one, which has no handshake."""
    assert protocol.negotiated_legacy(asked) == answered
    assert protocol.negotiated_legacy("2026-07-28") == "2025-11-25"


def test_eras() -> None:
    assert protocol.era_of("2026-07-28") == "modern"
    assert protocol.era_of("zzz") == protocol.era_of("2025-03-26") == "legacy"
