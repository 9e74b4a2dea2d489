"""Waiting: for the final answer of a call that may be retried, and for a condition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from zonewise.csi.errors import Code, CsiError

UNSURE = (Code.ABORTED, Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)


async def settled(call: Any) -> Any:
    """The final answer of a call, which is repeated while its error asks for a retry."""
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
