"""The handshake of a legacy client, kept so that it can be done anew with the next daemon.

Owns the client's own ``initialize``, and what it set up since: subscriptions and log level. Never does I/O.
Source: MCP 2025-11-25, Lifecycle; MCP 2026-07-28, Subscriptions.
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import Raw

from coffer_cli.shim_lines import Key, key_of, member
from coffer_common import jsonrpc, protocol

KINDS: Final = ("tools", "resources", "prompts")
_REOPEN_ID: Final = "coffer-shim/initialize"
_REPEAT_ID: Final = "coffer-shim/repeat-"


@dataclass(slots=True)
class Session:
    """One legacy client's session, as it would have to be opened again."""

    params: Raw
    initialized: bytes = b""
    answered: bool = False
    revision: str = ""
    _capabilities: Raw = field(default_factory=lambda: Raw(b""))
    _subscriptions: dict[str, Raw] = field(default_factory=dict)
    _log_level: Raw | None = None
    _own: set[str] = field(default_factory=set)

    def note(self, method: str, params: Raw, result: Raw) -> None:
        """A request of the client succeeded."""
        if method == "initialize":
            self.answered = True
            self._capabilities = member(result, "capabilities").copy()
            self.revision = _text(member(result, "protocolVersion"))
            self.params = self.params.copy()  # else a slice keeps its whole line alive
        elif method == "logging/setLevel":
            self._log_level = params.copy()
        elif method == "resources/subscribe":
            self._subscriptions[_text(member(params, "uri"))] = params.copy()
        elif method == "resources/unsubscribe":
            self._subscriptions.pop(_text(member(params, "uri")), None)

    def reopen(self) -> bytes:
        """The client's own ``initialize`` under an id of the shim."""
        self._own = {_REOPEN_ID}
        return jsonrpc.request(_quoted(_REOPEN_ID), "initialize", bytes(self.params))

    def resume(self) -> list[bytes]:
        """What follows the handshake: ``initialized``, and what the client had set up."""
        lines = [self.initialized] if self.initialized else []
        repeats = [("resources/subscribe", params) for params in self._subscriptions.values()]
        if self._log_level is not None:
            repeats.insert(0, ("logging/setLevel", self._log_level))
        for number, (method, params) in enumerate(repeats):
            self._own.add(f"{_REPEAT_ID}{number}")
            lines.append(jsonrpc.request(_quoted(f"{_REPEAT_ID}{number}"), method, bytes(params)))
        return lines

    def list_changes(self) -> list[bytes]:
        """The notices that make the client read again what a new daemon may list differently."""
        return [
            jsonrpc.notification(f"notifications/{kind}/list_changed")
            for kind in KINDS
            if bytes(member(self._capabilities, kind, "listChanged")) == b"true"
        ]

    def owns(self, key: Key | None) -> bool:
        """Whether an answer is to a request of the shim's own."""
        return key is not None and key[1] in self._own

    def handled(self, key: Key | None) -> bool:
        """Takes such an answer off the list; True if it is the one to ``initialize``."""
        name = "" if key is None else str(key[1])
        self._own.discard(name)
        return name == _REOPEN_ID

    def closed(self) -> None:
        """The daemon is gone: nothing of the shim's own is answered any more."""
        self._own = set()


class Acknowledged(msgspec.Struct, rename="camel"):
    """What a daemon agreed to tell on a listen stream."""

    tools_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resource_subscriptions: list[str] | None = None


def acknowledged(params: Raw) -> Acknowledged:
    """The filter of an acknowledgement; an empty one where it is not understood."""
    try:
        return msgspec.json.decode(member(params, "notifications"), type=Acknowledged)
    except jsonrpc.UNREADABLE:
        return Acknowledged()


def changes(raw_id: bytes, agreed: Acknowledged) -> list[bytes]:
    """For the listen stream ``raw_id``, once re-opened: what it may have missed, as notices to read again."""
    meta = b'"_meta":{"' + protocol.META_SUBSCRIPTION_ID.encode() + b'":' + raw_id + b"}}"
    flags = (agreed.tools_list_changed, agreed.resources_list_changed, agreed.prompts_list_changed)
    lines = [
        jsonrpc.notification(f"notifications/{kind}/list_changed", b"{" + meta)
        for kind, wanted in zip(KINDS, flags, strict=True)
        if wanted
    ]
    for uri in agreed.resource_subscriptions or ():
        params = b'{"uri":' + msgspec.json.encode(uri) + b"," + meta
        lines.append(jsonrpc.notification("notifications/resources/updated", params))
    return lines


def _text(raw: Raw) -> str:
    key = key_of(raw)
    return str(key[1]) if key is not None else ""


def _quoted(text: str) -> bytes:
    return b'"' + text.encode() + b'"'
