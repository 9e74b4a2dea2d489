"""The living cluster against a real control plane with kwok: from nothing to all pods Ready."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.cluster.writes import WriteCounts
    from benchmarks.sheet import Sheet


def _late(module: str, function: str) -> Iterator[Sheet | WriteCounts]:
    sheets: Iterable[Sheet | WriteCounts] = getattr(
        import_module(f"benchmarks.cluster.{module}"), function
    )()
    yield from sheets


BENCHMARKS = {
    "small": lambda: _late("contest", "small"),
    "large": lambda: _late("contest", "large"),
    "writes": lambda: _late("writes", "small_writes"),
}
