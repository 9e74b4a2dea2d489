"""What a benchmark gives back: rows with one number each, and a goal against the best peer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contestant; ``ours`` are compared with the best of the others."""

    name: str
    value: float
    ours: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """Contestants at one task.

    ``goal`` is how many times better than the best peer we want to be, always above or equal to 1
    where larger is better for us: "memory at most half" is a goal of 2.
    """

    title: str
    unit: str
    higher_is_better: bool
    rows: tuple[Row, ...]
    goal: float | None = None
    note: str = ""

    @property
    def best_peer(self) -> Row | None:
        """The peer to beat."""
        peers = [row for row in self.rows if not row.ours]
        if not peers:
            return None
        best = max if self.higher_is_better else min
        return best(peers, key=lambda row: row.value)

    def advantage(self, row: Row) -> float | None:
        """How many times better than the best peer a row is."""
        peer = self.best_peer
        if peer is None or not peer.value or not row.value:
            return None
        if self.higher_is_better:
            return row.value / peer.value
        return peer.value / row.value

    def plain(self) -> dict[str, Any]:
        """For machines."""
        rows = [{**asdict(row), "advantage": self.advantage(row)} for row in self.rows]
        return {**asdict(self), "rows": rows}

    def text(self) -> str:
        """For people."""
        order = sorted(self.rows, key=lambda row: row.value, reverse=self.higher_is_better)
        width = max(len(row.name) for row in order)
        lines = [self.title]
        for row in order:
            advantage = self.advantage(row)
            ratio = f"{advantage:6.2f} x" if advantage is not None else ""
            mark = "*" if row.ours else " "
            number = f"{row.value:>12,.1f} {self.unit:<12}"
            lines.append(f" {mark} {row.name:<{width}}  {number} {ratio}".rstrip())
        if self.goal is not None:
            reached = max((self.advantage(row) or 0.0 for row in self.rows if row.ours), default=0)
            verdict = "reached" if reached >= self.goal else "NOT reached"
            lines.append(f"   goal {self.goal:g} x the best peer: {verdict} ({reached:.2f} x)")
        if self.note:
            lines.append(f"   {self.note}")
        return "\n".join(lines)
