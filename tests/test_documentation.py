"""The docs refer to what exists: names in code, paths, links, and walks that only go down."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import get_args

import click
import pytest

import zonewise.runtime
from zonewise.cli.main import ENTRIES, make_root
from zonewise.cli.program.dump_kinds import DUMP_COMMAND, OWN_KINDS
from zonewise.install.installation import BudgetsMode, Installation, Role
from zonewise.install.manifests import render_manifests

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "zonewise"
FOLDERS = ("docs", "tests", "benchmarks", "examples", "tools")
PAGES = sorted([*ROOT.glob("*.md"), *(p for name in FOLDERS for p in (ROOT / name).rglob("*.md"))])
ROOTS = (ROOT, SOURCE, ROOT / "tests", ROOT / "docs")
RECORD_WORDS = 1050
STEP = re.compile(
    r"^( *)([a-z_/]+\.py)(?::([A-Za-z_.]+))?((?:, [A-Za-z_/.]+)*)(?: |$)", re.MULTILINE
)


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names an existing file, and an existing heading in it."""
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            lost.append(link)
        elif anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            if anchor not in {slug(heading) for heading in headings}:
                lost.append(link)
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_exist(page: Path) -> None:
    """A module or test that a page names exists."""
    places = (page.parent, *ROOTS)
    named = set(re.findall(r"`([a-z_/]+/[a-z_]+\.py)(?::[A-Za-z_.]+)?`", prose(page)))
    named -= {"x/y.py", "tests/x/test_y.py"}  # any module
    assert [file for file in named if not any((folder / file).exists() for folder in places)] == []


def test_the_runtime_has_the_names_of_its_page() -> None:
    """The names in the table of ``docs/runtime.md`` can be imported."""
    rows = re.findall(r"^\| (`[^|]+`) \|", (ROOT / "docs" / "runtime.md").read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([A-Za-z]+)`", row)}
    assert "Controller" in named
    assert sorted(named - set(dir(zonewise.runtime))) == []


def test_the_page_of_installing_names_all_that_is_printed() -> None:
    """Every kind, definition and permission that `install` prints is on its page."""
    page = (ROOT / "docs" / "install.md").read_text()
    rights = page.partition("## Rights")[2].partition("## Footprint")[0]
    printed = [
        obj
        for role in get_args(Role)
        for budgets in get_args(BudgetsMode)
        for obj in render_manifests(Installation(role=role, budgets=budgets, dns=True))
    ]
    words = {
        manifest["kind"] for manifest in printed if not manifest["kind"].endswith("Binding")
    } | {
        manifest["spec"]["names"]["plural"]
        for manifest in printed
        if "names" in manifest.get("spec", {})
    }
    assert {word for word in words if not re.search(rf"\b{word}", page)} == set()
    in_other_words = {
        *("validatingwebhookconfigurations", "mutatingwebhookconfigurations"),
        *("leases", "secrets"),
    }
    given = {
        name
        for manifest in printed
        for rule in manifest.get("rules", ())
        for name in rule["resources"]
    }
    missing = {name for name in given if not re.search(rf"\b{name}\b", rights, re.IGNORECASE)}
    assert missing <= in_other_words


def test_flags_that_pages_give_a_command_are_its_own() -> None:
    """The flags after `zonewise NAME` on a page are flags of that command."""
    root_flags = _flags(make_root())
    wrong = []
    for page in PAGES:
        for name, rest in re.findall(r"\bzonewise ([a-z]+)\b([^\n`|#]*)", page.read_text()):
            if name in ENTRIES and page.name != "CHANGELOG.md":
                known = root_flags | _flags(import_module(ENTRIES[name].module).command)
                given = set(re.findall(r"(?<=[\s\[])--[a-z][a-z-]+", rest))
                wrong += [(page.name, name, flag) for flag in given - known - {"--help"}]
    assert wrong == []


def test_pages_have_one_list_of_kinds_to_dump() -> None:
    """Wherever a page makes a dump of a cluster, it uses the command from the code."""
    calls = {
        (page.name, call)
        for page in PAGES
        for call in re.findall(
            r"kubectl get \S+,\S+ -A -o yaml(?: > dump\.yaml)?", page.read_text()
        )
    }
    own = f"kubectl get {OWN_KINDS} -A -o yaml"
    assert {call for _, call in calls} == {f"{DUMP_COMMAND} > dump.yaml", own}
    assert {name for name, call in calls if call != own} >= {
        "explain.md",
        "proxy.md",
        "embedded.md",
    }


def _flags(command: click.Command) -> set[str]:
    options = (param for param in command.params if isinstance(param, click.Option))
    return {flag for option in options for flag in (*option.opts, *option.secondary_opts)}


def test_every_design_record_is_listed_once() -> None:
    """The index names each record by its number, and nothing else."""
    folder = ROOT / "docs" / "design"
    listed = re.findall(r"\[(\d+)\]\((\d+)-([a-z-]+)\.md\)", (folder / "README.md").read_text())
    assert all(written == number for written, number, _ in listed)
    files = sorted(path.stem for path in folder.glob("0*.md"))
    assert sorted(f"{number}-{name}" for _, number, name in listed) == files


def test_a_design_record_is_one_page() -> None:
    """A record has a decision, its reasons and what was rejected; measurements are elsewhere."""
    records = (ROOT / "docs" / "design").glob("0*.md")
    assert {r.name: n for r in records if (n := len(r.read_text().split())) > RECORD_WORDS} == {}


def test_every_page_of_the_docs_is_in_their_index() -> None:
    """``docs/README.md`` leads to each page beside it."""
    folder = ROOT / "docs"
    linked = set(re.findall(r"\]\(([a-z-]+\.md)\)", (folder / "README.md").read_text()))
    assert linked == {page.name for page in folder.glob("*.md")} - {"README.md"}


def walks() -> Iterator[tuple[int, str, list[str]]]:
    """Each hop of the walks: its indentation, its file, and the names in it."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.partition("\n## Walks\n")[2].partition("\n## ")[0]
    for block in re.findall(r"^```\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
        yield -1, "", []
        for indent, path, name, more in STEP.findall(block):
            names = [name] if name else []
            files = [entry for entry in more.split(", ") if entry.endswith(".py")]
            owner = name.rpartition(".")[0]
            names += [
                f"{owner}.{entry}" if owner else entry
                for entry in more.split(", ")
                if entry and not entry.endswith(".py")
            ]
            yield len(indent), path, names
            for file in files:
                yield len(indent), file, []


def defined(path: str) -> set[str]:
    """The functions and methods of a file, methods by their class."""
    names = set()
    for node in ast.parse((SOURCE / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{member.name}"
                for member in node.body
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return names


def test_every_hop_of_a_walk_exists() -> None:
    """Each ``file:function`` of the walks is in the tree."""
    hops = [(path, name) for _, path, names in walks() for name in names]
    assert len(hops) > 80
    assert [hop for hop in hops if hop[1] not in defined(hop[0])] == []


def test_every_decision_is_where_the_map_says() -> None:
    """Each ``file:name`` in the tables of the map, and between its walks, exists."""
    page = prose(ROOT / "docs" / "architecture.md")
    named = re.findall(r"`([a-z_/]+\.py):([A-Za-z_.]+)`", page)
    assert len(named) > 25
    assert [name for name in named if name[1] not in defined(name[0])] == []


@cache
def heights() -> dict[str, int]:
    """The height of each package, and of each subpackage with a contract, in its layers."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    levels = {}
    for contract in settings["contracts"]:
        for container in contract.get("containers", ()):
            for height, layer in enumerate(reversed(contract["layers"])):
                for package in re.findall(r"\w+", layer):
                    levels[f"{container}.{package}"] = height
    return levels


def higher(path: str, caller: str) -> bool:
    """Whether a file is in a higher layer than another one."""
    here, there = (
        ["zonewise", *module.removesuffix(".py").split("/")] for module in (path, caller)
    )
    for number in range(1, min(len(here), len(there)) + 1):
        mine, other = ".".join(here[:number]), ".".join(there[:number])
        if mine != other:
            known = heights()
            return mine in known and other in known and known[mine] > known[other]
    return False


def test_the_map_names_every_room() -> None:
    """Each package, and each subpackage that a contract orders, is in the map."""
    page = (ROOT / "docs" / "architecture.md").read_text().partition("\n## Objects")[0]
    rooms = {
        name.rpartition(".")[2]
        for name in heights()
        if not name.startswith("zonewise.embedded.components.")
    }
    assert sorted(room for room in rooms if not re.search(rf"\b{room}\b", page)) == []


def test_no_walk_goes_up() -> None:
    """A called function is in no higher layer than its caller."""
    assert higher("embedded/cluster.py", "embedded/apiserver/server.py")
    assert higher("embedded/apiserver/handlers/verbs.py", "embedded/apiserver/store/state.py")
    assert not higher("api/meta.py", "embedded/apiserver/server.py")
    stack: list[tuple[int, str]] = []
    climbs = []
    for indent, path, _ in walks():
        while stack and stack[-1][0] >= indent:
            stack.pop()
        if stack and higher(path, stack[-1][1]):
            climbs.append((path, stack[-1][1]))
        if path:
            stack.append((indent, path))
    assert climbs == []
