"""Trace ids that come with a request: read for the log, and carried on to the upstream.

Owns the reading of ``traceparent``. Where a client sends it in ``_meta`` it reaches the upstream as it is; where it
sends the HTTP header alone, it is put there. Pure; what is no traceparent is left alone and counts as none.
Source: W3C Trace Context, traceparent header; MCP, General fields, ``_meta``.
"""

import re
from typing import Final

import msgspec
from msgspec import Raw

from coffer_common import jsonrpc

HEADER: Final = "traceparent"
_MEMBER: Final = b'"traceparent"'
_FORM: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.{0,256})?")


class _Meta(msgspec.Struct, gc=False):
    traceparent: str = ""


class _Params(msgspec.Struct, gc=False):
    meta: Raw = msgspec.field(default=Raw(b""), name="_meta")


_decode_params: Final = msgspec.json.Decoder(_Params).decode
_decode_meta: Final = msgspec.json.Decoder(_Meta).decode


def trace_id(traceparent: str) -> str:
    """The 32 hexadecimal digits of the trace; empty where it is no traceparent."""
    match = _FORM.fullmatch(traceparent)
    return match.group(1) if match else ""


def traced(params: bytes, header: str = "", outline: bytes = b"") -> tuple[bytes, str]:
    """(params to pass on, trace id or nothing) of a request with these params and this ``traceparent`` header.

    ``outline``: params without large values, where they were made already (see ``jsonrpc.Envelope.outline``).
    """
    outline = outline or params
    if not header and _MEMBER not in outline:
        return params, ""
    try:
        meta = bytes(_decode_params(outline).meta) if outline else b""
        own = _decode_meta(meta).traceparent if meta else ""
    except jsonrpc.UNREADABLE:
        return params, ""  # its refusal is somebody else's
    if own:
        return params, trace_id(own)
    found = trace_id(header)
    return (_with_member(params, meta, header) if found else params), found


def _with_member(params: bytes, meta: bytes, value: str) -> bytes:
    """``params`` with the member in its ``_meta``, every other byte as it was; unchanged where that is not certain."""
    member = b'%s:"%s"' % (_MEMBER, value.encode())
    if not meta:
        return _inserted(params or b"{}", b'"_meta":{%s}' % member)
    if params.count(meta) != 1:
        return params
    return params.replace(meta, _inserted(meta, member))


def _inserted(obj: bytes, member: bytes) -> bytes:
    """A JSON object with one more member, the first."""
    brace = obj.index(b"{") + 1
    rest = obj[brace:]
    return obj[:brace] + member + (b"" if rest.lstrip().startswith(b"}") else b",") + rest
