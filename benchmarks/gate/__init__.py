"""What it costs to ask whether a pod may be disrupted."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.sheet import Sheet
    from benchmarks.table import Table


def _decisions() -> Iterator[Table]:
    yield from import_module("benchmarks.gate.decide").decisions()


def _evictions() -> Iterator[Sheet]:
    yield from import_module("benchmarks.gate.evict").evictions()


BENCHMARKS = {"decisions": _decisions, "evictions": _evictions}
