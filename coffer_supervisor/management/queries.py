"""The query parameters of the management API, each with its schema.

Owns their names and what they take, for the description of the API. Never reads one: the handlers do.
"""

from dataclasses import dataclass
from typing import Any, Final, get_args

from coffer_common.frames import CapabilityType
from coffer_common.resources import KINDS
from coffer_supervisor.store.invocations import Status


@dataclass(frozen=True, slots=True)
class Query:
    """One parameter; ``schema`` is JSON Schema."""

    name: str
    schema: dict[str, Any]
    description: str


def _text(name: str, description: str) -> Query:
    return Query(name, {"type": "string"}, description)


def _word(name: str, words: tuple[str, ...], description: str) -> Query:
    return Query(name, {"type": "string", "enum": list(words)}, description)


def _number(name: str, most: int, default: int | None, description: str, least: int = 1) -> Query:
    schema: dict[str, Any] = {"type": "integer", "minimum": least, "maximum": most}
    return Query(name, schema if default is None else {**schema, "default": default}, description)


_RFC3339: Final = r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})"
_MOMENT: Final = {"type": "string", "pattern": rf"^(\d{{1,9}}[smhdw]|{_RFC3339})$"}
_MOST_ID: Final = 2**62
_SINCE: Final = Query(
    "since", _MOMENT, "From then on: RFC 3339 with a time zone, or a span back from now (30m, 24h, 7d)."
)
_UNTIL: Final = Query("until", _MOMENT, "Before then: RFC 3339 with a time zone, or a span back from now.")
_PAGE: Final = (
    _SINCE,
    _UNTIL,
    _number("before", _MOST_ID, None, "Only rows with a smaller id: the last id of one page brings the next."),
    _number(
        "after", _MOST_ID, None, "Only rows with a larger id, the oldest of them first to count: for following.", 0
    ),
    _number("limit", 1000, 100, "At most so many rows."),
)
_SERVER: Final = _text("server", "Of one server.")

FORCE_WORDS: Final = ("1", "true")
INVOCATION_TYPES: Final = ("tool", "resource", "prompt")

CAPABILITIES: Final = (_word("type", get_args(CapabilityType), "Of one type."),)
RESOURCES: Final = (_word("kind", KINDS, "Of one kind."),)
FORCE: Final = (_word("force", FORCE_WORDS, "Remove a credential although a server refers to it."),)
LOG_LINES: Final = (
    _number("lines", 10_000, 100, "How many of the last lines."),
    _number("after", _MOST_ID, 0, "Only whole lines that came since an answer with this `end`.", 0),
)
LOGIN: Final = (_number("wait", 30, 0, "Seconds to wait for its end.", 0),)
EVENT_LOGS: Final = ("invocations", "audit", "all")

EVENTS: Final = (
    _word("logs", EVENT_LOGS, "Tell of new rows of a log too: `invocation` and `audit` events."),
    _text("server_log", "Tell of new lines of that server's log too: `log` events."),
)
AUDIT: Final = (
    _text("kind", "Of one kind of resource."),
    _text("name", "Of one name."),
    _text("event", "Of one event, for example resource.created."),
    _text("actor", "Of one actor: cli, api, ui or system."),
    *_PAGE,
)
SERVER_INVOCATIONS: Final = (
    _word("type", INVOCATION_TYPES, "Of one type."),
    _text("key", "Of one tool, resource or prompt, by the upstream's own name."),
    _word("status", get_args(Status), "With one outcome."),
    _text("session", "Of one session."),
    _text("client", "Of one client, by its name."),
    _text("trace_id", "With one trace id."),
    *_PAGE,
)
INVOCATIONS: Final = (_SERVER, *SERVER_INVOCATIONS)
STATS: Final = (_SERVER, _SINCE)
