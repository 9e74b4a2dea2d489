"""Side by side with CoreDNS 1.15 (kubernetes plugin, ``cache 30``), loaded by dnsperf.

Answers for each second of processor time, read from the kernel, are what a core gives; on a machine
with little room wall-clock rates say more of the load generator. The contestants take turns, and of
several rounds the median counts. Latency is taken at an equal rate that neither fills a core with.
CoreDNS has no near answers; there ours, which look at the asker's place, stand against its plain
answers of the same size.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.dns.scene import SERVICES, Contestant, scene
from benchmarks.sheet import Line, Sheet

SECONDS = 4
ROUNDS = 5
RATE = 4000
TASKS = {
    "ClusterIP A": ("cip", "A", "cip"),
    "headless A x 10": ("hl", "A", "hl"),
    "headless SRV x 10": ("hl", "SRV", "hl"),
    "near A, 10 of 30": ("near", "A", "hl"),
    "near SRV, 10 of 30": ("near", "SRV", "hl"),
}
_TICKS = os.sysconf("SC_CLK_TCK")
_DONE = re.compile(r"Queries completed:\s+(\d+)")
_LOST = re.compile(r"Queries lost:\s+(\d+)")


def answers() -> Iterator[Sheet]:
    """Answers for each second of processor time."""
    yield asyncio.run(_answers())


def latency() -> Iterator[Sheet]:
    """How long the slowest percent waits at an equal rate."""
    yield asyncio.run(_latency())


async def _answers() -> Sheet:
    lines = []
    async with scene() as (_, ours, theirs):
        for task, (kind, record, their_kind) in TASKS.items():
            rates: dict[str, list[float]] = {ours.name: [], theirs.name: []}
            for number in range(ROUNDS + 1):
                for contestant, name in ((ours, kind), (theirs, their_kind)):
                    rate = await _load(contestant, name, record)
                    if number:
                        rates[contestant.name].append(rate)
            lines.append(
                Line(
                    name=task,
                    unit="answers/CPU s",
                    ours=statistics.median(rates[ours.name]),
                    real=statistics.median(rates[theirs.name]),
                    higher_is_better=True,
                )
            )
    return Sheet(title="DNS: answers per second of processor time", lines=tuple(lines), goal=2.0)


async def _latency() -> Sheet:
    lines = []
    async with scene() as (_, ours, theirs):
        for task, (kind, record, their_kind) in TASKS.items():
            latencies: dict[str, list[float]] = {ours.name: [], theirs.name: []}
            for number in range(ROUNDS + 1):
                for contestant, name in ((ours, kind), (theirs, their_kind)):
                    slow = await slowest(contestant, name, record)
                    if number:
                        latencies[contestant.name].append(slow)
            lines.append(
                Line(
                    name=task,
                    unit="ms",
                    ours=statistics.median(latencies[ours.name]),
                    real=statistics.median(latencies[theirs.name]),
                )
            )
    return Sheet(title=f"DNS: p99 at {RATE} questions a second", lines=tuple(lines))


async def _load(contestant: Contestant, kind: str, record: str) -> float:
    before = _processor(contestant.pid)
    text = await dnsperf(contestant.port, kind, record, "-q", "200")
    used = _processor(contestant.pid) - before
    return number_in(_DONE, text) / used


async def slowest(contestant: Contestant, kind: str, record: str) -> float:
    """How long the slowest percent waits, in milliseconds."""
    text = await dnsperf(contestant.port, kind, record, "-v", "-Q", str(RATE))
    times = sorted(
        float(line.split()[-1]) for line in text.splitlines() if line.startswith("> NOERROR")
    )
    return times[int(len(times) * 0.99)] * 1000


async def dnsperf(port: int, kind: str, record: str, *more: str, lossless: bool = True) -> str:
    """What dnsperf says of a load of questions, with EDNS so that nothing is cut off.

    None may be lost, unless somebody else counts them.
    """
    if shutil.which("dnsperf") is None:
        raise RuntimeError("dnsperf makes the load; install it: apt-get install dnsperf")
    with tempfile.TemporaryDirectory(prefix="zonewise-dnsperf-") as folder:
        questions = Path(folder) / "questions"
        questions.write_text(
            "".join(
                f"{kind}-{number}.load.svc.cluster.local {record}\n"
                for number in range(SERVICES)
                if _kind(number) == kind
            )
        )
        process = await asyncio.create_subprocess_exec(
            *("dnsperf", "-s", "127.0.0.1", "-p", str(port), "-d", str(questions), "-e"),
            *("-l", str(SECONDS), "-c", "4", *more),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        out, _ = await process.communicate()
    text = out.decode()
    if lossless and number_in(_LOST, text):
        raise RuntimeError(f"{number_in(_LOST, text):.0f} questions were lost")
    return text


def _kind(number: int) -> str:
    return ("cip", "hl", "near")[number % 3]


def number_in(pattern: re.Pattern[str], text: str) -> float:
    """A number in the output of dnsperf."""
    matched = pattern.search(text)
    if matched is None:
        raise RuntimeError(f"dnsperf said: {text[-500:]}")
    return float(matched[1])


def _processor(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
