"""The scheduler as a function: what a decision costs with kept state and from scratch."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.table import Table


def _late() -> Iterator[Table]:
    yield from import_module("benchmarks.scheduling.decide").decisions()


BENCHMARKS = {"decide": _late}
