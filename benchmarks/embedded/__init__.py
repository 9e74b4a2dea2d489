"""The embedded API server against kube-apiserver with etcd: writes, reads, fan-out, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.sheet import Sheet
    from benchmarks.table import Table


def _late(function: str) -> Iterator[Sheet]:
    sheets: Iterable[Sheet] = getattr(import_module("benchmarks.embedded.contest"), function)()
    yield from sheets


def _shortcuts() -> Iterator[Table]:
    tables: Iterable[Table] = import_module("benchmarks.embedded.shortcuts").shortcuts()
    yield from tables


BENCHMARKS: dict[str, Callable[[], Iterator[Sheet | Table]]] = {
    "writes": lambda: _late("writes"),
    "reads": lambda: _late("reads"),
    "lists": lambda: _late("lists"),
    "watch": lambda: _late("watch"),
    "memory": lambda: _late("memory"),
    "start": lambda: _late("start"),
    "shortcuts": _shortcuts,
}
