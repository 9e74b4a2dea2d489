"""What the tests of commands share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.cli.run_program import environment


@pytest.fixture(autouse=True)
def _no_cluster_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = environment(tmp_path)
    for name in os.environ:
        if name not in kept and not name.startswith("PYTEST"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
