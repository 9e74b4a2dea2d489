"""Tests of commands run in a clean environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.cli.run_program import environment


@pytest.fixture(autouse=True)
def _clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean = environment(tmp_path)
    for name in os.environ:
        if name not in clean and not name.startswith("PYTEST"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
