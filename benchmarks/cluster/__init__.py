"""The living cluster against a real control plane with kwok: from nothing to all pods Ready."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.sheet import Sheet


def _late(function: str) -> Iterator[Sheet]:
    sheets: Iterable[Sheet] = getattr(import_module("benchmarks.cluster.contest"), function)()
    yield from sheets


BENCHMARKS = {
    "small": lambda: _late("small"),
    "large": lambda: _late("large"),
}
