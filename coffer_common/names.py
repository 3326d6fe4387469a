"""Names and URIs of the aggregate: how an upstream's own become Coffer's, and back.

Owns the server-name rule, ``SERVER__NAME``, ``coffer://SERVER/URI`` and the deterministic short form of
names that clients refuse. Pure string work: never normalises, decodes or encodes a URI it passes on;
``normalised_uri`` exists only as a second key to look up what a client has normalised by itself.
"""

import hashlib
import re
from typing import Final
from urllib.parse import quote

SERVER_NAME_PATTERN: Final = r"^(?!.*__)(?!coffer$)[a-z0-9](?:[a-z0-9_-]{0,30}[a-z0-9])?$"
SERVER_NAME_RULE: Final = (
    "1 to 32 characters: a-z, 0-9, '-' and '_', beginning and ending with a letter or digit, "
    "without '__', and not 'coffer'"
)
SEPARATOR: Final = "__"
MAX_NAME: Final = 64
_HASH_CHARS: Final = 8

_SERVER_NAME: Final = re.compile(SERVER_NAME_PATTERN)
_EXPOSED: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_REFUSED: Final = re.compile(r"[^A-Za-z0-9_-]")
_URI_HEAD: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_SPECIAL_PORTS: Final = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21", "file": ""}
# What the WHATWG URL parser percent-encodes in a path besides controls and non-ASCII (path percent-encode set).
_PATH_SAFE: Final = "!$%&'()*+,-./:;=@[\\]_|~"


def is_server_name(name: str) -> bool:
    """Whether ``name`` may name a server (see ``SERVER_NAME_RULE``)."""
    return _SERVER_NAME.match(name) is not None and "\n" not in name


def legal_server_name(wish: str) -> str:
    """The nearest legal server name to ``wish``: lower case, refused characters to ``-``; else ``server``."""
    name = re.sub(r"[^a-z0-9_-]+", "-", wish.lower())
    name = re.sub(r"_{2,}", "_", name).strip("-_")[:32].rstrip("-_")
    if not name:
        return "server"
    return "coffer-server" if name == "coffer" else name


def exposed_name(server: str, name: str, turn: int = 0) -> str:
    """``SERVER__NAME``, or where clients would refuse that (over 64 characters, or a character outside
    ``[A-Za-z0-9_-]``) a short form with a hash of the upstream's own spelling. Depends on nothing else.

    ``turn``: 1 and more are further short forms, for where the first is what something else is called."""
    plain = f"{server}{SEPARATOR}{name}"
    if not turn and _EXPOSED.fullmatch(plain):
        return plain
    spelling = f"{name}\0{turn}" if turn else name
    digest = hashlib.sha256(spelling.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    room = MAX_NAME - len(server) - len(SEPARATOR) - len(digest) - 1
    return f"{server}{SEPARATOR}{_REFUSED.sub('_', name)[:room]}_{digest}"


def split_name(exposed: str) -> tuple[str, str] | None:
    """(server, rest) at the first ``__``; None where there is none or the head is no server name.

    ``rest`` is the upstream's own name unless it was shortened: look it up among that server's exposed names.
    """
    server, separator, rest = exposed.partition(SEPARATOR)
    if not separator or not rest or not is_server_name(server):
        return None
    return server, rest


def exposed_uri(server: str, uri: str) -> str:
    """``coffer://SERVER/URI``; for ``ui://PATH`` ``ui://SERVER/PATH`` (hosts of MCP Apps look for that scheme)."""
    if uri[:5] == "ui://":
        return f"ui://{server}/{uri[5:]}"
    return f"coffer://{server}/{uri}"


def split_uri(exposed: str) -> tuple[str, str] | None:
    """(server, the upstream's own URI) of an exposed URI or template; None if it is none of ours."""
    for head, scheme in (("coffer://", ""), ("ui://", "ui://")):
        if exposed.startswith(head):
            server, slash, rest = exposed[len(head) :].partition("/")
            if slash and is_server_name(server):
                return server, scheme + rest
    return None


def normalised_uri(uri: str) -> str:
    """What a WHATWG URL parser makes of ``uri`` (scheme and host in lower case, dot segments folded, default port
    and empty path of special schemes, controls and non-ASCII percent-encoded). Only ever a look-up key."""
    match = _URI_HEAD.fullmatch(uri.strip(" \t\r\n"))
    if match is None:
        return uri
    scheme, rest = match.group(1).lower(), re.sub(r"[\t\r\n]", "", match.group(2))
    rest, mark, fragment = rest.partition("#")
    rest, question, query = rest.partition("?")
    special = scheme in _SPECIAL_PORTS
    if special:
        rest = rest.replace("\\", "/")
    if rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        path = _fold_dots(slash + _encoded(path)) or ("/" if special else "")
        rest = f"//{_normalised_authority(scheme, authority, special)}{path}"
    elif rest.startswith("/"):
        rest = _fold_dots(_encoded(rest))
    else:
        rest = _encoded(rest, spaces=False)
    return f"{scheme}:{rest}{question}{_encoded(query)}{mark}{_encoded(fragment)}"


def _normalised_authority(scheme: str, authority: str, special: bool) -> str:
    if not special:
        return _encoded(authority)
    user, at, host = authority.rpartition("@")
    host = host.lower()
    port = _SPECIAL_PORTS[scheme]
    if port and host.endswith(f":{port}"):
        host = host[: -len(port) - 1]
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError:
            host = _encoded(host)
    return f"{user}{at}{host}"


def _encoded(text: str, *, spaces: bool = True) -> str:
    return quote(text, safe=_PATH_SAFE + "?#" + ("" if spaces else ' "<>^`{}'), errors="replace")


def _fold_dots(path: str) -> str:
    if not path:
        return path
    out: list[str] = []
    segments = path.split("/")[1:]
    for position, segment in enumerate(segments):
        plain = segment.lower().replace("%2e", ".")
        last = position == len(segments) - 1
        if plain == "..":
            if out:
                out.pop()
            if last:
                out.append("")
        elif plain == ".":
            if last:
                out.append("")
        else:
            out.append(segment)
    return "/" + "/".join(out)
