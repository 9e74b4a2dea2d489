"""Placement against the model: cases that are drawn anew, and cases that are stored.

``tests/vectors/placement.jsonl.gz`` has a case and its answer on each line. It is written by

    python -m tests.storage.test_placement_vectors
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

from tests.storage.placement_model import Answer, Case, answer, drawn_case

from zonewise.storage import (
    AccessibilityRequirement,
    CrossDomain,
    Placement,
    PlacementPolicy,
    PlacementRequest,
    PlacementSource,
    Pool,
    PoolSpec,
    PoolState,
    domain_labels,
    place,
)

FILE = Path(__file__).parents[1] / "vectors" / "placement.jsonl.gz"
STORED = 1000
DRAWN = 3000


def pool_of(value: dict[str, Any]) -> Pool:
    """A pool of a case."""
    return Pool(
        PoolSpec(value["name"], "", value["segments"]),
        PoolState(value["capacity"], value["promised"], Fraction(value["health"]), value["alive"]),
    )


def decided(case: Case, seed: str = "") -> Placement:
    """What we say."""
    requirement = None
    if case["requisite"] is not None:
        requirement = AccessibilityRequirement(tuple(case["requisite"]), tuple(case["preferred"]))
    source = case["source"]
    request = PlacementRequest(
        case["bytes"],
        requirement,
        PlacementPolicy(case["policy"]),
        case["default"] and pool_of(case["default"]),
        source and PlacementSource(source["pool"], source["segments"]),
        CrossDomain(case["cross"]),
        seed,
    )
    labels = domain_labels(case["labels"].values(), case["driver"])
    return place(request, map(pool_of, case["pools"]), labels)


def check(case: Case, expected: Answer) -> None:
    """Our answer is the model's; of pools that are equal it is any."""
    got = decided(case)
    assert (got.pool is None) == (got.refusal is not None)
    assert (got.refusal.code.value if got.refusal else "") == expected["code"], case
    assert [dict(term) for term in got.accessible] == expected["topology"], case
    assert (got.copied, got.crosses) == (expected["copied"], expected["crosses"]), case
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


def test_the_stored_cases_are_worth_something() -> None:
    """Among them are all policies, refusals, ties, and copies in and out of a domain."""
    seen: Counter[str] = Counter()
    for row in rows():
        case, said = row["case"], row["answer"]
        seen[f"policy {case['policy']}"] += 1
        seen["refused" if said["code"] else "placed"] += 1
        seen["pinned"] += bool(said["topology"])
        seen["tie"] += len(said["pools"]) > 1
        seen["copied"] += said["copied"]
        seen["crosses"] += said["crosses"]
        seen["two segments"] += any(len(term) > 1 for term in said["topology"])
    assert min(seen.values()) >= 20, seen


def test_drawn_cases() -> None:
    """Cases nobody stored are answered as the model answers them."""
    for seed in range(STORED, STORED + DRAWN):
        case = drawn_case(seed)
        check(case, answer(case))


if __name__ == "__main__":
    with FILE.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        for seed in range(STORED):
            drawn = drawn_case(seed)
            line = json.dumps({"case": drawn, "answer": answer(drawn)}, sort_keys=False)
            file.write(line.encode() + b"\n")
