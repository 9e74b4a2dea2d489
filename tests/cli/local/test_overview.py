"""The commands on the page of a cluster can be copied and run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import msgspec
import pytest

from zonewise.cli.local.overview import format_next_steps
from zonewise.explain.status import Overview, ZoneOverview, summarize_cluster

PAGE = summarize_cluster(nodes=(), pods=(), services=(), slices=(), traffic={})


def zone(name: str, *, nodes_ready: int) -> ZoneOverview:
    """A zone with three nodes."""
    return ZoneOverview(
        name=name, nodes=3, nodes_ready=nodes_ready, cpu_milli=6000, pods=0, pods_ready=0
    )


def commands(kubeconfig: str = "/k", page: Overview = PAGE) -> list[list[str]]:
    """The words of each suggested command, as a shell splits them."""
    text = format_next_steps(page, kubeconfig).replace("[bold]", "").replace("[/bold]", "")
    lines = [line.partition("[dim]")[0] for line in text.splitlines()]
    return [shlex.split(line) for line in lines if line.strip()]


def test_a_folder_with_spaces_is_quoted() -> None:
    """The line that sets KUBECONFIG works whatever the folder is called."""
    assert commands("/my data/$x/kubeconfig")[0] == ["export", "KUBECONFIG=/my data/$x/kubeconfig"]
    assert commands("/tmp/zonewise-x/kubeconfig")[0] == [
        "export",
        "KUBECONFIG=/tmp/zonewise-x/kubeconfig",
    ]


def test_what_is_suggested_depends_on_failed_zones() -> None:
    """With all zones up the page suggests to fail one; if one has failed, to heal it."""
    up = msgspec.structs.replace(PAGE, zones=(zone("a", nodes_ready=3), zone("b", nodes_ready=2)))
    down = msgspec.structs.replace(PAGE, zones=(zone("a", nodes_ready=3), zone("b", nodes_ready=0)))
    assert commands(page=up)[-1][-3:] == ["fail", "zone", "a"]
    assert commands(page=down)[-1][-3:] == ["heal", "zone", "b"]


@pytest.mark.parametrize("on_path", ["same", "other", "none"])
def test_commands_name_the_program_as_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_path: str
) -> None:
    """Printed commands use the program's name if that is this program on the PATH, else its
    absolute path.
    """
    for folder in ("my env", "another"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "zonewise").write_text("#!/bin/sh\n")
        (tmp_path / folder / "zonewise").chmod(0o755)
    path = {"same": "my env", "other": "another", "none": "nowhere"}[on_path]
    monkeypatch.setenv("PATH", str(tmp_path / path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["my env/zonewise", "up"])
    program = "zonewise" if on_path == "same" else str(tmp_path / "my env" / "zonewise")
    assert [program, "status", "-w"] in commands()


def test_commands_use_python_m_if_it_was_started_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the program was started with python -m, printed commands use the same interpreter."""
    monkeypatch.setattr(sys, "argv", ["/src/zonewise/__main__.py", "up"])
    assert [sys.executable, "-m", "zonewise", "status", "-w"] in commands()
