"""A tenant that attacks its volume, and the files that are in a volume afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.csi.scene import Caller


def contents(folder: Path) -> list[str]:
    """The texts of all files in a folder, without following links."""
    return [
        Path(parent, name).read_text()
        for parent, _, names in os.walk(folder)
        for name in names
        if not Path(parent, name).is_symlink()
    ]


def volume_folder(caller: Caller, id: str) -> Path:
    return caller.folder / "data" / "pools" / "pool-a" / id


@contextmanager
def attacker(program: str, *paths: Path) -> Iterator[subprocess.Popen[str]]:
    """A process of the tenant for the length of a block."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, paths)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()
