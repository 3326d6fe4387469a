"""What the parts of an HTTP exchange with an upstream mean: headers to send, statuses, redirects, waits.

Owns the table from status to meaning, which failures prove that a request was not executed, the headers of each
request, and how much of an answer may be shown. Never opens a connection, never reads a clock.
Source: MCP, Transports, Streamable HTTP (2025-03-26 to 2026-07-28); RFC 9110.
"""

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import Final, Literal
from urllib.parse import parse_qsl, urljoin, urlsplit

from coffer_common import protocol, webheaders
from coffer_worker.core import headers, splice
from coffer_worker.core.headers import Mirrors
from coffer_worker.core.splice import Slice

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
ACCEPT: Final = f"{JSON}, {EVENTS}"
MAX_REDIRECTS: Final = 5
EXCERPT_CHARS: Final = 200
_LONGEST_WAIT: Final = 3600.0
_BASE_RETRY: Final = 1.0
_CAP_RETRY: Final = 60.0

_LOST_SESSION: Final = re.compile(
    r"(?i)\bno (valid|such|active) session|\bsession\b[^.]{0,60}\b(not found|unknown|expired|invalid|terminated|closed|"
    r"does not exist|not exist)|\b(unknown|expired|invalid|missing|bad)\b[^.]{0,30}\bsession"
)

Meaning = Literal["answer", "lost session", "login", "forbidden", "busy", "redirect", "refused", "broken"]


# ---- what is sent


def configured(given: Mapping[str, str]) -> dict[str, str]:
    """A server's configured headers, lower-case names. Raises ValueError naming the header (never its value)."""
    found: dict[str, str] = {}
    for name, value in given.items():
        fault = webheaders.fault(name, value)
        if fault:
            raise ValueError(fault)
        found[name.lower()] = value
    return found


def posted(method: str, params: Slice, revision: str, session: str, mirrors: Mapping[str, Mirrors]) -> dict[str, str]:
    """The protocol's headers of one POST, built from its body. ``revision`` is empty before the handshake is done;
    a modern request names its own in ``_meta``. ``mirrors`` is by tool."""
    found = {"accept": ACCEPT, "content-type": JSON}
    if session:
        found[protocol.HEADER_SESSION] = session
    own = modern_revision(params)
    if own is None:
        if revision and method != "initialize":
            found[protocol.HEADER_VERSION] = revision
        return found
    found[protocol.HEADER_VERSION] = own
    found[protocol.HEADER_METHOD] = method
    member = protocol.NAME_MEMBER.get(method)
    name = splice.text(splice.members(params).get(member)) if member is not None else None
    if name is not None:
        found[protocol.HEADER_NAME] = protocol.encode_header(name)
        if method == "tools/call" and name in mirrors:
            found |= headers.repeated(mirrors[name], params)
    return found


def modern_revision(params: Slice) -> str | None:
    """The revision that a request names in its ``_meta``; None for a legacy message."""
    if protocol.META_PROTOCOL_VERSION.encode() not in bytes(params):
        return None
    meta = splice.members(params).get("_meta", b"{}")
    return splice.text(splice.members(meta).get(protocol.META_PROTOCOL_VERSION))


# ---- what comes back


def meaning(status: int, *, in_session: bool, code: int | None, text: str) -> Meaning:
    """What an answer with ``status`` says; ``code`` and ``text`` are of the JSON-RPC error in its body, if any.

    "lost session", "login" and "busy" with 401 or 404 prove that the request was not executed; the others do not.
    """
    if 200 <= status < 300:
        return "answer"
    if 300 <= status < 400:
        return "redirect"
    if status == 401:
        return "login"
    if in_session and (status == 404 or (status == 400 and lost_session(code, text))):
        return "lost session"
    if status in (403, 407):
        return "forbidden"
    if status in (408, 425, 429, 503):
        return "busy"
    if code is not None and status < 500:
        return "answer"
    return "refused" if status < 500 else "broken"


def lost_session(code: int | None, text: str) -> bool:
    """Whether the error of a 400 says that the session is not known."""
    return code not in protocol.MODERN_ERRORS and _LOST_SESSION.search(text) is not None


def means_legacy(status: int) -> bool:
    """Whether this status, without a modern error in its body, in answer to ``server/discover`` means an upstream of
    the older era. 401, 403, 429 and 5xx say nothing about it."""
    return 200 <= status < 300 or (400 <= status < 500 and status not in (401, 403, 407, 408, 425, 429))


def means_old_transport(status: int) -> bool:
    """Whether this status for ``initialize`` suggests HTTP+SSE. Source: MCP, Transports, Backwards Compatibility."""
    return status in (400, 404, 405, 406, 415)


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds to wait by a ``Retry-After`` header (seconds or a date); ``now`` is the wall clock."""
    if not value:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        return min(float(value[:9]), _LONGEST_WAIT)
    try:
        return max(0.0, min(parsedate_to_datetime(value).timestamp() - now, _LONGEST_WAIT))
    except (ValueError, TypeError, OverflowError):
        return None


def reopen_delay(failures: int, retry_ms: int | None) -> float:
    """How long a standing stream waits before it is opened again, after so many failures in a row."""
    wish = _BASE_RETRY if retry_ms is None else min(retry_ms / 1000, _LONGEST_WAIT)
    return max(wish, min(_BASE_RETRY * 2 ** (failures - 1), _CAP_RETRY)) if failures > 0 else wish


def media_type(value: str | None) -> str:
    """A ``Content-Type`` without its parameters, lower case."""
    return (value or "").partition(";")[0].strip().lower()


def excerpt(body: bytes) -> str:
    """The beginning of a body that is no message, for people: one line, nothing unprintable."""
    text = body[: EXCERPT_CHARS * 8].decode(errors="replace")
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return text if len(text) <= EXCERPT_CHARS else text[:EXCERPT_CHARS] + "…"


# ---- where to


def origin(url: str) -> str:
    """What of a URL may be shown: scheme, host and port. Its path and query can hold secrets."""
    parts = urlsplit(url)
    host = parts.hostname or "?"
    shown = f"[{host}]" if ":" in host else host
    try:
        port = parts.port
    except ValueError:
        port = None
    return f"{parts.scheme}://{shown}" + (f":{port}" if port is not None else "")


def url_values(url: str) -> dict[str, str]:
    """What in a URL can be a secret, by a name for it: the user's password and name, and each value of its query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return {}
    found = dict(parse_qsl(parts.query, keep_blank_values=False))
    if parts.password:
        found["password"] = parts.password
    if parts.username:
        found["auth"] = parts.username
    return found


def _identity(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    default = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or default


def same_origin(one: str, other: str) -> bool:
    """Whether two URLs have scheme, host and port in common."""
    try:
        return _identity(one) == _identity(other)
    except ValueError:
        return False


def redirected(url: str, status: int, location: str | None, method: str) -> str | None:
    """Where to send the request again; None where a redirect is not followed.

    Everything on a request was configured for one origin, so it never goes to another; and a message is sent again
    only where its method is kept.
    """
    if not location or (status not in (307, 308) and not (method == "GET" and status in (301, 302, 303))):
        return None
    try:
        target = urljoin(url, location)
        own, new = urlsplit(url).netloc, urlsplit(target).netloc
    except ValueError:
        return None
    # A location that brings a user name of its own would make HTTP send that as a credential.
    return target if same_origin(url, target) and (new == own or "@" not in new) else None


def target_origin(url: str, location: str | None) -> str:
    """What may be shown of where a redirect leads."""
    try:
        return origin(urljoin(url, location or "")) if location else "nowhere"
    except ValueError:
        return "what is no URL"


def is_loopback(url: str) -> bool:
    """Whether a URL names this machine, so that no proxy is asked."""
    host = (urlsplit(url).hostname or "").rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
