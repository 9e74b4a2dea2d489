"""The same benchmarks on another revision of this repository, in turns with this one.

A change that should cost nothing is compared with the revision before it, on one machine in one
run: that revision, this one, this one, that revision, each in processes of its own, so that a
machine that is busier at first or at last slows both alike. Both run their own benchmarks with the
interpreter and the packages of this environment. What is compared are our numbers; the peer of a
benchmark runs beside each of them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.sheet import Line, Sheet

HERE = Path(__file__).resolve().parents[1]
NOISE = 0.9


@dataclass(frozen=True)
class Number:
    """One line of one benchmark: the value that each run measured."""

    unit: str
    higher_is_better: bool
    values: tuple[float, ...]


Numbers = dict[tuple[str, str], Number]


def compare_with(revision: str, name: str) -> Iterator[Sheet]:
    """The lines of a benchmark that both revisions have, with both revisions' numbers."""
    with tempfile.TemporaryDirectory(prefix="zonewise-against-") as folder:
        there = Path(folder)
        extract_revision(revision, there)
        runs: dict[Path, list[Numbers]] = {there: [], HERE: []}
        for tree in (there, HERE, HERE, there):
            runs[tree].append(read_numbers(run_benchmark(tree, name)))
    before, now = merge_numbers(runs[there]), merge_numbers(runs[HERE])
    for title in dict.fromkeys(title for title, _ in now):
        lines = tuple(
            Line(
                name=line,
                unit=now[title, line].unit,
                ours=statistics.median(now[title, line].values),
                real=statistics.median(before[title, line].values),
                higher_is_better=now[title, line].higher_is_better,
            )
            for of, line in now
            if of == title and (of, line) in before
        )
        if lines:
            yield Sheet(title=title, lines=lines, peer=revision, goal=NOISE)


def extract_revision(revision: str, folder: Path) -> None:
    """That revision's files in a folder."""
    archive = folder / ".archive"
    packed = subprocess.run(
        ["git", "archive", f"--output={archive}", "--format=tar", revision], cwd=HERE, check=False
    )
    if packed.returncode:
        sys.exit(f"{revision} is no revision of this repository")
    subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)


def run_benchmark(tree: Path, name: str) -> dict[str, Any]:
    """What a revision's own benchmark says."""
    print(
        f"== {name} of {'this tree' if tree == HERE else 'the other'}", file=sys.stderr, flush=True
    )
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", name, "-o", "json"],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    benchmarks: dict[str, Any] = json.loads(done.stdout)["benchmarks"]
    return benchmarks


def read_numbers(benchmarks: dict[str, Any]) -> Numbers:
    """Our number of every line of every sheet, and of every row of ours in every table."""
    result: Numbers = {}
    for report in (report for reports in benchmarks.values() for report in reports):
        for line in report.get("lines", ()):
            result[report["title"], line["name"]] = Number(
                line["unit"], line["higher_is_better"], (line["ours"],)
            )
        for row in report.get("rows", ()):
            if row["ours"]:
                result[report["title"], row["name"]] = Number(
                    report["unit"], report["higher_is_better"], (row["value"],)
                )
    return result


def merge_numbers(runs: Sequence[Numbers]) -> Numbers:
    """The numbers of several runs together; only what all of them have."""
    first, *others = runs
    return {
        key: Number(
            number.unit,
            number.higher_is_better,
            (*number.values, *(value for other in others for value in other[key].values)),
        )
        for key, number in first.items()
        if all(key in other for other in others)
    }
