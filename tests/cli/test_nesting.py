"""Deeply nested files are refused with one sentence: no fault, no signal, no long wait."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.run_program import apart, here

YAML = "apiVersion: v1\nkind: Node\nmetadata: {name: n}\nspec: "
JSON = '{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": '

TEXTS: dict[str, Callable[[int], str]] = {
    "lists.yaml": lambda deep: YAML + "[" * deep + "]" * deep,
    "maps.yaml": lambda deep: YAML + "{a: " * deep + "1" + "}" * deep,
    "open.yaml": lambda deep: YAML + "[" * deep,
    "blocks.yaml": lambda deep: YAML + "\n" + "".join(f"{' ' * n}a:\n" for n in range(1, 2000)),
    "dashes.yaml": lambda deep: YAML + "\n" + "- " * min(deep, 20_000) + "1",
    "lists.json": lambda deep: JSON + "[" * deep + "]" * deep + "}",
    "maps.json": lambda deep: JSON + '{"a": ' * deep + "1" + "}" * deep + "}",
    "items.json": lambda deep: (
        '{"apiVersion": "v1", "kind": "List", "items": [\n'
        + JSON
        + '{"a": ' * deep
        + "1"
        + "}" * deep
        + "}]}"
    ),
    "items.yaml": lambda deep: (
        "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Node, spec: "
        + "[" * deep
        + "]" * deep
        + "}"
    ),
    "stream.json": lambda deep: JSON + "1}\n" + JSON + "[" * deep + "]" * deep + "}",
}
COMMANDS: dict[str, tuple[str, ...]] = {
    "explain": ("explain", "services", "-A", "-f"),
    "up": ("up", "-f"),
    "stages": ("up", "--stages"),
    "scenario": ("up", "--speed", "max", "--scenario"),
    "kubeconfig": ("version", "--kubeconfig"),
    "budgets": ("explain", "budgets", "-A", "-f"),
    "volume": ("explain", "volume", "v", "-f"),
    "name": ("explain", "name", "web.shop.svc", "-f"),
    "proxy": ("proxy", "--dry-run", "-f"),
    "proxy-config": ("proxy", "--node-name", "n", "--config"),
    "csi": ("csi", "check", "--config"),
}
# Less deep than this is not refused: `explain` reads only some fields of a Node.
DEEP = 5_000


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", TEXTS)
def test_a_file_nested_too_deeply_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, command: str
) -> None:
    """Every command that reads files refuses each form of too deep nesting with a sentence."""
    path = tmp_path / name
    path.write_text(TEXTS[name](DEEP))
    result = here(capsys, *COMMANDS[command], path)
    assert "fault in zonewise" not in result.err
    assert result.sentence()
    assert result.code == 2


@pytest.mark.system
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["lists.yaml", "items.json"])
def test_a_file_nested_too_deeply_ends_no_process(tmp_path: Path, name: str, command: str) -> None:
    """Where a parser's stack would overflow, the program still ends with an error, not a signal."""
    path = tmp_path / name
    path.write_text(TEXTS[name](500_000))
    result = apart(tmp_path, *COMMANDS[command], path)
    assert result.sentence()
    assert result.code == 2


def test_the_error_names_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error about deep nesting names file and line of the object, also inside a list."""
    for name, line in (("items.json", 2), ("lists.yaml", 4), ("items.yaml", 4)):
        path = tmp_path / name
        path.write_text(TEXTS[name](DEEP))
        assert f"{name}:{line}: " in here(capsys, "up", "-f", path).sentence()
