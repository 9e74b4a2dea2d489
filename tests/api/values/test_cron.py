"""Cron schedules: which parse, why others do not, and their next time."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api.values.cron import InvalidSchedule, parse_schedule, schedule_error

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("@every 90s", 90), ("@every 1h30m", 5400), ("@every 10ms", 1), ("@every -1h", 1)],
)
def test_intervals(text: str, seconds: int) -> None:
    """An interval is at least a second, also if it is negative."""
    due = parse_schedule(text).next(NOON)
    assert due is not None
    assert (due - NOON).total_seconds() == seconds


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty spec string"),
        ("* * * *", "expected exactly 5 fields"),
        ("60 * * * *", "above maximum (59) in minute"),
        ("*/0 * * * *", "step of range should be a positive number in minute"),
        ("1-2-3 * * * *", "too many hyphens"),
        ("@sometimes", "unrecognized descriptor: @sometimes"),
        ("@every 5x", "failed to parse duration @every 5x"),
        ("TZ=Nowhere/Here * * * * *", "provided bad location"),
        (f"{'9' * 5000} * * * *", "failed to parse a number"),
    ],
)
def test_an_invalid_schedule_says_why(text: str, why: str) -> None:
    """A text that does not parse is refused with the reason that validation shows."""
    assert why in schedule_error(text)
    with pytest.raises(InvalidSchedule):
        parse_schedule(text)


@given(st.text(alphabet="0123456789*/-,?@ joTZ=every", max_size=30))
def test_every_text_parses_or_is_refused(text: str) -> None:
    """Any text is a schedule or is refused with a reason, and raises nothing else."""
    if not schedule_error(text):
        due = parse_schedule(text).next(NOON)
        assert due is None or due > NOON
