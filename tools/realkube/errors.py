"""One error for everything that can go wrong around the real control plane.

Its text is one sentence that says what to do, followed where it helps by the last lines of the
program that failed. The command line prints it and exits; a test that needs the control plane
fails with it.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

TAIL_LINES = 25
TAIL_WIDTH = 400


class RealKubeError(Exception):
    """The real control plane could not be built, started or used."""


def tail(log: Path) -> str:
    """The last lines of a log, bounded in number and width, each indented under the sentence."""
    try:
        with log.open(errors="replace") as lines:
            last = deque(lines, maxlen=TAIL_LINES)
    except FileNotFoundError:
        return "    (no output)"
    return "".join(f"    {line.rstrip()[:TAIL_WIDTH]}\n" for line in last).rstrip() or (
        "    (no output)"
    )
