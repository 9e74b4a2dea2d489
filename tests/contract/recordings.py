"""What a real API server answered to each test when it was last asked: one line per question.

A line of ``answers/*.jsonl`` is ``[test, question, answer]``. Each file is read once per process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ANSWERS = Path(__file__).parent / "answers"


@cache
def recorded_answers(file: Path) -> dict[str, list[Any]]:
    """Pairs of question and answer by test; recording replaces them in this dictionary."""
    by_test: dict[str, list[Any]] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        test, question, answer = json.loads(line)
        by_test.setdefault(test, []).append([question, answer])
    return by_test


def write_answers(file: Path) -> None:
    """Write a file anew from what is recorded now."""
    by_test = recorded_answers(file)
    with file.open("w") as out:
        for test in sorted(by_test):
            for question, answer in by_test[test]:
                out.write(json.dumps([test, question, answer], sort_keys=True) + "\n")


def compare(recorded: Sequence[Any], current: Sequence[Any]) -> Iterator[str]:
    """What differs, as lines: the question, then every value that is another one."""
    for (question, expected), (_, answer) in zip(recorded, current, strict=False):
        if expected != answer and not _only_emptied_meanwhile(expected, answer):
            yield question
            yield from _differences(expected, answer, "")


def _only_emptied_meanwhile(expected: Any, answer: Any) -> bool:
    """Whether all that differs is a version of a Namespace that a controller empties meanwhile."""
    if not (isinstance(expected, dict) and isinstance(answer, dict)):
        return False
    obj = answer.get("object") or {}
    terminating = obj.get("kind") == "Namespace" and "deletionTimestamp" in obj["metadata"]
    comparable = {expected.get("version"), answer.get("version")} <= {"same", "newer"}
    return terminating and comparable and {**expected, "version": ""} == {**answer, "version": ""}


def _differences(expected: Any, answer: Any, at: str) -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(answer, dict):
        for key in sorted({*expected, *answer}):
            yield from _differences(expected.get(key), answer.get(key), f"{at}/{key}")
    elif isinstance(expected, list) and isinstance(answer, list) and len(expected) == len(answer):
        for index, pair in enumerate(zip(expected, answer, strict=True)):
            yield from _differences(*pair, f"{at}/{index}")
    elif expected != answer:
        yield f"    {at}: {json.dumps(expected)} on a real server, here {json.dumps(answer)}"
