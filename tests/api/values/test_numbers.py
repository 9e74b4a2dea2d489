"""Whole numbers in text: what an API takes for one, and nothing else that Python would."""

from __future__ import annotations

import pytest

from zonewise.api.objects.pod_state import parse_deletion_cost
from zonewise.api.values.numbers import integer, natural

LONG = "9" * 5000
NONE = ("", "-", "+", " 1", "1\n", "1_0", "²", "١", "0x1", "1.0", LONG)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("007", 7),
        ("0" * 5000 + "1", 1),
        (str(2**64 - 1), 2**64 - 1),
        (str(2**64), None),
        ("+1", None),
        *((one, None) for one in NONE),
    ],
)
def test_a_natural_number_is_digits_of_64_bits(text: str, number: int | None) -> None:
    """However long the text is; digits of other scripts and underscores are none."""
    assert natural(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("+5", 5),
        ("-05", -5),
        ("-2147483648", -(2**31)),
        ("2147483647", 2**31 - 1),
        ("2147483648", None),
        ("--1", None),
        *((one, None) for one in NONE),
    ],
)
def test_an_integer_has_a_sign_and_so_many_bits(text: str, number: int | None) -> None:
    """What does not fit is none, as for ``strconv.ParseInt``."""
    assert integer(text, 32) == number


@pytest.mark.parametrize(
    ("text", "cost"),
    [("0", 0), ("10", 10), ("-1", -1), ("-01", -1), ("01", None), ("+1", None), (LONG, None)],
)
def test_a_deletion_cost_has_no_plus_and_no_zeros_in_front(text: str, cost: int | None) -> None:
    """A minus sign may be followed by zeros, as in Kubernetes."""
    assert parse_deletion_cost(text) == cost
