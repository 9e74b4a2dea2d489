"""Numbers that may be written as a part of something: 3, or 25 %."""

from __future__ import annotations

from zonewise.api.meta import IntOrString


def portion(value: IntOrString, whole: int, *, up: bool) -> int:
    """A number as it is; a percentage of the whole, rounded up or down."""
    if isinstance(value, int):
        return value
    hundredfold = int(value.removesuffix("%")) * whole
    return -(-hundredfold // 100) if up else hundredfold // 100
