"""Completion indexes of Jobs: sets of numbers, written as ``0,2-4,7,8``."""

from __future__ import annotations

from collections.abc import Iterable

from zonewise.api.objects.pod import Pod
from zonewise.api.values.numbers import natural

INDEX = "batch.kubernetes.io/job-completion-index"


def parse(text: str | None, completions: int) -> frozenset[int]:
    """The indexes a text names, as far as they are below ``completions``; nonsense is left out."""
    found: set[int] = set()
    for part in (text or "").split(","):
        first, _, last = part.partition("-")
        start, end = natural(first), natural(last or first)
        if start is not None and end is not None:
            found.update(range(start, min(end + 1, completions)))
    return frozenset(found)


def text_of(indexes: Iterable[int]) -> str:
    """The text of indexes; neighbours are joined from three on."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(
        str(first) if first == last else f"{first}{',' if last == first + 1 else '-'}{last}"
        for first, last in runs
    )


def index_of(pod: Pod) -> int | None:
    """A pod's index, if it has one."""
    text = pod.metadata.annotations.get(INDEX, "")
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 19 else None
