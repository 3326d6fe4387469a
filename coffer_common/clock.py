"""Wall-clock times as Coffer writes them. Never used for a deadline: those are ``time.monotonic()``."""

from datetime import UTC, datetime


def now() -> datetime:
    """The present moment, aware, in UTC."""
    return datetime.now(UTC)


def rfc3339(moment: datetime) -> str:
    """``2026-05-20T12:34:56Z``: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_millis(moment: datetime) -> str:
    """``2026-05-20T12:34:56.123Z``: UTC, milliseconds, for logs and rows that are put in order."""
    moment = moment.astimezone(UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def now_rfc3339() -> str:
    """The present moment as ``rfc3339``."""
    return rfc3339(now())


def now_rfc3339_millis() -> str:
    """The present moment as ``rfc3339_millis``."""
    return rfc3339_millis(now())


def parse_rfc3339(text: str) -> datetime:
    """The moment that ``text`` names, aware. Raises ValueError for what is no RFC 3339 time."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} names no time zone")
    return moment.astimezone(UTC)
