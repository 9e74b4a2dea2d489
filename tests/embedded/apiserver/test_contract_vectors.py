"""The steps recorded from a real API server, sent to the embedded one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.embedded import embedded
from tests.contract.replay import Answer, Replay, disagreements, watch_disagreements
from tests.system_guard import starts_programs

VECTORS = Path(__file__).parents[2] / "vectors" / "contract.jsonl.gz"
STEPS: list[dict[str, Any]] = [
    json.loads(line) for line in gzip.decompress(VECTORS.read_bytes()).splitlines()
]
SCENARIOS = list(dict.fromkeys(step["scenario"] for step in STEPS))


@pytest.fixture(scope="module")
@starts_programs
def kubeconfig() -> Iterator[Path]:
    with embedded() as path:
        yield path


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_every_step_is_answered_as_by_a_real_server(scenario: str, kubeconfig: Path) -> None:
    """The embedded server gives the recorded answers."""
    replay = Replay(kubeconfig)
    disagreed: list[str] = []
    try:
        for step in STEPS:
            if step["scenario"] == scenario:
                disagreed += [
                    f"{step['step']}: {difference}" for difference in await replay.run(step)
                ]
    finally:
        await replay.close()
    assert not disagreed


def test_the_vectors_are_all_there() -> None:
    """334 steps of 11 scenarios were recorded."""
    assert len(SCENARIOS) == 11
    assert sum(not step.get("setup") for step in STEPS) == 334


OBJECT = {"kind": "Pod", "metadata": {"name": "p", "resourceVersion": "7"}, "spec": {"a": 1}}
REFUSAL = {
    "kind": "Status",
    "code": 404,
    "reason": "NotFound",
    "message": "pods not found",
    "details": {"kind": "pods", "name": "p", "causes": [{"reason": "R", "field": "f"}]},
}


@pytest.mark.parametrize(
    ("judge", "agreed", "other", "answer"),
    [
        ({}, {"status": 200}, {"status": 201}, Answer(200, {}, OBJECT)),
        (
            {},
            {"status": 404, "error": {"causes": [["R", "f"]], "name": "p"}},
            {"status": 404, "error": {"causes": [["R", "g"]], "name": "p"}},
            Answer(404, {}, REFUSAL),
        ),
        (
            {},
            {"status": 404, "phrases": {"not found": True}},
            {"status": 404, "phrases": {"not here": True}},
            Answer(404, {}, REFUSAL),
        ),
        (
            {},
            {"status": 200, "fields": {"/spec/a": 1, "/spec/b": None}},
            {"status": 200, "fields": {"/spec/a": 2, "/spec/b": None}},
            Answer(200, {}, OBJECT),
        ),
        (
            {"whole": ["/spec"]},
            {"status": 200, "whole": {"kind": "Pod", "metadata": {"name": "p"}}},
            {"status": 200, "whole": {"kind": "Pod", "metadata": {"name": "q"}}},
            Answer(200, {}, OBJECT),
        ),
        (
            {"items": "ordered"},
            {"status": 200, "items": ["p"]},
            {"status": 200, "items": ["p", "q"]},
            Answer(200, {}, {"items": [OBJECT]}),
        ),
        (
            {"relations": [["newer", "/metadata/resourceVersion", "rv"]]},
            {"status": 200, "relations": {"newer /metadata/resourceVersion rv": True}},
            {"status": 200, "relations": {"newer /metadata/resourceVersion rv": False}},
            Answer(200, {}, OBJECT),
        ),
    ],
    ids=["status", "error", "phrases", "fields", "whole", "items", "relations"],
)
def test_an_answer_that_differs_is_noticed(
    judge: dict[str, Any], agreed: dict[str, Any], other: dict[str, Any], answer: Answer
) -> None:
    """A changed answer is reported as a difference."""
    known = {"rv": "6"}
    assert not list(disagreements({"judge": judge, "expect": agreed}, answer, known))
    assert list(disagreements({"judge": judge, "expect": other}, answer, known))


def test_events_that_differ_are_noticed() -> None:
    """Type, name, order and versions of events count."""
    events = [
        {"type": kind, "object": {"metadata": {"name": "a", "resourceVersion": version}}}
        for kind, version in (("ADDED", "2"), ("DELETED", "3"))
    ]
    expect = {"events": [["ADDED", "a"], ["DELETED", "a"]], "increasing": True, "after": True}
    step: dict[str, Any] = {"judge": {"after": "rv"}, "expect": expect}
    assert not list(watch_disagreements(step, events, {"rv": "1"}))
    assert list(watch_disagreements(step, events, {"rv": "2"}))
    assert len(list(watch_disagreements(step, events[::-1], {"rv": "1"}))) == 2
