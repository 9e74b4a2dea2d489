"""Quantities: exact values, and the texts an API server stores.

Values and texts in the tables are the answers of Kubernetes 1.36.4's own parser to the same input.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from zonewise.api import ParseError, Quantity
from zonewise.api.values import quantity
from zonewise.api.values.quantity import Family

F = Fraction
NANO = Fraction(1, 10**9)

CANONICAL = [
    ("0.5", F(1, 2), "500m"),
    (".5", F(1, 2), "500m"),
    ("1.5", F(3, 2), "1500m"),
    ("100m", F(1, 10), "100m"),
    ("1000m", F(1), "1"),
    ("1k", F(1000), "1k"),
    ("1000k", F(10**6), "1M"),
    ("1000", F(1000), "1k"),
    ("1024", F(1024), "1024"),
    ("1Gi", F(2**30), "1Gi"),
    ("1024Mi", F(2**30), "1Gi"),
    ("1000Mi", F(1000 * 2**20), "1000Mi"),
    ("2048Ki", F(2**21), "2Mi"),
    ("1.5Gi", F(3 * 2**29), "1536Mi"),
    ("0.5Ki", F(512), "512"),
    ("1.1Ki", F(11264, 10), "1126400m"),
    ("-1.5Ki", F(-1536), "-1536"),
    ("1.5Ei", F(3 * 2**59), "1536Pi"),
    ("1e3", F(1000), "1e3"),
    ("1E3", F(1000), "1E3"),
    ("1e4", F(10**4), "10e3"),
    ("100e1", F(1000), "1e3"),
    ("1e2", F(100), "100"),
    ("1.2e3", F(1200), "1200"),
    ("1.5e-3", F(3, 2000), "1500e-6"),
    ("1e-9", NANO, "1e-9"),
    ("1E", F(10**18), "1E"),
    ("1Ei", F(2**60), "1Ei"),
    ("999E", F(999 * 10**18), "999E"),
    ("12e6", F(12 * 10**6), "12e6"),
    ("0", F(0), "0"),
    ("-0", F(0), "0"),
    ("0Ki", F(0), "0"),
    ("0.0e5", F(0), "0"),
    ("1.0", F(1), "1"),
    ("1.000", F(1), "1"),
    ("0.000001", F(1, 10**6), "1u"),
    ("3e38", F(3 * 10**38), "300e36"),
    ("18446744073709551616", F(2**64), "18446744073709551616"),
    # finer than nano: away from zero
    ("0.1n", NANO, "1n"),
    ("-0.1n", -NANO, "-1n"),
    ("1e-20", NANO, "1e-9"),
    ("1.0000000001", 1 + NANO, "1000000001n"),
    ("1.123456789123", F(1123456790, 10**9), "1123456790n"),
    # binary ends at 2^63 - 1
    ("8Ei", F(2**63 - 1), "9223372036854775807"),
    ("-9Ei", F(1 - 2**63), "-9223372036854775807"),
    # kept as written although not canonical
    ("1.500", F(3, 2), "1.500"),
    ("1.234", F(1234, 1000), "1.234"),
    ("+5", F(5), "+5"),
    ("00100m", F(1, 10), "00100m"),
    ("1.", F(1), "1."),
    ("1.G", F(10**9), "1.G"),
    ("1e+03", F(1000), "1e+03"),
    ("5E-0", F(5), "5E-0"),
    # but not these
    ("0.500", F(1, 2), "500m"),
    ("+1.5", F(3, 2), "1500m"),
    ("8Ki", F(8192), "8Ki"),
]


@pytest.mark.parametrize(("text", "value", "canonical"), CANONICAL)
def test_texts_are_read_and_stored_as_on_a_server(
    text: str, value: Fraction, canonical: str
) -> None:
    """A text has the same value and the same stored form as on a real API server."""
    assert quantity.value(text) == value
    assert quantity.canonical(text) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "-", "+", ".", "m", "-m", "e3", "1e", "1e1.5", "1Kii", "1K", "1ki", "1mi", "1g",
        "1 k", "1,5", "1_000", "0x10", "inf", "NaN", "1.2.3", "--1", "1-", "1e3Ki", "Ki", "½", "１",
        "1e1000", "1e-1000", "1e99999999999", "9" * 1001,
    ],
)  # fmt: skip
def test_invalid_quantities_are_refused(text: str) -> None:
    """A bad text, or one that would need gigabytes of digits, is a ParseError that says so."""
    with pytest.raises(ParseError, match="quantity"):
        quantity.parse(text)


def test_numbers_of_json_and_yaml_are_quantities() -> None:
    """A number without quotes means its decimal text."""
    assert quantity.value(2) == 2
    assert quantity.value(0.1) == F(1, 10)
    assert quantity.canonical(0.5) == "500m"
    assert quantity.value(1e22) == 10**22
    assert quantity.value(" 1Gi\n") == 2**30


@pytest.mark.parametrize("value", [True, None, float("nan"), float("inf"), [], 10**1000])
def test_other_values_are_no_quantities(value: Any) -> None:
    """Booleans, nulls and infinite numbers are refused."""
    with pytest.raises(ParseError):
        quantity.parse(value)


def test_cpu_is_counted_in_thousandths_rounded_up() -> None:
    """A request above zero is never rounded to zero."""
    assert quantity.milli("100m") == 100
    assert quantity.milli("1") == 1000
    assert quantity.milli("1n") == 1
    assert quantity.milli("-1n") == -1
    assert quantity.parse("1500").scaled(3) == 2
    assert quantity.parse("1.2").scaled() == 2


def test_above_the_largest_suffix_the_exponent_stays() -> None:
    """A decimal amount beyond E keeps its value in text, where Kubernetes 1.36 would lose it."""
    assert quantity.canonical("1000E") == "1e21"
    assert quantity.value("1e21") == quantity.value("1000E")


NUMBERS = st.fractions(min_value=-(10**20), max_value=10**20, max_denominator=10**9)
FAMILIES = st.sampled_from(Family)


@given(NUMBERS, FAMILIES)
def test_canonical_text_has_the_value(number: Fraction, family: Family) -> None:
    """Writing and reading a quantity changes nothing."""
    amount = Quantity(number, family)
    assert quantity.parse(str(amount)).value == amount.value


@given(NUMBERS, FAMILIES)
@example(Fraction(2_000_001_000), Family.BINARY)  # not one Ki in it: read back it is decimal
def test_canonical_text_is_its_own_canonical_text(number: Fraction, family: Family) -> None:
    """Canonical text is stable, and has no fraction."""
    text = quantity.canonical(str(Quantity(number, family)))
    assert quantity.canonical(text) == text
    assert "." not in text


@given(NUMBERS)
def test_rounding_goes_to_the_nano_away_from_zero(number: Fraction) -> None:
    """A value is exact down to the nano, and never gets smaller by rounding."""
    value = Quantity(number).value
    nanos = number * 10**9
    assert value * 10**9 == (ceil(nanos) if number > 0 else floor(nanos))


@given(st.integers(-(10**12), 10**12), st.sampled_from("numkMGTPE"))
def test_suffixes_are_powers_of_a_thousand(number: int, suffix: str) -> None:
    """Each decimal suffix is a thousand times the one before."""
    expected = number * F(1000) ** ("num-kMGTPE".index(suffix) - 3)
    assert quantity.value(f"{number}{suffix}") == expected


@given(st.integers(-1000, 1000), st.integers(1, 6))
def test_binary_suffixes_are_powers_of_1024(number: int, power: int) -> None:
    """Each binary suffix is 1,024 times the one before, up to the end of 64 bits."""
    expected = number * 1024**power
    assume(abs(expected) < 2**63)
    assert quantity.value(f"{number}{'KMGTPE'[power - 1]}i") == expected


@given(st.lists(NUMBERS, max_size=8))
def test_sums_are_exact_whatever_the_order(numbers: list[Fraction]) -> None:
    """Adding up requests gives the same in any order, because nothing is a float."""
    texts = [str(Quantity(number)) for number in numbers]
    forward = sum((quantity.value(text) for text in texts), F(0))
    backward = sum((quantity.value(text) for text in reversed(texts)), F(0))
    assert forward == backward == sum((Quantity(number).value for number in numbers), F(0))


@given(st.text(max_size=20))
def test_any_text_is_a_quantity_or_a_parse_error(text: str) -> None:
    """No text makes the parser raise another exception."""
    try:
        quantity.canonical(text)
    except ParseError:
        return
