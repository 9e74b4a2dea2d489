"""One request to several clusters: the answers of those that respond."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from zonewise.csi.errors import CsiError

T = TypeVar("T")


def collect_answers(
    calls: Mapping[str, Callable[[], T]], unanswered: dict[str, CsiError] | None = None
) -> dict[str, T]:
    """The answers by cluster; raises if none answers. ``away`` gets those that do not, and why."""
    answers: dict[str, T] = {}
    failed: dict[str, CsiError] = {}
    for name, call in calls.items():
        try:
            answers[name] = call()
        except CsiError as error:
            failed[name] = error
    if failed and not answers:
        raise next(iter(failed.values()))
    if unanswered is not None:
        unanswered |= failed
    return answers
