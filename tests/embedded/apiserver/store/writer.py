"""A program that writes to a state until it is killed, and prints what was acknowledged.

Arguments: the data folder, the number of writers, the version to watch from, how many writes each
writer makes (0: endless), how many events the history keeps. Each line it prints is one system
call, made after the write it tells of was acknowledged: ``ack KEY VERSION VALUE``, or ``saw
VERSION`` for an event of the watch. It compacts the log as often as it can.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from itertools import count
from pathlib import Path

from tests.embedded.apiserver.objects import KIND, configmap, frames

from zonewise.embedded.apiserver.store.limits import StoreLimits
from zonewise.embedded.apiserver.store.state import State
from zonewise.embedded.apiserver.store.watchers import Watcher


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
            expected=before,
        )
        tell(f"ack {name} {entry.rv} {value}")


def tell_all(chunk: bytes) -> None:
    """Print every event of a chunk."""
    for _, _, rv in frames(chunk):
        tell(f"saw {rv}")


async def watch(watcher: Watcher) -> None:
    """Print every event."""
    while (chunk := await watcher.next()) is not None:
        tell_all(chunk)


async def main() -> None:
    """Write until killed, or until done."""
    writers, since, rounds, history = map(int, sys.argv[2:])
    limits = StoreLimits(history_events=history, waste_bytes=1, compact_bytes=1)
    state = State.open(Path(sys.argv[1]), clock=time.monotonic, limits=limits)
    watcher = state.watch(KIND, since=since)
    watching = asyncio.create_task(watch(watcher))
    await asyncio.gather(*(write(state, number, rounds) for number in range(writers)))
    watching.cancel()
    await asyncio.wait([watching])
    while chunk := watcher.poll():
        tell_all(chunk)
    await state.close()


if __name__ == "__main__":
    asyncio.run(main())
