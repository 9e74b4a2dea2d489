"""Alternates the contestants, task by task, and compares the medians of the rounds."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.embedded.load import Job
from benchmarks.embedded.servers import Contestant, ours, pair
from benchmarks.sheet import Line, Sheet
from tools import realkube

ROUNDS = int(os.environ.get("ZONEWISE_BENCH_ROUNDS", "3"))
PODS = 5_000
CONNECTIONS = (1, 16, 64)


@dataclass(frozen=True)
class Measured:
    """One round of one contestant; ``cpu`` in µs of processor time for each answer."""

    count: int
    rate: float
    p50: float
    p99: float
    cpu: float


def run(contestant: Contestant, job: Job) -> Measured:
    """One job in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.embedded.load"],
        input=json.dumps({"job": asdict(job), "server": asdict(contestant.server)}),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Measured(**json.loads(done.stdout))


def compare(both: tuple[Contestant, Contestant], name: str, job: Job, unit: str) -> Iterator[Line]:
    """Several rounds of one task, in turns."""
    rounds: dict[str, list[Measured]] = {server.name: [] for server in both}
    for turn in range(ROUNDS):
        prefix = f"{job.prefix}-{turn}" if job.task == "create" else job.prefix
        for contestant in both if turn % 2 == 0 else reversed(both):
            rounds[contestant.name].append(run(contestant, replace(job, prefix=prefix)))

    def line(title: str, what: str, of: Callable[[Measured], float], *, higher: bool) -> Line:
        middle = {
            name: statistics.median(of(measured) for measured in each)
            for name, each in rounds.items()
        }
        return Line(
            name=f"{name}{title}",
            unit=what,
            ours=middle["ours"],
            real=middle["real"],
            higher_is_better=higher,
        )

    yield line("", unit, lambda taken: taken.rate, higher=True)
    yield line(", p50", "ms", lambda taken: taken.p50, higher=False)
    yield line(", p99", "ms", lambda taken: taken.p99, higher=False)
    yield line(", processor time each", "µs", lambda taken: taken.cpu, higher=False)


def fill(contestant: Contestant, prefix: str, count: int) -> None:
    """Make the pods that others need."""
    run(contestant, Job(task="create", connections=16, count=count, pods=count, prefix=prefix))


def note() -> str:
    """How busy the machine was."""
    return f"{os.cpu_count()} processors, load average {os.getloadavg()[0]:.1f}, {ROUNDS} rounds"


def writes() -> Iterator[Sheet]:
    """create, PUT and merge patch of pods."""
    with pair() as both:
        for connections in CONNECTIONS:
            count = {1: 300, 16: 2000, 64: 3000}[connections]
            for task in ("create", "put", "patch"):
                prefix = f"{task}-{connections}"
                if task != "create":
                    for server in both:
                        fill(server, prefix, 500)

                job = Job(task, connections, count, 500, prefix)
                lines = tuple(compare(both, task, job, "requests/s"))
                yield Sheet(title=f"{task}, {connections} at once", lines=lines, note=note())


def reads() -> Iterator[Sheet]:
    """get of one pod of 5,000."""
    with pair() as both:
        for server in both:
            fill(server, "read", PODS)
        for connections in CONNECTIONS:
            count = {1: 1000, 16: 4000, 64: 4000}[connections]
            job = Job("get", connections, count, PODS, "read")
            lines = tuple(compare(both, "get", job, "requests/s"))
            yield Sheet(title=f"get, {connections} at once", lines=lines, note=note())


def lists() -> Iterator[Sheet]:
    """list of 5,000 pods."""
    with pair() as both:
        for server in both:
            fill(server, "read", PODS)
        for connections in CONNECTIONS:
            count = {1: 10, 16: 32, 64: 64}[connections]
            job = Job("list", connections, count, PODS, "read")
            lines = tuple(compare(both, "list", job, "requests/s"))
            yield Sheet(
                title=f"list of {PODS} pods, {connections} at once", lines=lines, note=note()
            )


def watch() -> Iterator[Sheet]:
    """One change after the other, seen by all."""
    with pair() as both:
        for server in both:
            fill(server, "watch", 1)
        for watchers, count in ((100, 100), (1000, 30)):
            job = Job("watch", watchers, count, 1, "watch")
            lines = tuple(compare(both, "event", job, "events/s"))
            yield Sheet(title=f"fan-out to {watchers} watchers", lines=lines, note=note())


def memory() -> Iterator[Sheet]:
    """What the processes occupy, empty and with pods."""
    with pair() as both:
        lines = [_memory(both, "after the start")]
        for server in both:
            fill(server, "memory", PODS)
        lines.append(_memory(both, f"with {PODS} pods"))
        for server in both:
            run(server, Job("list", 4, 16, PODS, "memory"))
        lines.append(_memory(both, f"after 16 lists of {PODS} pods"))
        yield Sheet(title="memory", lines=tuple(lines), note=note())


def _memory(both: tuple[Contestant, Contestant], name: str) -> Line:
    mine, theirs = (server.memory() for server in both)
    return Line(name=name, unit="MB", ours=mine, real=theirs)


def start() -> Iterator[Sheet]:
    """From nothing to serving, each with an empty folder."""
    taken: dict[str, list[float]] = {"ours": [], "real": []}
    settings = realkube.Settings(controllers=(), scheduler=False, fsync=True)
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory(prefix="zonewise-bench-") as name:
            begin = time.perf_counter()
            with ours(Path(name) / "ours"):
                taken["ours"].append(time.perf_counter() - begin)
            begin = time.perf_counter()
            with realkube.start(settings, folder=Path(name) / "real"):
                taken["real"].append(time.perf_counter() - begin)
    line = Line(
        name="from the command to serving",
        unit="s",
        ours=statistics.median(taken["ours"]),
        real=statistics.median(taken["real"]),
    )
    yield Sheet(title="start", lines=(line,), note=note())
