"""An upstream's lists as catalogue entries: each capability in the four forms that clients may see.

Owns what is left out and why, and what an entry looks like per naming and era. Never asks the upstream, never filters
by a person's choice. Source: MCP, Tools, Resources, Prompts; pages are walked by the shell.
"""

from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from coffer_common import names, protocol
from coffer_common.frames import CapabilityType, CatalogueEntry
from coffer_common.protocol import Era
from coffer_worker.core import headers, splice, translate
from coffer_worker.core.splice import Slice

_encode: Final = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class ListKind:
    """One of the four lists: its method, the member of the result, the capability that declares it, its key."""

    type: CapabilityType
    method: str
    member: str
    capability: Literal["tools", "resources", "prompts"]
    key: str


KINDS: Final = (
    ListKind("tool", "tools/list", "tools", "tools", "name"),
    ListKind("resource", "resources/list", "resources", "resources", "uri"),
    ListKind("template", "resources/templates/list", "resourceTemplates", "resources", "uriTemplate"),
    ListKind("prompt", "prompts/list", "prompts", "prompts", "name"),
)
_TTL_DIGITS: Final = 15  # three hundred centuries; what is longer says nothing, and no frame could carry it
CHANGED: Final = {f"notifications/{kind}/list_changed": kind for kind in ("tools", "resources", "prompts")}


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list. ``ttl_ms`` -1 and ``scope`` empty: the upstream said nothing."""

    items: list[Slice]
    cursor: str | None
    ttl_ms: int = -1
    scope: str = ""


def page(kind: ListKind, raw: bytes) -> Page:
    """One list result taken apart. Raises ValueError for what is none."""
    found = splice.members(raw)
    items = splice.items(found[kind.member]) if kind.member in found else []
    cursor = splice.text(found.get("nextCursor"))
    ttl = bytes(found.get("ttlMs", b""))
    ttl_ms = int(ttl) if ttl.isdigit() and len(ttl) <= _TTL_DIGITS else -1
    return Page(items, cursor or None, ttl_ms, splice.text(found.get("cacheScope")) or "")


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of one list, in the upstream's order, and the reasons for what is missing from them."""

    entries: list[CatalogueEntry]
    left_out: list[str]


def entries(kind: ListKind, items: list[Slice], server: str, upstream: Era) -> Entries:
    """Each item of one list as an entry; one that no client could take is left out alone, with its reason."""
    made = Entries([], [])
    seen: dict[str, bytes] = {}
    for position, item in enumerate(items):
        try:
            found = splice.members(item)
        except ValueError:
            made.left_out.append(f"{kind.type} number {position + 1}: not an object")
            continue
        key = splice.text(found.get(kind.key))
        if not key:
            made.left_out.append(f"{kind.type} number {position + 1}: it has no {kind.key}")
        elif key in seen:
            made.left_out.append(f"{kind.type} {key!r}: listed twice")
        elif (wrong := _unusable(kind, found)) is not None:
            made.left_out.append(f"{kind.type} {key!r}: {wrong}")
        else:
            seen[key] = bytes(item)
            made.entries.append(_entry(kind, key, seen[key], found, server=server, upstream=upstream))
            if _needs_tasks(found, upstream):
                made.left_out.append(
                    f"{kind.type} {key!r}: its server declares that it runs as a task only, so clients of 2026-07-28 "
                    f"do not see it; to hide it from all: coffer mcp tools {server} --disable {key}"
                )
    if len({entry.exposed for entry in made.entries}) < len(made.entries):
        _set_apart(made.entries, kind, seen, server, upstream)
    return made


def _set_apart(
    found: list[CatalogueEntry], kind: ListKind, items: dict[str, bytes], server: str, upstream: Era
) -> None:
    """Gives each entry a name of its own where a short form is what another one is called.

    Does not depend on the list's order: what needs no short form keeps its name, then the lesser spelling is first.
    """
    short = {place for place, entry in enumerate(found) if entry.exposed != f"{server}{names.SEPARATOR}{entry.key}"}
    taken = {entry.exposed for place, entry in enumerate(found) if place not in short}
    for place in sorted(short, key=lambda at: found[at].key):
        entry = found[place]
        exposed, turn = entry.exposed, 0
        while exposed in taken:
            turn += 1
            exposed = names.exposed_name(server, entry.key, turn)
        taken.add(exposed)
        if turn:
            item = items[entry.key]
            found[place] = _entry(
                kind, entry.key, item, splice.members(item), server=server, upstream=upstream, exposed=exposed
            )


def callable_over_http(found: Entries) -> Entries:
    """The tools whose arguments can be repeated as headers as their schemas demand; the others are left out, as the
    protocol wants of a client over HTTP. Source: MCP 2026-07-28, Transports, custom headers from tool parameters."""
    made = Entries([], list(found.left_out))
    for entry in found.entries:
        schema = splice.members(entry.raw_legacy).get("inputSchema", b"{}")
        wrong = headers.malformed(bytes(schema))
        if wrong is None:
            made.entries.append(entry)
        else:
            made.left_out.append(f"tool {entry.key!r}: {wrong}")
    return made


def _unusable(kind: ListKind, found: dict[str, Slice]) -> str | None:
    """Why one entry would make clients refuse the whole list."""
    if kind.type != "tool":
        return None
    schema = found.get("inputSchema")
    if not splice.is_object(schema):
        return "its inputSchema is not an object"
    declared = splice.members(schema).get("type")  # type: ignore[arg-type]
    if declared is None or bytes(declared) != b'"object"':
        what = "missing" if declared is None else bytes(declared)[:40].decode(errors="replace")
        return f'the type of its inputSchema is {what}, not "object"'
    return None


def _needs_tasks(found: dict[str, Slice], upstream: Era) -> bool:
    execution = found.get("execution")
    if upstream == "modern" or not splice.is_object(execution):
        return False
    return splice.text(splice.members(execution).get("taskSupport")) == "required"  # type: ignore[arg-type]


def _entry(
    kind: ListKind, key: str, item: bytes, found: dict[str, Slice], *, server: str, upstream: Era, exposed: str = ""
) -> CatalogueEntry:
    is_name = kind.key == "name"
    exposed = exposed or (names.exposed_name(server, key) if is_name else names.exposed_uri(server, key))
    legacy = _legacy_form(item, found, upstream)
    same = legacy is item
    hidden = _needs_tasks(found, upstream)
    prefixed_legacy = _prefixed(kind, legacy, exposed, server)
    if hidden:
        return CatalogueEntry(kind.type, key, exposed, legacy, prefixed_legacy, b"", b"")
    return CatalogueEntry(
        kind.type,
        key,
        exposed,
        legacy,
        prefixed_legacy,
        None if same else item,
        None if same else _prefixed(kind, item, exposed, server),
    )


def _legacy_form(item: bytes, found: dict[str, Slice], upstream: Era) -> bytes:
    """Legacy clients refuse a whole list for one ``outputSchema`` that is no object schema."""
    schema = found.get("outputSchema")
    if schema is None:
        return item
    declared = splice.members(schema).get("type") if splice.is_object(schema) else None
    if declared is not None and bytes(declared) == b'"object"':
        return item
    return splice.join({name: value for name, value in found.items() if name != "outputSchema"})


def _prefixed(kind: ListKind, raw: bytes, exposed: str, server: str) -> bytes:
    found = splice.members(raw)
    found[kind.key] = _encode(exposed)
    joined = splice.join(found)
    return translate.renamed_meta(joined, server) if b"esourceUri" in joined else joined


def declares(capabilities: bytes, kind: ListKind) -> bool:
    """Whether an upstream's declared capabilities include that list."""
    try:
        return splice.is_object(splice.members(capabilities).get(kind.capability))
    except ValueError:
        return False


def narrowest(pages: list[Page], upstream: Era) -> tuple[int, Literal["private", "public"]]:
    """The caching hints for all pages together: the smallest ttl (-1: nothing said) and the narrowest scope."""
    said = [p.ttl_ms for p in pages if p.ttl_ms >= 0]
    public = (
        upstream == protocol.era_of(protocol.LATEST_MODERN) and bool(pages) and all(p.scope == "public" for p in pages)
    )
    return (min(said) if said else -1), ("public" if public else "private")
