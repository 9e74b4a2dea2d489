"""How a caller waits: for the answer that a call comes to, and for a condition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from zonewise.csi.errors import Code, CsiError

UNSURE = (Code.ABORTED, Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)


async def settled(call: Any) -> Any:
    """What a call comes to in the end; who is told to ask again does."""
    while True:
        try:
            return await call()
        except CsiError as error:
            if error.code not in UNSURE:
                raise
            await asyncio.sleep(0.05)


async def until(reached: Callable[[], bool]) -> None:
    """Wait for a condition."""
    while not reached():  # noqa: ASYNC110
        await asyncio.sleep(0.1)
