"""A program that writes to a state until it is killed, and says what it was told.

Arguments: the data folder, the number of writers, the version to watch from, how many writes each
writer makes (0: endless). Each line it prints is one system call, made after the write it tells of
was acknowledged: ``ack KEY VERSION VALUE``, or ``saw VERSION`` for an event of the watch.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from itertools import count
from pathlib import Path

from tests.embedded.objects import KIND, configmap, frames

from zonewise.embedded.limits import Limits
from zonewise.embedded.state import State

LIMITS = Limits(history_events=100_000, history_age=1e9)


def tell(line: str) -> None:
    """Print one line in one system call."""
    os.write(1, line.encode() + b"\n")


async def write(state: State, writer: int, rounds: int) -> None:
    """Change two objects over and over."""
    for number in count():
        if rounds and number == rounds:
            return
        name = f"w{writer}-{number % 2}"
        value = f"{os.getpid()}.{number}"
        before = state.latest(KIND, "default", name)
        entry = await state.write(
            KIND,
            "default",
            name,
            "MODIFIED" if before else "ADDED",
            configmap(name, value=value),
            expect=before,
        )
        tell(f"ack {name} {entry.rv} {value}")


async def watch(state: State, since: int) -> None:
    """Tell every event."""
    watcher = state.watch(KIND, since=since)
    while (chunk := await watcher.next()) is not None:
        for _, _, rv in frames(chunk):
            tell(f"saw {rv}")


async def main() -> None:
    """Write until killed, or until done."""
    folder, writers, since, rounds = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    state = State.open(folder, clock=time.monotonic, limits=LIMITS)
    watching = asyncio.create_task(watch(state, since))
    await asyncio.gather(*(write(state, number, rounds) for number in range(writers)))
    await asyncio.sleep(0)
    await state.close()
    await watching


if __name__ == "__main__":
    asyncio.run(main())
