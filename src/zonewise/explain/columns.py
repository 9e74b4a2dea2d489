"""Tables of text: columns as wide as what is in them, numbers to the right, nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from zonewise.api.values.printable import escape_unprintable

GAP = "  "


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "") -> list[str]:
    """The lines of a table; ``right`` has an ``r`` at the place of each column of numbers.

    Cells hold words of others: they are measured as they are shown.
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
