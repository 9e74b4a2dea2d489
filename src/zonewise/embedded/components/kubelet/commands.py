"""What a pod's commands would do, for a few known commands.

Nothing is run. Recognised are ``true``, ``false``, ``exit N``, ``sleep N`` and ``pause``, alone,
under a shell's ``-c``, and one after another (``;``, ``&&`` or lines): the duration is the sum of
the sleeps, the exit code that of the last recognised command. Anything else, also a loop, is left
to the stages.
"""

from __future__ import annotations

import re
from math import inf
from typing import NamedTuple

from zonewise.api.objects.pod import Container, Pod

ENDLESS_IMAGES = frozenset({"agnhost", "pause"})
"""Images that run forever unless their arguments say otherwise."""

SHELLS = frozenset({"sh", "bash", "ash", "dash"})
_LOOP = re.compile(r"\b(while|until|for)\b")
_SEPARATOR = re.compile(r"\n|;|&&")


class Outcome(NamedTuple):
    """How a command ends. ``seconds`` is None where the duration is unknown."""

    code: int = 0
    seconds: float | None = None


UNKNOWN = Outcome()
MAX_DIGITS = 20
"""Exit codes have fewer; Python refuses to parse numbers of thousands of digits."""


def predict_outcome(pod: Pod) -> Outcome:
    """How the containers of a pod end: with the highest exit code, when the last one ends."""
    outcomes = [_predict_container(container) for container in pod.spec.containers or ()]
    seconds = [outcome.seconds for outcome in outcomes if outcome.seconds is not None]
    all_known = len(seconds) == len(outcomes) and bool(outcomes)
    return Outcome(
        max((outcome.code for outcome in outcomes), default=0), max(seconds) if all_known else None
    )


def _predict_container(container: Container) -> Outcome:
    words = [*container.command, *container.args]
    if not words:
        name = container.image.rpartition("/")[2].partition(":")[0]
        return Outcome(0, inf) if name in ENDLESS_IMAGES else UNKNOWN
    program = words[0].rpartition("/")[2]
    if program in SHELLS and len(words) > 2 and words[1].startswith("-") and "c" in words[1]:
        return _predict_script(words[2])
    return _predict_command(" ".join([program, *words[1:]])) or UNKNOWN


def _predict_script(text: str) -> Outcome:
    if _LOOP.search(text):
        return UNKNOWN
    code, seconds, ends = 0, 0.0, False
    for line in _SEPARATOR.split(text):
        outcome = _predict_command(line.strip())
        if outcome is None:
            continue
        seconds += outcome.seconds or 0.0
        code, ends = outcome.code, True
        if line.split()[0] == "exit":
            break
    return Outcome(code, seconds) if ends else UNKNOWN


def _predict_command(line: str) -> Outcome | None:
    match line.split():
        case ["true"] | ["exit"]:
            return Outcome(0, 0.0)
        case ["false"]:
            return Outcome(1, 0.0)
        case ["pause"] | ["sleep", "infinity"]:
            return Outcome(0, inf)
        case ["exit", code] if code.isdecimal() and len(code) < MAX_DIGITS:
            return Outcome(int(code) % 256, 0.0)
        case ["sleep", seconds] if seconds.isdecimal():
            return Outcome(0, float(seconds))
    return None
