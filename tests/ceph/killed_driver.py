"""A driver that dies in the middle of a call, after the step that a test names."""

from __future__ import annotations

from typing import Any

import pytest
from tests.ceph.scene import CephCaller


class Killed(BaseException):
    """The driver dies here: nothing more is done, and nothing is undone."""


def let_die(patch: pytest.MonkeyPatch, caller: CephCaller, step: str) -> None:
    """Let the driver die after the first step of this name; ``answer`` comes after all steps."""
    storage = caller.storage
    target: Any = storage.journal
    if step in ("make", "remove"):
        target = storage.backend
    elif step == "answer":
        return
    real = getattr(target, step)

    def dying(*given: Any, **more: Any) -> Any:
        real(*given, **more)
        raise Killed

    patch.setattr(target, step, dying)
