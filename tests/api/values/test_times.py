"""Times on the wire, read liberally and written exactly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api import ParseError
from zonewise.api.values import times


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05.678901Z", datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)),
        ("2026-01-02T03:04:05.1Z", datetime(2026, 1, 2, 3, 4, 5, 100000, tzinfo=UTC)),
        ("2026-01-02T03:04:05.123456789Z", datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)),
        ("2026-01-02T05:04:05+02:00", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-01T21:34:05-05:30", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
def test_times_are_read(text: str, moment: datetime) -> None:
    """Seconds, fractions of any length and offsets give a moment in UTC."""
    assert times.parse(text) == moment
    assert times.parse(text).tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-01-02",
        "2026-01-02 03:04:05Z",
        "2026-01-02T03:04:05",
        "2026-13-02T03:04:05Z",
        "2026-02-30T03:04:05Z",
        "2026-01-02T24:04:05Z",
        "2026-01-02T03:04:60Z",
        "2026-01-02T03:04:05+24:00",
        "2026-01-02T03:04:05+01:60",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "2026-01-02T03:04:05Z ",
        "٢٠٢٦-01-02T03:04:05Z",
    ],
)
def test_invalid_times_are_refused(text: str) -> None:
    """A text that is not a time is a ParseError that quotes it."""
    with pytest.raises(ParseError, match="time"):
        times.parse(text)


def test_times_are_written_as_a_server_demands_them() -> None:
    """Time has whole seconds, MicroTime exactly six digits, both are UTC."""
    moment = datetime(2026, 1, 2, 5, 4, 5, 70, tzinfo=timezone(timedelta(hours=2)))
    assert times.format_time(moment) == "2026-01-02T03:04:05Z"
    assert times.format_micro(moment) == "2026-01-02T03:04:05.000070Z"
    assert times.format_micro(datetime(5, 1, 1, tzinfo=UTC)) == "0005-01-01T00:00:00.000000Z"


def test_a_time_without_a_zone_is_refused() -> None:
    """A naive datetime is a mistake of the caller."""
    with pytest.raises(ParseError, match="without a zone"):
        times.format_time(datetime(2026, 1, 2))


def test_seconds_since_1970_are_a_moment() -> None:
    """Seconds of a clock become a time, to the microsecond."""
    assert times.format_micro(times.from_epoch(1.5)) == "1970-01-01T00:00:01.500000Z"


MOMENTS = st.datetimes(timezones=st.just(UTC))


@given(MOMENTS)
def test_micro_times_survive_the_wire(moment: datetime) -> None:
    """Every microsecond of the calendar is the same after writing and reading."""
    assert times.parse(times.format_micro(moment)) == moment


@given(MOMENTS)
def test_times_lose_only_their_fraction(moment: datetime) -> None:
    """Whole seconds are what is left after writing and reading a Time."""
    assert times.parse(times.format_time(moment)) == moment.replace(microsecond=0)


@given(MOMENTS, MOMENTS)
def test_written_times_sort_like_moments(first: datetime, second: datetime) -> None:
    """Text in this form can be compared without parsing it."""
    assert (times.format_micro(first) < times.format_micro(second)) == (first < second)
