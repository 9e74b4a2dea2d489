"""Source files as syntax trees, each parsed once per process."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "zonewise"


@cache
def parse(path: Path) -> ast.Module:
    """The tree of a file; callers must not change it."""
    return ast.parse(path.read_text())
