"""Many rows with two contestants each: ours, the real one, and how many times better ours is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Line:
    """One number of each contestant at one task."""

    name: str
    unit: str
    ours: float
    real: float
    higher_is_better: bool = False

    @property
    def advantage(self) -> float:
        """How many times better ours is; above 1 is ahead."""
        better, worse = (self.ours, self.real) if self.higher_is_better else (self.real, self.ours)
        return better / worse if worse else 0.0


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """Lines under one title."""

    title: str
    lines: tuple[Line, ...]
    note: str = ""
    goal: float = 1.0
    peer: str = "real"

    def plain(self) -> dict[str, Any]:
        """For machines."""
        lines = [{**asdict(line), "advantage": line.advantage} for line in self.lines]
        return {"title": self.title, "lines": lines, "note": self.note, "goal": self.goal}

    def text(self) -> str:
        """For people."""
        width = max(len(line.name) for line in self.lines)
        rows = [self.title, f"   {'':<{width}} {'ours':>12} {self.peer[:12]:>12}"]
        for line in self.lines:
            mark = " " if line.advantage >= self.goal else "!"
            rows.append(
                f" {mark} {line.name:<{width}} {line.ours:>12,.1f} {line.real:>12,.1f}"
                f" {line.unit:<11} {line.advantage:6.2f} x"
            )
        behind = sum(line.advantage < self.goal for line in self.lines)
        verdict = f"{behind} behind" if behind else "reached"
        rows.append(f"   goal, {self.goal:g} x or more on every row: {verdict}")
        if self.note:
            rows.append(f"   {self.note}")
        return "\n".join(rows)
