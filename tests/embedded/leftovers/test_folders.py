"""Temporary folders of killed clusters are removed; all other folders stay."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from zonewise.embedded.leftovers.folders import (
    MARKER,
    keep_folder,
    remove_stale_folders,
    temporary_folder,
)

PROGRAM = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from zonewise.embedded.leftovers.folders import temporary_folder
with temporary_folder() as folder:
    (folder / "kubeconfig").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("zonewise.embedded.leftovers.volumes.RECORDS", tmp_path / "records")
    return tmp_path


@contextmanager
def other_program(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A program with a temporary folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(temporary)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


@pytest.mark.system
def test_the_folder_of_a_killed_program_is_removed_by_the_next(temporary: Path) -> None:
    """The folder of a killed program is removed, that of a running one is not."""
    with other_program(temporary) as (killed, left), other_program(temporary) as (_, used):
        killed.kill()
        killed.wait()
        assert (left / "kubeconfig").exists()
        with temporary_folder() as own:
            assert not left.exists()
            assert (used / "kubeconfig").exists()
            assert (own / MARKER).exists()
            remove_stale_folders()
            assert own.exists()
        assert not own.exists()


@pytest.mark.system
def test_a_folder_that_became_a_data_folder_stays(temporary: Path) -> None:
    """A temporary folder that was given as --data is not removed."""
    with other_program(temporary) as (killed, left):
        killed.kill()
        killed.wait()
        keep_folder(left)
        remove_stale_folders()
        assert (left / "kubeconfig").exists()


def test_other_folders_stay(temporary: Path) -> None:
    """Folders without the marker, and links to folders with it, are not removed."""
    data = temporary / "zonewise-data"
    data.mkdir()
    (data / "state.db").touch()
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / MARKER).touch()
    (temporary / "zonewise-link").symlink_to(elsewhere)
    remove_stale_folders()
    assert (data / "state.db").exists()
    assert (elsewhere / MARKER).exists()


@pytest.mark.system
def test_a_folder_with_something_mounted_stays(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with a mount below it is not removed."""
    monkeypatch.setattr("zonewise.embedded.leftovers.folders._has_mounts_below", lambda _: True)
    with other_program(temporary) as (killed, left):
        killed.kill()
        killed.wait()
        remove_stale_folders()
        assert (left / "kubeconfig").exists()
