"""Numbers and percentages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zonewise.api.values.int_or_percent import portion


@given(st.integers(0, 200), st.integers(0, 2000))
def test_a_percentage_is_rounded_to_the_asked_side(percent: int, whole: int) -> None:
    """Up is the smallest whole number that is not below it, down the largest not above."""
    up = portion(f"{percent}%", whole, up=True)
    down = portion(f"{percent}%", whole, up=False)
    assert 100 * (up - 1) < percent * whole <= 100 * up
    assert 100 * down <= percent * whole < 100 * (down + 1)


@given(st.integers(), st.integers(0, 2000), st.booleans())
def test_a_number_is_itself(number: int, whole: int, up: bool) -> None:
    """What is no percentage does not depend on the whole."""
    assert portion(number, whole, up=up) == number
