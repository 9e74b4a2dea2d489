"""Tables of text: columns as wide as their widest cell, numbers to the right. And percentages."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from zonewise.api.values.printable import escape_unprintable

GAP = "  "


def format_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = ""
) -> list[str]:
    """The lines of a table; ``right`` has an ``r`` at the index of each column of numbers.

    Cells may contain unprintable characters of foreign objects, which are escaped first.
    """
    rows = [[escape_unprintable(cell) for cell in row] for row in rows]
    sides = right.ljust(len(heads))
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return [
        GAP.join(
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(line, widths, sides, strict=True)
        ).rstrip()
        for line in (heads, *rows)
    ]


def format_percent(exact: Fraction | None) -> str:
    """A part of a whole, ``-`` if there is none."""
    return "-" if exact is None else f"{float(round(exact * 100, 1)):.1f} %"
