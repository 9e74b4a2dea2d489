"""A small shop to look at: workloads of every kind, and a Service in each topology mode."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from zonewise.runtime import dump


def shop() -> list[dict[str, Any]]:
    """The objects of the shop, in the namespace ``shop``."""
    text = files(__name__).joinpath("shop.yaml").read_bytes()
    return [entry.value for entry in dump.parse(text, "shop.yaml") if isinstance(entry.value, dict)]
