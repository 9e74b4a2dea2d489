"""Whole numbers in text that others wrote.

Python's ``int()`` takes more than a number of an API does: digits of other scripts, underscores and
spaces; and it fails, as if the text were no number, on more than 4,300 digits.
"""

from __future__ import annotations

_DIGITS = 20


def natural(text: str) -> int | None:
    """The number of up to 64 bits that decimal digits are; None for anything else."""
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0")
    if len(digits) > _DIGITS:
        return None
    number = int(digits or "0")
    return number if number < 2**64 else None


def integer(text: str, bits: int) -> int | None:
    """The number of so many bits, with or without a sign; None for anything else."""
    number = natural(text[1:] if text[:1] in ("+", "-") else text)
    if number is None:
        return None
    number = -number if text[0] == "-" else number
    return number if -(1 << bits - 1) <= number < 1 << bits - 1 else None
