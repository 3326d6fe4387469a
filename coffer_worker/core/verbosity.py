"""Log levels: which is more, and which message a wish for one lets through.

Owns the order of levels. Never sends anything. Source: MCP, Logging, Log Levels (those of RFC 5424).
"""

from typing import Final

from coffer_worker.core import splice

LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_RANK: Final = {level: rank for rank, level in enumerate(LEVELS)}


def changes(now: str, wanted: str, *, shared: bool) -> bool:
    """Whether an upstream that logs at ``now`` (empty: nobody told it) is to be told ``wanted``; where it is
    ``shared``, the most verbose wish counts."""
    if wanted not in _RANK or wanted == now:
        return False
    return not (shared and now in _RANK and _RANK[now] < _RANK[wanted])


def passes(params: bytes, wanted: str) -> bool:
    """Whether a ``notifications/message`` is for someone who wants ``wanted`` and above (empty: nothing). A message
    of a level that is none passes: nobody can say that it is too little."""
    if wanted not in _RANK:
        return False
    try:
        level = splice.text(splice.members(params).get("level"))
    except ValueError:
        return True
    return _RANK.get(level or "", len(LEVELS)) >= _RANK[wanted]
