"""Runs every contestant against the same server, one after the other, and compares."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.runtime.clients import CONTESTANTS
from benchmarks.table import Row, Table

ROUNDS = 3


@contextmanager
def serving() -> Iterator[str]:
    """The address of a server in a process of its own."""
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.runtime.server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    assert server.stdin is not None
    try:
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
    finally:
        server.stdin.close()
        server.wait(10)


def measure(name: str, task: str, url: str) -> dict[str, Any]:
    """One run of one contestant in a process of its own."""
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks.runtime.clients", name, task, url],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    result: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return result


def rounds(task: str) -> dict[str, list[dict[str, Any]]]:
    """Several rounds, so that a busy moment of the machine does not hit one contestant alone."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTESTANTS}
    with serving() as url:
        for _ in range(ROUNDS):
            for name, measured in results.items():
                measured.append(measure(name, task, url))
    return results


def rows(values: dict[str, float]) -> tuple[Row, ...]:
    return tuple(
        Row(name=name, value=value, ours=name.startswith("zonewise"))
        for name, value in values.items()
    )


STEADIER = "seconds of the client's own CPU, which a busy machine disturbs less than the clock"


def list_and_index() -> Iterator[Table]:
    """1,000 EndpointSlices of 100 endpoints (35 MB of JSON), by key, Service and node."""
    results = rounds("list")
    for key, title, note in (("times", "best run", ""), ("cpu", "CPU of the best run", STEADIER)):
        best = {
            name: min(min(run[key]) for run in measured) * 1000
            for name, measured in results.items()
        }
        yield Table(
            title=f"list + index, 1,000 EndpointSlices x 100 endpoints, {title}",
            unit="ms",
            higher_is_better=False,
            rows=rows(best),
            goal=4,
            note=note,
        )
    for key, title in (("held", "memory held afterwards"), ("peak", "memory at the peak")):
        least = {name: min(run[key] for run in measured) for name, measured in results.items()}
        yield Table(
            title=f"{title}, growth of the process over its start",
            unit="MB",
            higher_is_better=False,
            rows=rows(least),
            goal=2,
        )


def follow(endpoints: int) -> Iterator[Table]:
    results = rounds(str(endpoints))
    for key, unit, note in (("seconds", "events/s", ""), ("cpu", "events/CPU-s", STEADIER)):
        best = {
            name: max(run["events"] / run[key] for run in measured)
            for name, measured in results.items()
        }
        yield Table(
            title=f"watch, EndpointSlices x {endpoints} endpoints, best run",
            unit=unit,
            higher_is_better=True,
            rows=rows(best),
            goal=2.5,
            note=note,
        )


def watch_large() -> Iterator[Table]:
    """Events of 35 KB."""
    yield from follow(100)


def watch_small() -> Iterator[Table]:
    """Events of 5 KB."""
    yield from follow(10)
