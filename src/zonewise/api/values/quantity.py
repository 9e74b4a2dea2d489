"""Exact quantities: ``100m``, ``0.5``, ``1k``, ``1Gi``, ``1e3``.

A quantity is a fraction and the family of suffixes it was written in. Nothing is ever a float.
As on an API server

* a value is kept down to the nano; what is finer is rounded away from zero, so that a request for
  something never becomes a request for nothing;
* binary quantities end at 2^63 - 1, decimal ones do not end;
* ``str()`` is the canonical text: no fraction, the largest suffix that fits, in the family of
  suffixes it was written in. Binary text is used for whole numbers from 1,024 to its end; a sum
  beyond is written in decimal, so that it is read back as the same value.

An API server has a shortcut that sends some texts back unchanged although they are not canonical
(``1.500``, ``+5``, ``00100m``; but ``1.5`` becomes ``1500m``). ``canonical()`` does the same, so
that an object is stored byte for byte as a real server stores it.

Two deliberate differences. Text without any digit (``-``, ``.``, ``m``), which an API server reads
as zero, is refused here. Above ``E`` there is no decimal suffix; Kubernetes 1.36 then drops the
exponent (``1000E`` becomes ``1``), here and in later versions it is kept as ``1e21``.

Bounded: at most ``TEXT_LIMIT`` characters and exponents up to ``EXPONENT_LIMIT``, since ten
characters could otherwise ask for gigabytes of digits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import lru_cache

from zonewise.api.errors import ParseError
from zonewise.api.meta import QuantityText

TEXT_LIMIT = 1000
EXPONENT_LIMIT = 999
BINARY_LIMIT = 2**63 - 1

_TEXT = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>\d*)(?:\.(?P<part>\d*))?"
    r"(?:(?P<binary>[KMGTPE]i)|(?P<decimal>[numkMGTPE])|[eE](?P<exponent>[+-]?\d+))?",
    re.ASCII,
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"": 0, "Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL_SUFFIX = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY_SUFFIX = {exponent: suffix for suffix, exponent in _BINARY.items()}


class Family(Enum):
    """The suffixes a quantity is written with."""

    DECIMAL = "decimal"  # n u m k M G T P E
    BINARY = "binary"  # Ki Mi Gi Ti Pi Ei
    EXPONENT = "exponent"  # e3


@dataclass(frozen=True, slots=True)
class Quantity:
    """An exact amount; ``str()`` is its canonical text."""

    value: Fraction
    family: Family = Family.DECIMAL

    def __post_init__(self) -> None:
        nanos = self.value * 10**9
        if nanos.denominator != 1:
            object.__setattr__(self, "value", Fraction(_away_from_zero(nanos), 10**9))

    def __str__(self) -> str:
        value = self.value
        whole = value.denominator == 1 and 1024 <= abs(value) <= BINARY_LIMIT
        if self.family is Family.BINARY and whole:
            number, power = value.numerator, 0
            while power < 6 and number % 1024 == 0:
                number //= 1024
                power += 1
            return f"{number}{_BINARY_SUFFIX[power]}"
        return self._decimal_text()

    def _decimal_text(self) -> str:
        if not self.value:
            return "0"
        number, exponent = self.value.numerator * 10**9 // self.value.denominator, -9
        while number % 1000 == 0:
            number //= 1000
            exponent += 3
        if exponent == 0:
            return str(number)
        if self.family is Family.EXPONENT or exponent not in _DECIMAL_SUFFIX:
            return f"{number}e{exponent}"
        return f"{number}{_DECIMAL_SUFFIX[exponent]}"

    def scaled(self, exponent: int = 0) -> int:
        """The whole number of 10^exponent, rounded away from zero: ``scaled(-3)`` is millis."""
        return _away_from_zero(self.value / Fraction(10) ** exponent)


def parse(text: QuantityText) -> Quantity:
    """Parse a text, or a number in JSON or YAML."""
    return _parse(_to_text(text))[0]


def value(text: QuantityText) -> Fraction:
    """The exact amount, without its family: what decisions calculate with."""
    return _parse(_to_text(text))[0].value


def milli(text: QuantityText) -> int:
    """Thousandths, rounded up: how CPU is counted."""
    return parse(text).scaled(-3)


def canonical(text: QuantityText) -> str:
    """The text as an API server stores it."""
    return _parse(_to_text(text))[1]


def _to_text(quantity: QuantityText) -> str:
    if isinstance(quantity, str):
        return quantity
    if isinstance(quantity, bool) or not isinstance(quantity, int | float):
        raise ParseError(f"not a quantity: {quantity!r}")
    if isinstance(quantity, int) and abs(quantity) >= 10**TEXT_LIMIT:
        raise ParseError(f"quantity has more than {TEXT_LIMIT} digits")
    return repr(quantity)


@lru_cache(maxsize=8192)
def _parse(text: str) -> tuple[Quantity, str]:
    """Cached: a cluster has thousands of pods and a handful of different requests."""
    text = text.strip()
    if len(text) > TEXT_LIMIT:
        raise ParseError(f"quantity is longer than {TEXT_LIMIT} characters: {text[:32]!r}…")
    match = _TEXT.fullmatch(text)
    if match is None or not (match["whole"] or match["part"]):
        raise ParseError(
            f"not a quantity: {text[:64]!r}: a quantity is a number with one of the suffixes"
            " n u m k M G T P E Ki Mi Gi Ti Pi Ei or an exponent such as e3"
        )
    whole, part = match["whole"].lstrip("0") or "0", match["part"] or ""
    digits = int(whole + part)
    if match["binary"]:
        power = 10 * _BINARY[match["binary"]]
        part_of = Fraction(digits << power, 10 ** len(part))
        result = _binary_quantity(part_of, negative=match["sign"] == "-")
        is_verbatim = not part and digits % 8 != 0 and 14 - len(whole) - power * 3 // 10 >= 0
        return result, text if is_verbatim else str(result)
    if match["exponent"]:
        exponent, family = int(match["exponent"]), Family.EXPONENT
        if abs(exponent) > EXPONENT_LIMIT:
            raise ParseError(f"quantity {text[:64]!r}: the exponent is beyond {EXPONENT_LIMIT}")
    else:
        exponent, family = _DECIMAL[match["decimal"] or ""], Family.DECIMAL
    scale = exponent - len(part)
    amount = digits * Fraction(10) ** scale
    result = Quantity(-amount if match["sign"] == "-" else amount, family)
    digits_text = whole + part
    is_verbatim = (
        len(digits_text) <= 18
        and scale >= -9
        and scale % 3 == 0
        and digits_text[0] != "0"
        and not digits_text.endswith("000")
    )
    return result, text if is_verbatim else str(result)


def _binary_quantity(amount: Fraction, *, negative: bool) -> Quantity:
    capped = Quantity(min(amount, Fraction(BINARY_LIMIT)), Family.BINARY).value
    family = Family.DECIMAL if 0 < capped < 1 else Family.BINARY
    return Quantity(-capped if negative else capped, family)


def _away_from_zero(number: Fraction) -> int:
    size = -(-abs(number.numerator) // number.denominator)
    return size if number >= 0 else -size
