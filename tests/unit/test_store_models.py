"""Times as they are stored: exact, and the same moment whatever zone they came in."""

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from coffer_supervisor.store.models import from_micros, to_micros

ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
MOMENTS = st.datetimes(datetime(1971, 1, 1), datetime(2999, 1, 1), timezones=ZONES)


@given(MOMENTS)
def test_a_stored_time_is_the_same_moment_in_utc(when: datetime) -> None:
    """Times are kept in UTC to the microsecond."""
    back = from_micros(to_micros(when))
    assert back == when
    assert back.tzinfo is UTC


def test_the_unit_is_a_microsecond() -> None:
    """Other programs may read the table: integers since 1970, in microseconds."""
    assert to_micros(datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)) == 1_000_005
