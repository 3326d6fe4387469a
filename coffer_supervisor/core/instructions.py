"""What Coffer tells a client's model about itself and the upstreams known so far.

Owns the text and its limit. Never asks an upstream anything. Source: MCP lifecycle (``instructions``).
"""

from collections.abc import Mapping
from typing import Final

LIMIT: Final = 8000
"""Characters in all: hosts put the text into every prompt."""
_EACH_AT_LEAST: Final = 200
_INTRODUCTION: Final = (
    "This is Coffer, a gateway to several MCP servers. Tools and prompts are named SERVER__NAME, resources "
    "coffer://SERVER/URI (or ui://SERVER/PATH): the part before tells which server answers."
)
_CUT: Final = " [cut]"


def instructions(upstreams: Mapping[str, str]) -> str:
    """The introduction, then each upstream's own instructions under its name, by name, within ``LIMIT``."""
    told = {name: text.strip() for name, text in sorted(upstreams.items()) if text.strip()}
    parts = [_INTRODUCTION]
    left = LIMIT - len(_INTRODUCTION)
    for number, (name, text) in enumerate(told.items()):
        head = f"\n\n## {name}\n"
        # What the earlier ones did not use is shared by those that follow.
        room = max(_EACH_AT_LEAST, left // (len(told) - number)) - len(head)
        shown = text if len(text) <= room else text[: room - len(_CUT)] + _CUT
        if len(head) + len(shown) > left:
            break
        parts.append(head + shown)
        left -= len(head) + len(shown)
    return "".join(parts)
