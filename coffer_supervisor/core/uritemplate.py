"""Whether a URI may come from an RFC 6570 template: enough to route it to the upstream that owns the template.

Owns the matching alone. Never expands a template and never extracts a value: the upstream does.
"""

import re
from functools import lru_cache
from typing import Final

MAX_URI: Final = 4096
_EXPRESSION: Final = re.compile(r"\{([+#./;?&]?)([^{}]*)\}")
# What one expression may expand to, by its operator (RFC 6570, section 3.2).
_ANY: Final = ".*"
_SEGMENT: Final = "[^/?#]*"
_PATTERNS: Final = {
    "": _SEGMENT,
    "+": _ANY,
    "#": "(?:#.*)?",
    ".": r"(?:\.[^/?#]*)?",
    "/": "(?:/[^?#]*)?",
    ";": "(?:;[^/?#]*)?",
    "?": r"(?:\?[^#]*)?",
    "&": "(?:&[^#]*)?",
}


def matches(template: str, uri: str) -> bool:
    """Whether ``uri`` may be an expansion of ``template``."""
    if len(uri) > MAX_URI:
        return False
    return _compiled(template).fullmatch(uri) is not None


@lru_cache(maxsize=4096)
def _compiled(template: str) -> re.Pattern[str]:
    parts: list[str] = []
    at = 0
    for found in _EXPRESSION.finditer(template):
        literal = re.escape(template[at : found.start()])
        pattern = _PATTERNS[found.group(1)]
        # Neighbours that match the same text would make the search explode: the wider one stands for both.
        if literal or not parts or parts[-1] not in (_ANY, _SEGMENT):
            parts += [literal, pattern] if literal else [pattern]
        elif parts[-1] == _SEGMENT:
            parts[-1] = pattern if pattern == _ANY else parts[-1]
            if pattern not in (_ANY, _SEGMENT):
                parts.append(pattern)
        at = found.end()
    parts.append(re.escape(template[at:]))
    return re.compile("".join(parts), re.DOTALL)
