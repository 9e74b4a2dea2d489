"""What `make test` does about Debian packages, with a fake apt."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest
from tools.debian import Need

from tools import debian

NEEDED = (Need("frobnicate", "frob-tools"), Need("sh", "dash"), Need("defrob", "frob-tools"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the path besides the system's."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.defpath}")
    return tmp_path


def program(folder: Path, name: str, script: str = "") -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_nothing_missing_is_one_line_and_no_apt(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If all programs are installed, one line says so and apt is not called."""
    program(folder, "apt-get", "exit 1")
    program(folder, "frobnicate")
    program(folder, "defrob")
    assert debian.main(NEEDED) == 0
    assert capsys.readouterr().out == (
        "nothing to install; the tests need frobnicate, sh, defrob\n"
    )


@pytest.mark.system
def test_what_is_missing_is_installed_by_root(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Only the packages of missing programs are requested, each once, without questions."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    install = f"for name in frobnicate defrob; do cp {folder}/apt-get {folder}/$name; done"
    program(folder, "apt-get", f'echo "$DEBIAN_FRONTEND: $*"; {install}')
    assert debian.main(NEEDED) == 0
    assert capfd.readouterr().out.splitlines() == [
        "installing frob-tools",
        "noninteractive: -qq update",
        "noninteractive: -qq install --yes --no-install-recommends frob-tools",
    ]


def test_without_root_it_fails_at_once_and_names_everything(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without root the error says what is missing and which command root must run."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    program(folder, "apt-get", "echo called")
    assert debian.main(NEEDED) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "need frobnicate, defrob, which" in err
    assert "run `apt-get install frob-tools` as root" in err
    assert len(err.splitlines()) == 1


def test_without_apt_it_fails_at_once_and_names_everything(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a system without apt the error names programs and packages."""
    monkeypatch.setenv("PATH", str(folder))
    assert debian.main((Need("frobnicate", "frob-tools"),)) == 2
    err = capsys.readouterr().err
    assert "need frobnicate, which" in err
    assert "no apt-get to install the Debian packages frob-tools" in err


@pytest.mark.system
@pytest.mark.parametrize(
    ("script", "words"),
    [("exit 100", "failed; its output is above"), ("exit 0", "frobnicate, defrob is still")],
)
def test_an_apt_that_does_not_deliver_is_an_error(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    script: str,
    words: str,
) -> None:
    """A failing apt, or one that installs another program, is an error."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    program(folder, "apt-get", script)
    assert debian.main(NEEDED) == 2
    assert words in capfd.readouterr().err


def test_it_runs_before_anything_is_installed() -> None:
    """The script imports nothing but the standard library."""
    tree = ast.parse(Path(debian.__file__).read_text())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= sys.stdlib_module_names
