"""Which addresses a person's browser may be sent to (they come from strangers: a server's authorization server), and
at which a server can be reached at all; and the one at which a browser comes back.

Owns these two checks and that path. Never opens anything.
"""

import re
from typing import Final
from urllib.parse import urlsplit

_ODD: Final = re.compile(r"[\x00-\x20\x7f-\U0010ffff\\\"'<>`|;$()\[\]{}^]")
MOST_CHARS: Final = 8192
CALLBACK_PATH: Final = "/oauth/callback"
"""Where at the daemon's endpoint a login ends; authorization servers hold it, so it never changes."""


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


def fault(url: str) -> str:
    """Why no server can be reached at an ``http`` or ``https`` address; empty where one may be.

    A ``${reference}`` in place of host or port is judged once it is filled in.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return "its host is malformed"
    if "${" in parts.netloc:
        return ""
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        return "its port is no number from 1 to 65535"
    return "" if parts.hostname else "it names no host"
