"""Which upstream a request is for, and under which name there: a target, a refusal, or upstreams to wait for.

Owns the way back from exposed names and URIs to the upstreams' own, and what scope, curation and switched-off
servers refuse. Never normalises what it passes on; never waits, sends or reads a clock.
Source: MCP tools/call, prompts/get, resources/read, resources/subscribe, completion/complete.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from coffer_common import errors, jsonrpc, names
from coffer_common.frames import CapabilityType
from coffer_common.protocol import Era
from coffer_supervisor.core import uritemplate
from coffer_supervisor.core.calls import Scope
from coffer_supervisor.core.catalogue import Narrowing, Server

_NOUN: Final[Mapping[CapabilityType, str]] = {
    "tool": "tool",
    "prompt": "prompt",
    "resource": "resource",
    "template": "resource template",
}
_COMMAND: Final[Mapping[CapabilityType, str]] = {
    "tool": "tools",
    "prompt": "prompts",
    "resource": "resources",
    "template": "resources",
}


@dataclass(frozen=True, slots=True)
class Target:
    """``key`` is the upstream's own name or URI."""

    server: str
    type: CapabilityType
    key: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Coffer answers by itself. ``server`` and ``key`` say what was meant, as far as is known."""

    reason: errors.Reason
    message: str
    server: str | None = None
    key: str = ""
    data: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Awaited:
    """Not to be told before these upstreams have sent a catalogue; ``otherwise`` where they do not in time."""

    servers: tuple[str, ...]
    otherwise: Refusal


@dataclass(slots=True)
class Where:
    """On whose behalf and at which endpoint something is looked up."""

    scope: Scope
    narrowing: Narrowing
    era: Era
    session: str = ""


Resolved = Target | Refusal | Awaited
Servers = Mapping[str, Server]


def resolve(servers: Servers, where: Where, method: str, params: bytes) -> Resolved:
    """Where a request with these raw params goes."""
    wanted = _wanted(method, params)
    if isinstance(wanted, Refusal):
        return wanted
    type_, name = wanted
    return resolve_name(servers, where, type_, name)


def resolve_name(servers: Servers, where: Where, type_: CapabilityType, name: str) -> Resolved:
    """Where a capability that a client names goes. A ``template`` is named by its URI template."""
    if where.scope.server is not None:
        return _passed_through(servers, where, where.scope.server, type_, name)
    split = names.split_name(name) if type_ in ("tool", "prompt") else names.split_uri(name)
    refusal: Refusal | None = None
    if split is not None and split[0] in servers:
        found = _owned(servers[split[0]], where, type_, name, split[1])
        if not isinstance(found, Refusal):
            return found
        refusal = found
    bare = _bare(servers, where, type_, name)
    # A prefix that names a known server is the better explanation, unless the whole is somebody's own name.
    return refusal if refusal is not None and isinstance(bare, Refusal) else bare


# ---- what the params name


class _Named(msgspec.Struct):
    name: str


class _Located(msgspec.Struct):
    uri: str


class _Reference(msgspec.Struct):
    type: str
    name: str = ""
    uri: str = ""


class _Completed(msgspec.Struct):
    ref: _Reference


_VIEWS: Final[Mapping[str, tuple[CapabilityType, str, Callable[[bytes], Any]]]] = {
    "tools/call": ("tool", "name", msgspec.json.Decoder(_Named).decode),
    "prompts/get": ("prompt", "name", msgspec.json.Decoder(_Named).decode),
    "resources/read": ("resource", "uri", msgspec.json.Decoder(_Located).decode),
    "resources/subscribe": ("resource", "uri", msgspec.json.Decoder(_Located).decode),
    "completion/complete": ("prompt", "ref", msgspec.json.Decoder(_Completed).decode),
}


def _wanted(method: str, params: bytes) -> tuple[CapabilityType, str] | Refusal:
    type_, member, decode = _VIEWS[method]
    try:
        if jsonrpc.duplicate_member(params, member) is not None:
            return _invalid(f"params of {method} name {member!r} twice")
        found = jsonrpc.read(params, decode)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        return _invalid(f"params of {method} need {member!r}: {error}")
    if isinstance(found, _Completed):
        return _referenced(found.ref)
    return type_, found.name if isinstance(found, _Named) else found.uri


def _referenced(ref: _Reference) -> tuple[CapabilityType, str] | Refusal:
    if ref.type == "ref/prompt" and ref.name:
        return "prompt", ref.name
    if ref.type == "ref/resource" and ref.uri:
        return "template", ref.uri
    return _invalid("params.ref of completion/complete must be a ref/prompt with a name or a ref/resource with a uri")


# ---- one server


def _passed_through(servers: Servers, where: Where, name: str, type_: CapabilityType, key: str) -> Resolved:
    server = servers.get(name)
    if server is None:
        return Refusal(errors.UNKNOWN_SERVER, f"no server is named '{name}'; see: coffer mcp list", name, key)
    return _closed(server, where, key) or _switched(server, where, type_, key)


def _owned(server: Server, where: Where, type_: CapabilityType, exposed: str, rest: str) -> Resolved:
    """A name or URI whose head says which server it is for."""
    if (refusal := _closed(server, where, rest)) is not None:
        return refusal
    base = server.base(where.era, where.session)
    if type_ in ("resource", "template"):
        return _located(server, where, type_, exposed, rest)
    key = None if base is None else base.by_name.get((type_, exposed))
    if key is not None:
        return _switched(server, where, type_, key)
    unknown = _unknown(type_, exposed, server.name)
    return Awaited((server.name,), unknown) if base is None else unknown


def _located(server: Server, where: Where, type_: CapabilityType, exposed: str, own: str) -> Resolved:
    """A URI of that server: a listed one, one that a client normalised, one of a template, or one not listed."""
    base = server.base(where.era, where.session)
    if base is None:
        return Awaited((server.name,), _unknown(type_, exposed, server.name))
    if type_ == "template" and own not in base.by_type["template"]:
        return _referred(server, where, exposed, own)
    return _switched(server, where, type_, _listed_key(server, where, type_, own, exposed) or own)


def _referred(server: Server, where: Where, exposed: str, own: str) -> Target | Refusal:
    """A completion may refer to a resource by its URI too: one that is listed, or comes from a template."""
    listed = _listed_key(server, where, "resource", own, exposed)
    if listed is None and not list(_templating([server], where, "resource", own)):
        return _unknown("template", exposed, server.name)
    return _switched(server, where, "resource", listed or own)


def _listed_key(server: Server, where: Where, type_: CapabilityType, own: str, exposed: str = "") -> str | None:
    base = server.base(where.era, where.session)
    if base is None or own in base.by_type[type_]:
        return own if base is not None else None
    if type_ != "resource":
        return None
    for uri in (own, exposed):
        key = base.by_uri.get(names.normalised_uri(uri)) if uri else None
        if key is not None:
            return key
    return None


def _closed(server: Server, where: Where, key: str) -> Refusal | None:
    if not where.narrowing.server(server.name):
        text = f"server '{server.name}' is outside the scope of this client or endpoint"
        return Refusal(errors.DENIED, text, server.name, key)
    if not server.on:
        text = f"server '{server.name}' is disabled; enable it with: coffer mcp enable {server.name}"
        return Refusal(errors.SERVER_DISABLED, text, server.name, key)
    return None


def _switched(server: Server, where: Where, type_: CapabilityType, key: str) -> Target | Refusal:
    """The target, unless it is switched off, or outside the group."""
    shown = type_
    if type_ == "resource":
        shown, judged = _judge(server, where, key)
    else:
        judged = key
    noun = _NOUN[shown]
    if not server.enabled(shown, judged):
        command = f"coffer mcp {_COMMAND[shown]} {server.name} --enable {shlex.quote(judged)}"
        text = f"{noun} '{judged}' of server '{server.name}' is disabled; enable it with: {command}"
        return Refusal(errors.CAPABILITY_DISABLED, text, server.name, key)
    if not where.narrowing.entry(server.name, shown, judged):
        text = f"{noun} '{judged}' of server '{server.name}' is outside the scope of this endpoint"
        return Refusal(errors.DENIED, text, server.name, key)
    return Target(server.name, type_, key)


def _judge(server: Server, where: Where, uri: str) -> tuple[CapabilityType, str]:
    """Whose switch decides about a URI: its own, or that of the template it comes from."""
    base = server.base(where.era, where.session)
    if base is None or uri in base.by_type["resource"] or ("resource", uri) in server.choices:
        return "resource", uri
    templates = [t for t in base.by_type["template"] if uritemplate.matches(t, uri)]
    best = next((t for t in templates if server.enabled("template", t)), None)
    if best is None and templates:
        best = templates[0]
    return ("resource", uri) if best is None else ("template", best)


# ---- no server named


def _bare(servers: Servers, where: Where, type_: CapabilityType, name: str) -> Resolved:
    """An unprefixed name: good where exactly one upstream lists it, or else has a matching template."""
    open_ = [s for s in servers.values() if s.on and where.narrowing.server(s.name)]
    unknown = _unknown(type_, name, None)
    for candidates in (list(_listing(open_, where, type_, name)), list(_templating(open_, where, type_, name))):
        good = [found for found in candidates if isinstance(found, Target)]
        if len(good) == 1:
            return good[0]
        if len(good) > 1:
            owners = ", ".join(sorted(target.server for target in good))
            text = f"{_NOUN[type_]} '{name}' is offered by several servers ({owners}); use its prefixed name"
            return Refusal(errors.AMBIGUOUS, text, None, name, {"servers": sorted(t.server for t in good)})
        if candidates:
            return candidates[0]
    waiting = tuple(sorted(s.name for s in open_ if s.waiting and s.base(where.era, where.session) is None))
    return Awaited(waiting, unknown) if waiting else unknown


def _listing(servers: Iterable[Server], where: Where, type_: CapabilityType, name: str) -> Iterable[Target | Refusal]:
    for server in servers:
        key = _listed_key(server, where, type_, name)
        if key is not None:
            yield _switched(server, where, type_, key)


def _templating(servers: Iterable[Server], where: Where, type_: CapabilityType, uri: str) -> Iterable[Target | Refusal]:
    if type_ != "resource":
        return
    for server in servers:
        base = server.base(where.era, where.session)
        if base is not None and any(uritemplate.matches(t, uri) for t in base.by_type["template"]):
            yield _switched(server, where, type_, uri)


# ---- refusals


def _invalid(message: str) -> Refusal:
    return Refusal(errors.INVALID_PARAMS, message)


def _unknown(type_: CapabilityType, name: str, server: str | None) -> Refusal:
    reason = errors.UNKNOWN_RESOURCE if type_ == "resource" else errors.UNKNOWN_CAPABILITY
    of = "any server offers" if server is None else f"server '{server}' offers"
    data = {"uri": name} if type_ == "resource" else None
    return Refusal(reason, f"unknown {_NOUN[type_]}: nothing that {of} is named '{name}'", server, name, data)
