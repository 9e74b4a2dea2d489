"""The work queue against asyncio's own queue, which neither deduplicates nor delays."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from benchmarks.table import Row, Table
from zonewise.runtime.controller.queue import Queue

KEYS = [("namespace", f"name-{number}") for number in range(200_000)]
ROUNDS = 3


async def ours() -> tuple[float, float]:
    queue: Queue[tuple[str, str]] = Queue()
    begin = time.perf_counter()
    for key in KEYS:
        queue.add(key)
        queue.add(key)
    middle = time.perf_counter()
    for _ in KEYS:
        taken = await queue.get()
        assert taken is not None
        queue.done(taken)
    return middle - begin, time.perf_counter() - middle


async def plain() -> tuple[float, float]:
    queue: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    begin = time.perf_counter()
    for key in KEYS:
        queue.put_nowait(key)
        queue.put_nowait(key)
    middle = time.perf_counter()
    for _ in range(2 * len(KEYS)):
        await queue.get()
        queue.task_done()
    return middle - begin, (time.perf_counter() - middle) / 2


def add_and_take() -> Iterator[Table]:
    """Every key is added twice and taken once."""
    measured = {
        name: [asyncio.run(function()) for _ in range(ROUNDS)]
        for name, function in (("zonewise", ours), ("asyncio.Queue", plain))
    }
    for column, title in ((0, "queue, add"), (1, "queue, get and done")):
        count = 2 * len(KEYS) if column == 0 else len(KEYS)
        yield Table(
            title=title,
            unit="keys/s",
            higher_is_better=True,
            rows=tuple(
                Row(
                    name=name,
                    value=count / min(timing[column] for timing in results),
                    ours=name == "zonewise",
                )
                for name, results in measured.items()
            ),
        )
