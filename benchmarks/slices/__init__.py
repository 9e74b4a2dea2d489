"""The slice planner against Kubernetes' own reconciler: the same events, writes and CPU time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.sheet import Sheet


def _late(function: str) -> Iterator[Sheet]:
    sheets: Iterable[Sheet] = getattr(import_module("benchmarks.slices.contest"), function)()
    yield from sheets


BENCHMARKS = {
    "writes": lambda: _late("writes"),
    "turns": lambda: _late("turns"),
    "nodes": lambda: _late("nodes"),
}
