"""The architecture of the tree, beyond the layers that import-linter checks."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.source_trees import ROOT, SOURCE, parse

MOST = 15
"""How many modules a reader can take in side by side."""

ROOMS = {
    "api": "codec errors field_cursor field_errors gates meta reason resource struct unstructured",
    "controllers": "",
    "embedded": "cluster csi_driver stored_budgets held_replacements built_in simulated_traffic",
    "embedded/apiserver": "registry server",
    "embedded/components": "",
    "embedded/machinery": "",
    "runtime": "",
}
"""Packages with subpackages, and the few modules that may be beside these."""

TWICE: dict[str, str] = {}
"""Public class names that are defined in two modules, and why that is fine."""

ALIASED = {
    "Family": "of a quantity's suffix in the public api, of an IP address where packets are routed",
}
"""Public class names that a type alias of another module has, too, and what both mean."""

BY_NAME = {
    "cli.program.command": "commands are imported when they run, and nothing is above the cli",
    "embedded.machinery.schema.patterns": "re2 is foreign and has no types",
    "proxy.program": "what a proxy needs after its first rules is loaded then, not before",
    "runtime": "its public names are loaded at first use; the linter sees them by TYPE_CHECKING",
}
"""Modules that import by a name in a text, and why."""


def modules() -> Iterator[tuple[str, Path]]:
    """Every module by its name below ``zonewise``; a package is its ``__init__``."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def test_a_package_is_small_enough_to_read() -> None:
    """No package has more modules side by side than a reader can take in."""
    beside: dict[str, int] = defaultdict(int)
    for _, path in modules():
        if path.name != "__init__.py":
            beside[str(path.parent.relative_to(SOURCE))] += 1
    assert {package: count for package, count in beside.items() if count > MOST} == {}


def test_every_module_is_in_a_room() -> None:
    """A package with subpackages has no other modules beside them but the listed few."""
    outside = [
        f"{package}/{path.name}"
        for package, faces in ROOMS.items()
        for path in sorted((SOURCE / package).glob("*.py"))
        if path.stem not in {"__init__", *faces.split()}
    ]
    assert outside == []


def test_a_public_class_name_means_one_thing() -> None:
    """No two modules define a public class of the same name."""
    homes: dict[str, list[str]] = defaultdict(list)
    for module, path in modules():
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(module)
    twice = {name: " ".join(sorted(modules)) for name, modules in homes.items() if len(modules) > 1}
    assert twice == TWICE


def test_a_type_alias_takes_no_name_of_a_class() -> None:
    """No type alias has the name of a class of another module."""
    bodies = [parse(path).body for _, path in modules()]
    classes = {node.name for body in bodies for node in body if isinstance(node, ast.ClassDef)}
    aliased = {
        target.id
        for body in bodies
        for node in body
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and not isinstance(node.value, ast.Call)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and not target.id.startswith("_")
    }
    assert aliased & classes == set(ALIASED)


def test_no_import_is_hidden_from_the_linter() -> None:
    """Modules are imported by statements, which the linter sees, not by names in strings."""
    hidden = {
        module
        for module, path in modules()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"import_module", "importlib.import_module", "__import__"}
    }
    assert hidden == set(BY_NAME)


def test_a_status_is_patched_in_one_way() -> None:
    """Status patches identify their object by uid: ``Client.patch_status`` does."""
    spelled_out = [
        module
        for module, path in modules()
        if not module.startswith("embedded.apiserver.") and module != "runtime.client.client"
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "patch"
        and any(ast.unparse(keyword) == "subresource='status'" for keyword in node.keywords)
    ]
    assert spelled_out == []


def test_every_module_leads_to_its_tests() -> None:
    """``x/y.py`` is tested in ``tests/x/test_y.py``, or ``tests/README.md`` says where."""
    readme = (ROOT / "tests" / "README.md").read_text()
    lost = []
    for module, path in modules():
        if path.name == "__init__.py" or module == "__main__":
            continue
        *rooms, name = module.split(".")
        beside = ROOT.joinpath("tests", *rooms, f"test_{name}.py")
        named = ["/".join(rooms[:n]) + "/" for n in range(1, len(rooms) + 1)]
        named.append(module.replace(".", "/") + ".py")
        if not beside.exists() and not any(f"`{test}`" in readme for test in named):
            lost.append(module)
    assert lost == []


def test_no_test_module_is_imported() -> None:
    """What several test modules share is in a module without tests."""
    imports = [
        f"{path.relative_to(ROOT)}: {name}"
        for folder in ("tests", "tools", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(parse(path))
        for name in imported_names(node)
        if any(part == "conftest" or part.startswith("test_") for part in name.split("."))
    ]
    assert imports == []


def imported_names(node: ast.AST) -> list[str]:
    """The full names that an import statement binds; none of any other node."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names):
            return [f"{module}.{alias.name}" for alias in names]
    return []
