"""Waiting for what a server does by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.contract.talking import SECONDS, Answer, Api

Obj = dict[str, Any]
PAUSE = 0.02


def established(api: Api, path: str) -> Obj:
    """A definition once its kind is served."""
    deadline = time.monotonic() + SECONDS
    while True:
        answer = api.get(path, quiet=True)
        conditions = answer.body.get("status", {}).get("conditions") or []
        if any(one["type"] == "Established" and one["status"] == "True" for one in conditions):
            return answer.body
        assert time.monotonic() < deadline, answer.text
        time.sleep(PAUSE)


def until(holds: Callable[[], object]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(PAUSE)


def reached(api: Api, path: str, status: int, **query: Any) -> Answer:
    """The answer once it has this status."""
    deadline = time.monotonic() + SECONDS
    while True:
        answer = api.get(path, quiet=True, **query)
        if answer.status == status:
            return answer
        assert time.monotonic() < deadline, answer.text
        time.sleep(PAUSE)


def permitted(api: Api, path: str, *, user: str) -> None:
    """Wait until somebody's new permission is known to the server."""
    deadline = time.monotonic() + SECONDS
    while api.get(path, user=user, quiet=True).status == 403:
        assert time.monotonic() < deadline, path
        time.sleep(PAUSE)
