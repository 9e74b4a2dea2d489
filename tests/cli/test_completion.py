"""Completion in shells and through kubectl."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.run_program import LIMIT, environment, here
from tests.runtime.loopback import write_kubeconfig

from zonewise.cli.main import ENTRIES


@pytest.mark.system
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_good_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    """Each script names our program and, where that shell is installed, has no syntax errors."""
    result = here(capsys, "completion", shell)
    assert (result.code, result.err) == (0, "")
    assert "_ZONEWISE_COMPLETE" in result.out
    if shutil.which(shell):
        checked = subprocess.run(
            [shell, "-n"], input=result.out, capture_output=True, text=True, timeout=60, check=False
        )
        assert (checked.returncode, checked.stderr) == (0, "")


def completed(home: Path, words: str, **more: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "zonewise"],
        env={
            **environment(home),
            "_ZONEWISE_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
            **more,
        },
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.system
def test_bash_completion(tmp_path: Path) -> None:
    """Commands, flags and names of the kubeconfig are completed."""
    assert completed(tmp_path, "zonewise ver") == ["version"]
    config = write_kubeconfig(tmp_path / "config")
    assert completed(tmp_path, "zonewise version --context ", KUBECONFIG=str(config)) == ["dev"]


COMMANDS = [name for name, entry in ENTRIES.items() if entry.summary]


def kubectl(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    result = here(capsys, "__complete", *words)
    assert (result.code, result.err) == (0, "")
    *lines, end = result.out.splitlines()
    assert end == ":4"
    return [line.partition("\t")[0] for line in lines]


def test_words_for_kubectl(capsys: pytest.CaptureFixture[str]) -> None:
    """kubectl gets the same words, and that it should not add file names."""
    assert kubectl(capsys, "") == COMMANDS
    assert kubectl(capsys) == COMMANDS
    assert kubectl(capsys, "comp") == ["completion"]
    assert kubectl(capsys, "version", "--cl") == ["--client", "--cluster"]
    assert kubectl(capsys, "-n", "x", "completion", "z") == ["zsh"]
    assert kubectl(capsys, "version", "-o", "") == ["json", "yaml"]
    assert kubectl(capsys, "--log-format", "j") == ["json"]
    assert kubectl(capsys, "nothing", "") == COMMANDS


def test_names_of_the_kubeconfig(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contexts, clusters and users are completed, from the file that was named if one was."""
    config = write_kubeconfig(tmp_path / "config")
    monkeypatch.setenv("KUBECONFIG", str(config))
    assert kubectl(capsys, "version", "--context", "d") == ["dev"]
    assert kubectl(capsys, "--cluster", "") == ["c"]
    assert kubectl(capsys, "--user", "x") == []
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    assert kubectl(capsys, "version", "--context", "") == []
    assert kubectl(capsys, "version", "--kubeconfig", str(config), "--context", "") == ["dev"]
    config.write_text("[")
    assert kubectl(capsys, "version", "--kubeconfig", str(config), "--context", "") == []


def test_the_script_for_kubectl(capsys: pytest.CaptureFixture[str]) -> None:
    """The script for kubectl calls this program."""
    script = here(capsys, "completion", "kubectl").out
    assert script.startswith("#!/bin/sh\n")
    assert script.endswith('exec zonewise __complete "$@"\n')
