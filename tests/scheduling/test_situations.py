"""The situations that are also put to a real scheduler, with the answers it gave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.scheduling.situations import (
    HOST,
    SITUATIONS,
    Obj,
    Situation,
    affinity,
    budget,
    node,
    pod,
    spread,
)
from tests.scheduling.telling import told

from zonewise.api import Pod, convert

ANSWERS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("answers.json").read_text()
)
SEEDS = range(20)


def admitted(situation: Situation, obj: Obj) -> Obj:
    """A pod with the priority its class has, as the API server sets it."""
    classes = {one["metadata"]["name"]: one for one in situation.others if "value" in one}
    found = classes.get(obj["spec"].get("priorityClassName", ""))
    if found is None:
        return obj
    policy = found.get("preemptionPolicy", "PreemptLowerPriority")
    spec = {**obj["spec"], "priority": found["value"], "preemptionPolicy": policy}
    return {**obj, "spec": spec}


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: one.name)
def test_answers_are_those_of_the_real_scheduler(situation: Situation) -> None:
    """Node or message, nomination and victims are as recorded; ties may go to any of the tied."""
    objects = [
        *situation.others,
        *situation.nodes,
        *(admitted(situation, one) for one in situation.pods),
    ]
    asking = convert(Pod, admitted(situation, situation.pod))
    decisions = [told(objects, seed).decide(asking) for seed in SEEDS]
    answer = ANSWERS[situation.name]
    assert {decision.message for decision in decisions} == {answer.get("message", "")}
    assert {decision.node for decision in decisions} == set(answer.get("nodes", [""]))
    preemptions = [decision.preemption for decision in decisions if decision.preemption]
    assert {one.node for one in preemptions} == set(answer.get("nominated", []))
    for one in preemptions:
        assert sorted(name for _, name in one.victims) == answer["victims"]


def test_a_selector_that_makes_no_sense_selects_nothing() -> None:
    """Terms, constraints and budgets that cannot be read concern nobody, and stop nothing."""
    odd = {"matchExpressions": [{"key": "app", "operator": "Near", "values": ["a"]}]}
    term = {"topologyKey": HOST, "labelSelector": odd}
    there = pod("x", on="n1", labels={"app": "a"}, **affinity("podAntiAffinity", term))
    strange = {**budget("b", "a", 0)}
    strange["spec"] = {"selector": odd}
    cluster = told([node("n1"), there, strange])
    asking = pod("p", labels={"app": "a"}, topologySpreadConstraints=[spread(labelSelector=odd)])
    asking["spec"]["topologySpreadConstraints"][0]["topologyKey"] = HOST
    assert cluster.decide(convert(Pod, asking)).node == "n1"
