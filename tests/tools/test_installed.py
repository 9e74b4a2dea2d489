"""What `make test` installs is enough to collect every test, whatever else is on the machine."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
OURS = {"zonewise", "tests", "tools", "benchmarks"}


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def locked(requirements: str) -> set[str]:
    """The distributions that a lock file names."""
    text = (TREE / "requirements" / requirements).read_text()
    return {normal(name) for name in re.findall(r"^([A-Za-z0-9_.-]+)==", text, re.MULTILINE)}


def at_import(body: list[ast.stmt]) -> Iterator[str]:
    """The top-level names of modules that importing a file imports, but not what functions do."""
    for statement in body:
        match statement:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass
            case ast.If() | ast.Try() | ast.With() | ast.ClassDef():
                for _, field in ast.iter_fields(statement):
                    if isinstance(field, list):
                        yield from at_import(
                            [child for child in field if isinstance(child, ast.stmt)]
                        )
            case _:
                # import_module("x") at module level is an import as well.
                if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield from by_name(statement)


def by_name(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in {"import_module", "importlib.import_module"}
            and isinstance(node.args[0], ast.Constant)
        ):
            yield str(node.args[0].value).partition(".")[0]


@pytest.mark.slow
def test_collecting_needs_only_what_make_test_installs() -> None:
    """Every module that collection imports is ours, Python's, or in the lock of `make test`."""
    allowed = OURS | set(sys.stdlib_module_names)
    installed = locked("dev.txt")
    homes = packages_distributions()
    foreign: dict[str, str] = {}
    for path in sorted(
        source for tree in OURS - {"zonewise"} for source in (TREE / tree).rglob("*.py")
    ):
        for name in at_import(ast.parse(path.read_text()).body):
            known = {normal(home) for home in homes.get(name, ())}
            if name not in allowed and not known & installed:
                foreign.setdefault(str(path.relative_to(TREE)), name)
    assert not foreign


def test_an_import_is_seen_wherever_it_stands() -> None:
    """Imports in branches count, those in functions and for types do not."""
    source = """
import a.b
try:
    from c import d
except ImportError:
    e = None
x = import_module("f.g")
if TYPE_CHECKING:
    import h
def late():
    import i
"""
    assert list(at_import(ast.parse(source).body)) == ["a", "c", "f"]
