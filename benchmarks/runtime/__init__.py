"""The client against the client libraries people use: list and index, watch, memory, queue.

Contestants run as processes of this package, so it imports nothing before a benchmark starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.table import Table


def _late(module: str, function: str) -> Iterator[Table]:
    tables: Iterable[Table] = getattr(import_module(f"benchmarks.runtime.{module}"), function)()
    yield from tables


BENCHMARKS = {
    "list": lambda: _late("contest", "list_and_index"),
    "watch": lambda: _late("contest", "watch_large"),
    "watch-small": lambda: _late("contest", "watch_small"),
    "queue": lambda: _late("queue", "add_and_take"),
}
