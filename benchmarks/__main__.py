"""``python -m benchmarks [names] [-o json]`` runs benchmarks and prints their tables.

A benchmark is a function without arguments that gives tables. Each package below this one names its
own in ``BENCHMARKS``; ``runtime`` runs all of a package, ``runtime.watch`` one of them. With
``--against REV`` our numbers are compared with those of another revision, in turns.
"""

from __future__ import annotations

import argparse
import json
import pkgutil
import platform
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Any, Protocol

import benchmarks
from benchmarks.against import compare_with


class Report(Protocol):
    """What a benchmark gives: one or more tables."""

    def text(self) -> str:
        """For people."""
        ...

    def plain(self) -> dict[str, Any]:
        """For machines."""
        ...


Benchmark = Callable[[], Iterable[Report]]


def find_benchmarks() -> dict[str, Benchmark]:
    """Every benchmark there is, by name."""
    result: dict[str, Benchmark] = {}
    for module in pkgutil.iter_modules(benchmarks.__path__):
        if module.ispkg:
            package = import_module(f"benchmarks.{module.name}")
            for name, function in package.BENCHMARKS.items():
                result[f"{module.name}.{name}"] = function
    return result


def chosen(names: list[str], there: dict[str, Benchmark]) -> dict[str, Benchmark]:
    """The benchmarks that the arguments name; all of them without arguments."""
    if not names:
        return there
    result = {
        full: function
        for full, function in there.items()
        if any(full == name or full.startswith(f"{name}.") for name in names)
    }
    unknown = [n for n in names if not any(f == n or f.startswith(f"{n}.") for f in there)]
    if unknown:
        sys.exit(f"no benchmark {', '.join(unknown)}; there are {', '.join(sorted(there))}")
    return result


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help="packages or benchmarks; all if none is given")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument(
        "--against", metavar="REV", help="compare with another revision of this repository instead"
    )
    arguments = parser.parse_args()
    selected = chosen(arguments.names, find_benchmarks())
    if arguments.against:
        selected = {name: partial(compare_with, arguments.against, name) for name in selected}
    tables: dict[str, list[Report]] = {}
    for name, function in selected.items():
        print(f"== {name}", file=sys.stderr, flush=True)
        tables[name] = []
        for table in function():
            tables[name].append(table)
            if arguments.output == "table":
                print(table.text(), end="\n\n", flush=True)
    if arguments.output == "json":
        plain = {
            name: [table.plain() for table in measured_tables]
            for name, measured_tables in tables.items()
        }
        result = {"python": platform.python_version(), "benchmarks": plain}
        print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
