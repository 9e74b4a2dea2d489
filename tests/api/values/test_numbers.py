"""Whole numbers in text as Go reads them, which is stricter than Python, and percentages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api.objects.pod_state import parse_deletion_cost
from zonewise.api.values.numbers import parse_integer, parse_natural, scale_int_or_percent

LONG = "9" * 5000
INVALID = ("", "-", "+", " 1", "1\n", "1_0", "²", "١", "0x1", "1.0", LONG)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("007", 7),
        ("0" * 5000 + "1", 1),
        (str(2**64 - 1), 2**64 - 1),
        (str(2**64), None),
        ("+1", None),
        *((text, None) for text in INVALID),
    ],
)
def test_a_natural_number_is_digits_of_64_bits(text: str, number: int | None) -> None:
    """Digits of other scripts and underscores are refused, and so is a number that is too long."""
    assert parse_natural(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("+5", 5),
        ("-05", -5),
        ("-2147483648", -(2**31)),
        ("2147483647", 2**31 - 1),
        ("2147483648", None),
        ("--1", None),
        *((text, None) for text in INVALID),
    ],
)
def test_an_integer_has_a_sign_and_a_number_of_bits(text: str, number: int | None) -> None:
    """A number that does not fit is None, as for ``strconv.ParseInt``."""
    assert parse_integer(text, 32) == number


@pytest.mark.parametrize(
    ("text", "cost"),
    [("0", 0), ("10", 10), ("-1", -1), ("-01", -1), ("01", None), ("+1", None), (LONG, None)],
)
def test_a_deletion_cost_has_no_plus_and_no_zeros_in_front(text: str, cost: int | None) -> None:
    """A deletion cost has no plus and no leading zeros; zeros may follow a minus sign."""
    assert parse_deletion_cost(text) == cost


@given(st.integers(0, 200), st.integers(0, 2000))
def test_a_percentage_is_rounded_to_the_requested_side(percent: int, total: int) -> None:
    """Rounded up, a percentage is the next whole number not below it; down, the last not above."""
    up = scale_int_or_percent(f"{percent}%", total, round_up=True)
    down = scale_int_or_percent(f"{percent}%", total, round_up=False)
    assert 100 * (up - 1) < percent * total <= 100 * up
    assert 100 * down <= percent * total < 100 * (down + 1)


@given(st.integers(), st.integers(0, 2000), st.booleans())
def test_a_number_is_itself(number: int, total: int, round_up: bool) -> None:
    """A number that is not a percentage does not depend on the total."""
    assert scale_int_or_percent(number, total, round_up=round_up) == number
