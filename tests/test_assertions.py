"""Every test can fail: it asserts something, itself or in a function of the tests that it calls.

What counts: ``assert``, ``raise``, ``pytest.raises`` and ``pytest.fail``, a wait with a limit, a
program that has to succeed (``check=True``), an expected outcome (``expect=``). Calls are followed
by name: a function in the module or where it is imported from, a method in any class there.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.source_trees import ROOT, parse

TESTS = ROOT / "tests"
Function = ast.FunctionDef | ast.AsyncFunctionDef
Callers = frozenset[tuple[Path, str]]

FAILING = {"asyncio.timeout", "asyncio.wait_for", "pytest.fail", "pytest.raises"}
"""Functions of libraries that fail a test."""

ONLY_RAISING = {
    "test_any_bytes_are_accepted_or_refused",
    "test_any_bytes_are_an_object_or_a_parse_error",
    "test_any_bytes_are_read_or_refused",
    "test_any_json_is_accepted_or_refused",
    "test_any_sequence_of_calls_gives_what_the_model_gives",
    "test_any_text_compiles_or_is_refused",
    "test_any_text_is_a_quantity_or_a_parse_error",
    "test_hostile_text_is_refused_or_harmless",
}
"""Tests that fail only by an error of what they call.

They feed any input to a parser, which may refuse it with its own error and with no other one; that
of the queue runs a state machine of hypothesis, whose steps assert.
"""


class ModuleCode(NamedTuple):
    """What a module of the tests defines (methods as ``.name``) and imports from other ones."""

    functions: dict[str, list[Function]]
    imports: dict[str, tuple[Path, str]]


@cache
def read_code(path: Path) -> ModuleCode:
    """The functions and imports of a module."""
    code = ModuleCode(defaultdict(list), {})
    for node in parse(path).body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                code.functions[node.name].append(node)
            case ast.ClassDef():
                for member in node.body:
                    if isinstance(member, Function):
                        code.functions[f".{member.name}"].append(member)
            case ast.ImportFrom(module=str(module)) if module.startswith("tests."):
                file = ROOT.joinpath(*module.split(".")).with_suffix(".py")
                for alias in node.names if file.exists() else ():
                    code.imports[alias.asname or alias.name] = (file, alias.name)
    return code


def can_fail(function: Function, path: Path, callers: Callers = frozenset()) -> bool:
    """Whether a function of a module asserts, or calls one that does."""
    for node in ast.walk(function):
        match node:
            case ast.Assert() | ast.Raise():
                return True
            case ast.Call(func=called, keywords=keywords):
                if ast.unparse(called) in FAILING:
                    return True
                if {ast.unparse(keyword) for keyword in keywords} & {"check=True"}:
                    return True
                if any(keyword.arg == "expect" for keyword in keywords):
                    return True
                match called:
                    case ast.Name(id=name) if name_can_fail(name, path, callers):
                        return True
                    case ast.Attribute(attr=name) if name_can_fail(f".{name}", path, callers):
                        return True
    return False


def name_can_fail(name: str, path: Path, callers: Callers) -> bool:
    """Whether the function of this name can fail; with an argument ``expect``, only by that."""
    if (path, name) in callers:
        return False
    code, callers = read_code(path), callers | {(path, name)}
    if name in code.functions:
        return any(
            can_fail(function, path, callers)
            for function in code.functions[name]
            if "expect" not in {argument.arg for argument in function.args.kwonlyargs}
        )
    if name in code.imports:
        original, home = code.imports[name][::-1]
        return name_can_fail(original, home, callers)
    files = {file for file, _ in code.imports.values()} if name.startswith(".") else set()
    return any(
        name_can_fail(name, file, callers) for file in files if name in read_code(file).functions
    )


def test_every_test_can_fail() -> None:
    """A test without an assertion is a mistake, except for a few properties of parsers."""
    without = {
        name.lstrip(".")
        for path in sorted(TESTS.rglob("test_*.py"))
        for name, functions in read_code(path).functions.items()
        if name.lstrip(".").startswith("test_")
        and not all(can_fail(function, path) for function in functions)
    }
    assert without == ONLY_RAISING
