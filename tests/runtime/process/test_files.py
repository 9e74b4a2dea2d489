"""The limit of open files is raised as far as the system allows."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from zonewise.runtime.process.process import ENOUGH, raise_file_limit

NONE = resource.RLIM_INFINITY


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """The limits of this process, as a list whose last entry is in force."""
    pairs: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: pairs[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: pairs.append(pair))
    yield pairs


@pytest.mark.parametrize(
    ("before", "after", "files"),
    [
        ((1024, 524_288), (ENOUGH, 524_288), ENOUGH),
        ((1024, 4096), (4096, 4096), 4096),
        ((1024, NONE), (ENOUGH, NONE), ENOUGH),
        ((1024, 1024), (1024, 1024), 1024),
        ((20_000, 20_000), (20_000, 20_000), 20_000),
        ((NONE, NONE), (NONE, NONE), ENOUGH),
    ],
)
def test_the_limit_is_raised_and_never_lowered(
    limits: list[tuple[int, int]], before: tuple[int, int], after: tuple[int, int], files: int
) -> None:
    """The limit of open files is raised to what the system allows or a program can use."""
    limits.append(before)
    assert raise_file_limit() == files
    assert limits[-1] == after
