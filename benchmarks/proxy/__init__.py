"""Our proxy against kube-proxy in one kernel, and topology keys with and without all Nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.sheet import Sheet


def _late(services: int) -> Iterator[Sheet]:
    sheets: Iterable[Sheet] = import_module("benchmarks.proxy.contest").contest(services)
    yield from sheets


def _keyed() -> Iterator[Sheet]:
    sheets: Iterable[Sheet] = import_module("benchmarks.proxy.keyed").compare()
    yield from sheets


BENCHMARKS = {
    "2000": lambda: _late(2_000),
    "10000": lambda: _late(10_000),
    "keyed": _keyed,
}
