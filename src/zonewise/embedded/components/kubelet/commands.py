"""What a pod's commands would do, for a few known commands.

Nothing is run. Recognised are ``true``, ``false``, ``exit N``, ``sleep N`` and ``pause``, alone,
under a shell's ``-c``, and one after another (``;``, ``&&`` or lines): how long it takes is the sum
of the sleeps, and how it ends is the last word on it. Anything else, loops among it, is left to
the stages.
"""

from __future__ import annotations

import re
from math import inf
from typing import NamedTuple

from zonewise.api.objects.pod import Container, Pod

ENDLESS = frozenset({"agnhost", "pause"})
"""Images that run forever unless their arguments say otherwise."""

SHELLS = frozenset({"sh", "bash", "ash", "dash"})
_LOOP = re.compile(r"\b(while|until|for)\b")
_STEP = re.compile(r"\n|;|&&")


class Outcome(NamedTuple):
    """How a command ends. ``seconds`` is None where the duration is unknown."""

    code: int = 0
    seconds: float | None = None


UNKNOWN = Outcome()
DIGITS = 20
"""No exit code has more; Python refuses to parse numbers of thousands of digits."""


def outcome(pod: Pod) -> Outcome:
    """How the containers of a pod end: as the worst of them, when the last is done."""
    found = [_container(one) for one in pod.spec.containers or ()]
    seconds = [one.seconds for one in found if one.seconds is not None]
    known = len(seconds) == len(found) and bool(found)
    return Outcome(max((one.code for one in found), default=0), max(seconds) if known else None)


def _container(container: Container) -> Outcome:
    words = [*container.command, *container.args]
    if not words:
        name = container.image.rpartition("/")[2].partition(":")[0]
        return Outcome(0, inf) if name in ENDLESS else UNKNOWN
    program = words[0].rpartition("/")[2]
    if program in SHELLS and len(words) > 2 and words[1].startswith("-") and "c" in words[1]:
        return _script(words[2])
    return _step(" ".join([program, *words[1:]])) or UNKNOWN


def _script(text: str) -> Outcome:
    if _LOOP.search(text):
        return UNKNOWN
    code, seconds, ends = 0, 0.0, False
    for line in _STEP.split(text):
        step = _step(line.strip())
        if step is None:
            continue
        seconds += step.seconds or 0.0
        code, ends = step.code, True
        if line.split()[0] == "exit":
            break
    return Outcome(code, seconds) if ends else UNKNOWN


def _step(line: str) -> Outcome | None:
    match line.split():
        case ["true"] | ["exit"]:
            return Outcome(0, 0.0)
        case ["false"]:
            return Outcome(1, 0.0)
        case ["pause"] | ["sleep", "infinity"]:
            return Outcome(0, inf)
        case ["exit", code] if code.isdecimal() and len(code) < DIGITS:
            return Outcome(int(code) % 256, 0.0)
        case ["sleep", seconds] if seconds.isdecimal():
            return Outcome(0, float(seconds))
    return None
