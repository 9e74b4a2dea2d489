"""Placement against the model: cases that are drawn anew, and cases that are stored.

``tests/vectors/placement.jsonl.gz`` has a case and its answer on each line. It is written by

    python -m tests.storage.test_placement_vectors
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.storage.placement_cases import decided
from tests.storage.placement_model import Answer, Case, answer, drawn_case

FILE = Path(__file__).parents[1] / "vectors" / "placement.jsonl.gz"
STORED = 1000
DRAWN = 3000


def check(case: Case, expected: Answer) -> None:
    """Our answer is the model's; among equal pools it may be any."""
    got = decided(case)
    assert (got.pool is None) == (got.refusal is not None)
    assert (got.refusal.code.value if got.refusal else "") == expected["code"], case
    assert [dict(term) for term in got.accessible_topology] == expected["topology"], case
    assert (got.is_full_copy, got.crosses_domains) == (expected["copied"], expected["crosses"]), (
        case
    )
    if got.pool is not None:
        assert got.pool.name in expected["pools"], case
    assert got.reason.message


def rows() -> list[dict[str, Any]]:
    """The stored cases."""
    with gzip.open(FILE, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_stored_cases() -> None:
    """A thousand stored cases are answered as the model answered them."""
    stored = rows()
    assert len(stored) == STORED
    for row in stored:
        check(row["case"], row["answer"])


def test_the_stored_cases_cover_all_outcomes() -> None:
    """The stored cases have all policies, refusals, ties, and copies in and out of a domain."""
    seen: Counter[str] = Counter()
    for row in rows():
        case, answer = row["case"], row["answer"]
        seen[f"policy {case['policy']}"] += 1
        seen["refused" if answer["code"] else "placed"] += 1
        seen["pinned"] += bool(answer["topology"])
        seen["tie"] += len(answer["pools"]) > 1
        seen["copied"] += answer["copied"]
        seen["crosses"] += answer["crosses"]
        seen["two segments"] += any(len(term) > 1 for term in answer["topology"])
    assert min(seen.values()) >= 20, seen


def test_drawn_cases() -> None:
    """Random cases are answered as the model answers them."""
    for seed in range(STORED, STORED + DRAWN):
        case = drawn_case(seed)
        check(case, answer(case))


if __name__ == "__main__":
    with FILE.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        for seed in range(STORED):
            drawn = drawn_case(seed)
            line = json.dumps({"case": drawn, "answer": answer(drawn)}, sort_keys=False)
            file.write(line.encode() + b"\n")
