"""The name server against CoreDNS: the same cluster, the same questions, one core each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.sheet import Sheet
    from benchmarks.table import Table


def _late(module: str, function: str) -> Iterator[Sheet | Table]:
    sheets: Iterable[Sheet | Table] = getattr(import_module(f"benchmarks.dns.{module}"), function)()
    yield from sheets


BENCHMARKS = {
    "answers": lambda: _late("contest", "answers"),
    "latency": lambda: _late("contest", "latency"),
    "changes": lambda: _late("changes", "changes"),
    "soak": lambda: _late("changes", "soak"),
    "locators": lambda: _late("locators", "locators"),
}
