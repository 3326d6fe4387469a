"""What the SDK, the authority on the protocol, says of an upstream's answer to a handshake.

Owns the comparison with the SDK's own models. Never changes or refuses an answer: an upstream that is loose in what
it says is still served, and its operator can read what is wrong. Source: MCP, Lifecycle; Versioning and Discovery.
"""

from typing import Final

from mcp_types import DiscoverResult, InitializeResult
from pydantic import BaseModel, ValidationError

from coffer_common.protocol import Era

_NAMED_AT_MOST: Final = 5
_MODELS: Final[dict[Era, tuple[str, type[BaseModel]]]] = {
    "legacy": ("initialize", InitializeResult),
    "modern": ("server/discover", DiscoverResult),
}


def deviations(era: Era, result: bytes) -> str:
    """In which members a raw handshake result breaks the protocol, in a line without their values; empty: in none."""
    method, model = _MODELS[era]
    try:
        model.model_validate_json(result)
    except ValidationError as error:
        found = error.errors(include_input=False, include_context=False, include_url=False)
        named = [f"{'.'.join(map(str, one['loc'])) or 'the result'}: {one['msg']}" for one in found]
        more = f" and {len(named) - _NAMED_AT_MOST} more" if len(named) > _NAMED_AT_MOST else ""
        return f"its answer to {method} deviates from the protocol ({'; '.join(named[:_NAMED_AT_MOST])}{more})"
    return ""
