"""Names say what they hold: words that fit everything are not names.

``found`` may be a node, a list of errors or a boolean; a reader has to go and look. A test
counts definitions (variables, parameters, attributes, functions, classes), package by package.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.source_trees import ROOT, SOURCE, parse

EMPTY = frozenset(
    {
        "found",
        "one",
        "made",
        "told",
        "asked",
        "held",
        "kept",
        "shown",
        "said",
        "wanted",
        "place",
        "spot",
        "kin",
        "wish",
    }
)
"""Words that say nothing about what they name."""

ALLOWED: dict[str, str] = {}
"""Definitions, as ``module:name``, for which such a word is the best name, and why."""


def definitions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that a module defines, in any scope, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, node.lineno
            case ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name, node.lineno


def empty_names(folder: Path, *, rooms: str = "") -> dict[str, list[str]]:
    """Definitions with an empty name, by package; ``rooms`` is a package that has its own."""
    by_package: dict[str, list[str]] = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        module = path.relative_to(folder).as_posix()
        parts = module.split("/")[:-1]
        package = "/".join(parts[: 2 if parts[:1] == [rooms] else 1])
        for name, line in definitions(parse(path)):
            if name.strip("_").lower() in EMPTY and f"{module}:{name}" not in ALLOWED:
                by_package[package].append(f"{module}:{line} {name}")
    return by_package


def test_names_say_what_they_hold() -> None:
    """No definition of the product has a name that could name anything."""
    assert empty_names(SOURCE, rooms="embedded") == {}


def test_names_in_tests_and_tools_say_what_they_hold() -> None:
    """No definition of tests, tools and benchmarks has a name that could name anything."""
    for root in ("tests", "tools", "benchmarks"):
        assert empty_names(ROOT / root) == {}


def test_every_exception_is_needed() -> None:
    """An exception whose definition is gone is taken off the list."""
    defined = {
        f"{path.relative_to(SOURCE).as_posix()}:{name}"
        for path in SOURCE.rglob("*.py")
        for name, _ in definitions(parse(path))
    }
    assert set(ALLOWED) - defined == set()
