"""Recorded answers: the compressed files beside this module, line by line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def lines(name: str) -> Iterator[dict[str, Any]]:
    """The values of a compressed file of lines."""
    with gzip.open(FOLDER / name, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)
