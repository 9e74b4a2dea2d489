"""The situations that a real scheduler was given, with its answers."""

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
from tests.scheduling.telling import cluster_of

from zonewise.api import Pod, convert

ANSWERS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("answers.json").read_text()
)
SEEDS = range(20)


def admitted(situation: Situation, obj: Obj) -> Obj:
    """A pod with the priority of its class, as the API server sets it."""
    classes = {other["metadata"]["name"]: other for other in situation.others if "value" in other}
    priority_class = classes.get(obj["spec"].get("priorityClassName", ""))
    if priority_class is None:
        return obj
    policy = priority_class.get("preemptionPolicy", "PreemptLowerPriority")
    spec = {**obj["spec"], "priority": priority_class["value"], "preemptionPolicy": policy}
    return {**obj, "spec": spec}


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_answers_are_those_of_the_real_scheduler(situation: Situation) -> None:
    """Node or message, nomination and victims are as recorded; ties may go to any of the tied."""
    objects = [
        *situation.others,
        *situation.nodes,
        *(admitted(situation, pending) for pending in situation.pods),
    ]
    asking = convert(Pod, admitted(situation, situation.pod))
    decisions = [cluster_of(objects, seed).decide(asking) for seed in SEEDS]
    answer = ANSWERS[situation.name]
    assert {decision.message for decision in decisions} == {answer.get("message", "")}
    assert {decision.node for decision in decisions} == set(answer.get("nodes", [""]))
    preemptions = [decision.preemption for decision in decisions if decision.preemption]
    assert {preemption.node for preemption in preemptions} == set(answer.get("nominated", []))
    for preemption in preemptions:
        assert sorted(name for _, name in preemption.victims) == answer["victims"]


def test_a_selector_that_makes_no_sense_selects_nothing() -> None:
    """Terms, constraints and budgets with invalid selectors match nothing and stop nothing."""
    odd = {"matchExpressions": [{"key": "app", "operator": "Near", "values": ["a"]}]}
    term = {"topologyKey": HOST, "labelSelector": odd}
    there = pod("x", on="n1", labels={"app": "a"}, **affinity("podAntiAffinity", term))
    strange = {**budget("b", "a", 0)}
    strange["spec"] = {"selector": odd}
    cluster = cluster_of([node("n1"), there, strange])
    asking = pod("p", labels={"app": "a"}, topologySpreadConstraints=[spread(labelSelector=odd)])
    asking["spec"]["topologySpreadConstraints"][0]["topologyKey"] = HOST
    assert cluster.decide(convert(Pod, asking)).node == "n1"
