"""Data folders after a crash, and their expected content."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from tests.embedded.apiserver.objects import KIND, contents, put

from zonewise.embedded.apiserver.store.entry import WatchEventType
from zonewise.embedded.apiserver.store.limits import StoreLimits
from zonewise.embedded.apiserver.store.state import State


@dataclass(frozen=True)
class Stored:
    """The content of a state: its objects, its version and the stream of its history."""

    objects: dict[str, bytes]
    rv: int
    stream: bytes


def read_state(state: State) -> Stored:
    """The current content of a state."""
    return Stored(
        contents(state),
        state.visible_rv,
        state.watch(KIND, since=state.floor).poll() or b"",
    )


def copy(source: Path, target: Path) -> Path:
    """Copy the files as a killed process would leave them."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


async def reopened(path: Path) -> Stored:
    """The content of a state after a restart; a write and another restart must work, too."""
    state = State.open(path, clock=time.monotonic, inline=True)
    image = read_state(state)
    await put(state, "after", value="restart")
    later = read_state(state)
    await state.close()
    again = State.open(path, clock=time.monotonic, inline=True)
    assert read_state(again) == later
    await again.close()
    return image


async def fill(state: State, rounds: int, *, seed: int = 0, size: int = 300) -> None:
    """Some additions, changes and deletions, in commits of several writes."""
    rng = random.Random(seed)
    for number in range(rounds):
        names = rng.sample(range(12), 3)
        await asyncio.gather(
            *(
                put(
                    state,
                    f"n{n}",
                    _kind(state, f"n{n}", rng),
                    value=f"{number}." + "x" * rng.randrange(size),
                )
                for n in names
            )
        )


def _kind(state: State, name: str, rng: random.Random) -> WatchEventType:
    if state.latest(KIND, "default", name) is None:
        return "ADDED"
    return "DELETED" if rng.random() < 0.2 else "MODIFIED"


SMALL = StoreLimits(history_events=30, waste_bytes=2000, compact_bytes=3000)
"""Limits that a test can reach."""
