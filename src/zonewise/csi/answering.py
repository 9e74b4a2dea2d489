"""One request to several clusters: the answers of those that respond."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from zonewise.csi.status import CsiError

T = TypeVar("T")


def answered(
    asked: Mapping[str, Callable[[], T]], away: dict[str, CsiError] | None = None
) -> dict[str, T]:
    """The answers by cluster; raises if none answers. ``away`` gets those that do not, and why."""
    found: dict[str, T] = {}
    failed: dict[str, CsiError] = {}
    for name, ask in asked.items():
        try:
            found[name] = ask()
        except CsiError as error:
            failed[name] = error
    if failed and not found:
        raise next(iter(failed.values()))
    if away is not None:
        away |= failed
    return found
