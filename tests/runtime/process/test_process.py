"""A program's life: signals, crashes, bounded stops. Real signals, virtual or no time."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from zonewise.api.errors import ConfigError, ConnectionFailed
from zonewise.runtime.process.process import ABANDON, Process, supervise

pytestmark = pytest.mark.looptime


async def test_a_main_that_returns_ends_the_program() -> None:
    """A program whose work is done exits with 0 and leaves no task behind."""
    background = asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            background.set()

    async def main(process: Process) -> None:
        process.spawn(endless(), name="background")
        await asyncio.sleep(1)

    assert await supervise(main) == 0
    assert background.is_set()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_main_leave_in_good_order(number: signal.Signals) -> None:
    """The first signal sets stopping and makes the program unready; main ends by itself."""
    seen: list[object] = []

    async def main(process: Process) -> None:
        assert process.problem() == "the program is still starting"
        process.ready = True
        seen.append((process.ready, process.problem()))
        os.kill(os.getpid(), number)
        await process.stopping.wait()
        seen.append((process.ready, process.problem()))
        await asyncio.sleep(5)
        seen.append(process.reason)

    assert await supervise(main) == 0
    why = f"received {number.name}"
    assert seen == [(True, None), (False, f"the program stops: {why}"), why]


async def test_work_ends_with_the_program_and_cleans_up() -> None:
    """Work is cancelled at the stop and waited for, and its failures are raised."""
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(4)
            ended.append("cleaned up")

    async def main(process: Process) -> None:
        asyncio.get_running_loop().call_later(3, process.stop, "enough")
        await process.until_stop(work())
        ended.append("main")

    assert await supervise(main) == 0
    assert ended == ["cleaned up", "main"]

    async def broken(process: Process) -> None:
        await process.until_stop(asyncio.sleep(1))
        await process.until_stop(refuse())

    async def refuse() -> None:
        raise ConfigError("no")

    with pytest.raises(ConfigError, match="no"):
        await supervise(broken)


async def test_a_main_that_does_not_stop_is_cut_off() -> None:
    """After the grace period main is cancelled, and the program still ends in order."""
    loop = asyncio.get_running_loop()

    async def main(process: Process) -> None:
        process.stop("enough")
        await asyncio.Event().wait()

    begin = loop.time()
    assert await supervise(main, grace=7) == 0
    assert loop.time() - begin == 7


async def test_a_main_that_ignores_cancellation_is_left_behind() -> None:
    """A main that swallows its cancellation cannot keep the program alive."""
    release = asyncio.Event()

    async def main(process: Process) -> None:
        process.stop("enough")
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    loop = asyncio.get_running_loop()
    begin = loop.time()
    try:
        assert await supervise(main, grace=3) == 0
        assert loop.time() - begin == 3 + ABANDON
    finally:
        release.set()


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ValueError("boom"), "watcher crashed: ValueError: boom"),
        (ConnectionFailed("no answer from x"), "watcher failed: no answer from x"),
    ],
)
async def test_a_crashed_part_stops_the_program(error: Exception, sentence: str) -> None:
    """One failing background task ends the program with exit code 1 and an error message."""
    reasons: list[str] = []

    async def broken() -> None:
        await asyncio.sleep(1)
        raise error

    async def main(process: Process) -> None:
        process.spawn(broken(), name="watcher")
        await process.stopping.wait()
        reasons.append(process.reason)

    assert await supervise(main) == 1
    assert reasons == [sentence]


async def test_an_endless_part_may_not_return() -> None:
    """A part that returns is a crash, unless it is declared to end."""

    async def brief() -> None:
        await asyncio.sleep(1)

    async def patient(process: Process) -> None:
        process.spawn(brief(), name="brief", endless=False)
        await asyncio.sleep(5)
        assert not process.stopping.is_set()

    async def deserted(process: Process) -> None:
        process.spawn(brief(), name="brief")
        await process.stopping.wait()

    assert await supervise(patient) == 0
    assert await supervise(deserted) == 1


async def test_parts_end_in_reverse_order() -> None:
    """Parts end in reverse order of their start."""
    ended: list[str] = []

    async def part(name: str, seconds: float) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(seconds)
            ended.append(name)

    async def main(process: Process) -> None:
        process.spawn(part("transport", 0), name="transport")
        process.spawn(part("recorder", 3), name="recorder")
        await asyncio.sleep(1)

    assert await supervise(main) == 0
    assert ended == ["recorder", "transport"]


async def test_resources_of_parts_are_closed_after_them() -> None:
    """Parts end before the resources around ``parts`` are closed, whether main returns or fails,
    and a part that is cancelled for that is not a crash.
    """
    ended: list[str] = []

    async def part() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(3)
            ended.append("part")

    @asynccontextmanager
    async def opened() -> AsyncIterator[None]:
        try:
            yield
        finally:
            ended.append("client")

    async def main(process: Process) -> None:
        async with opened(), process.parts():
            process.spawn(part(), name="part")
            await asyncio.sleep(1)

    async def failing(process: Process) -> None:
        async with opened(), process.parts():
            process.spawn(part(), name="part")
            await asyncio.sleep(1)
            raise ConfigError("wrong")

    assert await supervise(main) == 0
    with pytest.raises(ConfigError):
        await supervise(failing)
    assert ended == ["part", "client"] * 2


async def test_parts_that_can_stop_are_asked_to() -> None:
    """A part with a stop may finish; one that does not end in time is cancelled."""
    ended: list[str] = []
    stopping = asyncio.Event()

    async def polite() -> None:
        await stopping.wait()
        await asyncio.sleep(5)
        ended.append("finished")

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def main(process: Process) -> None:
        process.spawn(stubborn(), name="stubborn", stop=lambda: None)
        process.spawn(polite(), name="polite", stop=stopping.set)
        await asyncio.sleep(1)

    loop = asyncio.get_running_loop()
    begin = loop.time()
    assert await supervise(main, grace=8) == 0
    assert ended == ["finished", "cancelled"] and loop.time() - begin == 9


async def test_exceptions_of_main_reach_the_caller() -> None:
    """An exception of main reaches the caller: the command line turns it into an exit code."""

    async def main(process: Process) -> None:
        raise ConfigError("no such context")

    with pytest.raises(ConfigError, match="no such context"):
        await supervise(main)


PROGRAM = """
import asyncio
from zonewise.runtime.process.process import run

async def main(process):
    print("up", flush=True)
    await process.stopping.wait()
    print("stopping", flush=True)
    await asyncio.Event().wait()

raise SystemExit(run(main, grace=600))
"""


@pytest.mark.system
def test_a_second_signal_ends_the_program_at_once() -> None:
    """A second Ctrl-C does not wait for a graceful stop."""
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline() == "up\n"
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "stopping\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 128 + signal.SIGTERM
        assert child.stderr.read() == "SIGTERM again: leaving at once\n"
