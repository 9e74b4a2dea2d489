"""Waiting for what a server does by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.contract.talking import SECONDS, Answer, Api

Obj = dict[str, Any]
PAUSE = 0.02


def wait_until_established(api: Api, path: str) -> Obj:
    """Wait until the kind of a definition is served; gives the definition."""
    deadline = time.monotonic() + SECONDS
    while True:
        answer = api.get(path, quiet=True)
        conditions = answer.body.get("status", {}).get("conditions") or []
        if any(
            condition["type"] == "Established" and condition["status"] == "True"
            for condition in conditions
        ):
            return answer.body
        assert time.monotonic() < deadline, answer.text
        time.sleep(PAUSE)


def until(holds: Callable[[], object]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(PAUSE)


def wait_for_status(api: Api, path: str, status: int, **query: Any) -> Answer:
    """Repeat a GET until its answer has this status."""
    deadline = time.monotonic() + SECONDS
    while True:
        answer = api.get(path, quiet=True, **query)
        if answer.status == status:
            return answer
        assert time.monotonic() < deadline, answer.text
        time.sleep(PAUSE)


def wait_until_permitted(api: Api, path: str, *, user: str) -> None:
    """Wait until the server knows a new permission of a user."""
    deadline = time.monotonic() + SECONDS
    while api.get(path, user=user, quiet=True).status == 403:
        assert time.monotonic() < deadline, path
        time.sleep(PAUSE)
