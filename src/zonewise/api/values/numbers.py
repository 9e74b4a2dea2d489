"""Whole numbers in text that others wrote, and percentages.

Python's ``int()`` accepts more than a number of an API: digits of other scripts, underscores and
spaces. It also fails, as if the text were not a number, on more than 4,300 digits.
"""

from __future__ import annotations

from zonewise.api.meta import IntOrString

_MAX_DIGITS = 20


def parse_natural(text: str) -> int | None:
    """The number of up to 64 bits that decimal digits are; None for anything else."""
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0")
    if len(digits) > _MAX_DIGITS:
        return None
    number = int(digits or "0")
    return number if number < 2**64 else None


def parse_integer(text: str, bits: int) -> int | None:
    """The number of so many bits, with or without a sign; None for anything else."""
    number = parse_natural(text[1:] if text[:1] in ("+", "-") else text)
    if number is None:
        return None
    number = -number if text[0] == "-" else number
    return number if -(1 << bits - 1) <= number < 1 << bits - 1 else None


def scale_int_or_percent(value: IntOrString, total: int, *, round_up: bool) -> int:
    """A number as it is; a percentage of the total, rounded up or down."""
    if isinstance(value, int):
        return value
    hundredfold = int(value.removesuffix("%")) * total
    return -(-hundredfold // 100) if round_up else hundredfold // 100
