"""Which addresses a person's browser may be sent to. They come from strangers: a server's authorization server.

Owns that one check. Never opens anything.
"""

import re
from typing import Final
from urllib.parse import urlsplit

_ODD: Final = re.compile(r"[\x00-\x20\x7f-\U0010ffff\\\"'<>`|;$()\[\]{}^]")
MOST_CHARS: Final = 8192


def browsable(url: str) -> str | None:
    """The host (with its port, as it may be shown) of an ``http`` or ``https`` address; None for anything else.

    Besides other schemes, whatever a shell or a terminal could take for something else is refused.
    """
    bare = url.replace("[", "", 1).replace("]", "", 1) if re.match(r"https?://\[[0-9a-fA-F:.]+\]", url) else url
    if len(url) > MOST_CHARS or _ODD.search(bare):
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return host if port is None else f"{host}:{port}"
