"""What a test may use of the machine: without the mark ``system``, only its own process.

``make quick`` runs the tests without that mark, so the mark has to be true. In every run, a test
without it

- fails if it, or a fixture that it uses, starts another process (an audit hook sees all of them);
- runs without the capabilities of root: whatever needs one is refused by the kernel, also where
  the tests run as root.

A fixture that is decorated with ``starts_programs`` gives the mark to all tests that use it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import pytest

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

PROCESS_EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.posix_spawn", "os.system"})
CAPABILITY_VERSION = 0x20080522
"""``_LINUX_CAPABILITY_VERSION_3``: two words of 32 bits per set."""

_libc = ctypes.CDLL(None, use_errno=True)
_started: list[str] = []
"""The programs that were started since the test, or the setup of a fixture, began."""
_fixtures: dict[Any, str] = {}
"""Fixtures that started a program when they were set up, and which."""


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def starts_programs(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A fixture that starts programs or needs root: tests that use it get the mark."""
    function.starts_programs = True  # type: ignore[attr-defined]
    return function


def mark_users(items: list[pytest.Item]) -> None:
    """Mark the tests that use such fixtures."""
    for item in items:
        if any(getattr(fixture.func, "starts_programs", False) for fixture in _fixtures_of(item)):
            item.add_marker(pytest.mark.system)


def listen() -> None:
    """Note from now on which programs are started."""
    sys.addaudithook(_note)


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event in PROCESS_EVENTS:
        _started.append(str(arguments[0]) if arguments else event)


@contextmanager
def fixture_set_up(fixture: Any) -> Iterator[None]:
    """Remember whether the setup of a fixture starts a program: its later users need it, too."""
    before = len(_started)
    yield
    if len(_started) > before:
        _fixtures[fixture] = _started[before]


@contextmanager
def only_its_own_process(item: pytest.Item) -> Iterator[None]:
    """Run a test without privileges, unless it is marked."""
    _started.clear()
    if item.get_closest_marker("system") or item.get_closest_marker("real"):
        yield
        return
    header, sets = _Header(CAPABILITY_VERSION, 0), (_Sets * 2)()
    _call(_libc.capget, header, sets)
    privileges = [part.effective for part in sets]
    for part in sets:
        part.effective = 0
    _call(_libc.capset, header, sets)
    try:
        yield
    finally:
        for part, effective in zip(sets, privileges, strict=True):
            part.effective = effective
        _call(_libc.capset, header, sets)


def check(item: pytest.Item) -> None:
    """Fail a test that started a program and is not marked."""
    if item.get_closest_marker("system") or item.get_closest_marker("real"):
        return
    programs = [
        *_started,
        *(_fixtures[fixture] for fixture in _fixtures_of(item) if fixture in _fixtures),
    ]
    if programs:
        pytest.fail(
            f"{item.name} starts {programs[0]}: mark it with pytest.mark.system, or its fixture"
            " with starts_programs",
            pytrace=False,
        )


def _fixtures_of(item: pytest.Item) -> Iterator[Any]:
    info = getattr(item, "_fixtureinfo", None)
    for definitions in info.name2fixturedefs.values() if info else ():
        yield from definitions


def _call(function: Any, header: _Header, sets: Any) -> None:
    if function(ctypes.byref(header), sets):
        raise OSError(ctypes.get_errno(), function.__name__)
