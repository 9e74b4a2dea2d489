"""What one hostile or unlucky client costs everybody else.

Each attack is run twice in one run: a quiet client alone, and the same client while the attack goes
on. The ratio of the two is the number; ``--against REV`` shows it before and after a change.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.__main__ import Report


def _attack(name: str) -> Iterator[Report]:
    yield from import_module(f"benchmarks.attacks.{name}").attack()


def _budgets() -> Iterator[Report]:
    yield from _attack("budgets")


def _dns() -> Iterator[Report]:
    yield from _attack("dns")


def _proxy() -> Iterator[Report]:
    yield from _attack("proxy")


def _webhook() -> Iterator[Report]:
    yield from _attack("webhook")


BENCHMARKS = {"budgets": _budgets, "dns": _dns, "proxy": _proxy, "webhook": _webhook}
