"""What it costs to decide and to judge hints, by mode."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.table import Table


def _decisions() -> Iterator[Table]:
    yield from import_module("benchmarks.traffic.modes").decisions()


def _weights() -> Iterator[Table]:
    yield from import_module("benchmarks.traffic.modes").weights()


def _judged() -> Iterator[Table]:
    yield from import_module("benchmarks.traffic.modes").judged()


BENCHMARKS = {"decisions": _decisions, "weights": _weights, "judged": _judged}
