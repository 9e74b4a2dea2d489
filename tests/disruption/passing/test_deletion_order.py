"""The order in which pods are deleted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api.codec import convert
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import DELETION_COST
from zonewise.api.values import times
from zonewise.disruption.passing.deletion_order import (
    deletion_cost,
    rank_for_deletion,
)

NOW = times.parse("2026-01-02T00:00:00Z").timestamp()


def pod(name: str, **features: Any) -> Pod:
    """A pod that has been running for an hour, unless arguments say otherwise."""
    ready = features.get("ready", "2026-01-01T23:00:00Z")
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    if ready:
        condition["lastTransitionTime"] = ready
    return convert(
        Pod,
        {
            "metadata": {
                "name": name,
                "uid": features.get("uid", name),
                "creationTimestamp": features.get("created", "2026-01-01T23:00:00Z"),
                "annotations": {DELETION_COST: features["cost"]} if "cost" in features else {},
            },
            "spec": {"nodeName": features.get("node", "n1")},
            "status": {
                "phase": features.get("phase", "Running"),
                "conditions": [condition],
                "containerStatuses": [{"name": "c", "restartCount": features.get("restarts", 0)}],
            },
        },
    )


def names(pods: list[Pod]) -> list[str]:
    """The names of these pods."""
    return [pod.metadata.name for pod in pods]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"node": "", "phase": "Pending", "ready": ""}, {"phase": "Pending", "ready": ""}),
        ({"phase": "Pending", "ready": ""}, {"phase": "Unknown", "ready": "", "cost": "-5"}),
        ({"phase": "Unknown", "ready": ""}, {"ready": ""}),
        ({"ready": "", "cost": "100"}, {"cost": "-100"}),
        ({"cost": "-1"}, {}),
        ({}, {"cost": "1"}),
        ({"cost": "2"}, {"cost": "10"}),
        ({"ready": "2026-01-01T23:59:00Z"}, {}),
        ({"restarts": 3}, {"restarts": 1}),
        ({"created": "2026-01-01T23:58:00Z"}, {}),
    ],
)
def test_the_order_of_deletion(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Each feature of pods decides the order of deletion where those before it are equal, whatever
    the names are.
    """
    victim, other = pod("z", **first), pod("a", **second)
    assert names(rank_for_deletion([victim, other], now=NOW)) == ["z", "a"]
    assert names(rank_for_deletion([other, victim], now=NOW)) == ["z", "a"]


def test_pods_on_crowded_nodes_are_deleted_first() -> None:
    """All pods of the Deployment on a node count, except finished ones."""
    a, b = pod("a", node="n1"), pod("b", node="n2")
    other = [pod("x", node="n2"), pod("y", node="n1", phase="Failed")]
    assert names(rank_for_deletion([a, b], related=[a, b, *other], now=NOW)) == ["b", "a"]


def test_crowding_needs_an_owner() -> None:
    """Without an owner the age decides next."""
    a, b, c = (pod(n, node="n1") for n in "abc")
    d = pod("d", node="n2", ready="2026-01-01T23:50:00Z")
    assert names(rank_for_deletion([a, b, c, d], now=NOW))[0] == "d"


def test_similar_ages_are_ordered_by_uid() -> None:
    """Within a factor of two in age the uid decides."""
    older = pod("older", uid="1", ready="2026-01-01T23:00:00Z")
    younger = pod("younger", uid="2", ready="2026-01-01T23:05:00Z")
    assert names(rank_for_deletion([younger, older], now=NOW)) == ["older", "younger"]


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        ("7", 7),
        ("-7", -7),
        ("0", 0),
        ("+7", 0),
        ("07", 0),
        ("1.5", 0),
        ("", 0),
        ("2147483647", 2147483647),
        ("2147483648", 0),
        ("-2147483648", -2147483648),
    ],
)
def test_invalid_deletion_costs_are_ignored(text: str, cost: int) -> None:
    """Only a plain 32-bit number is a cost."""
    assert deletion_cost(pod("a", cost=text)) == cost


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=8), st.randoms())
def test_order_of_input_does_not_matter(features: list[tuple[int, int]], rng: Any) -> None:
    """The same pods in any order are ranked the same."""
    pods = [
        pod(f"p{n}", node=f"n{node}", ready=f"2026-01-01T{20 + hour}:00:00Z")
        for n, (node, hour) in enumerate(features)
    ]
    shuffled = list(pods)
    rng.shuffle(shuffled)
    assert rank_for_deletion(pods, related=pods, now=NOW) == rank_for_deletion(
        shuffled, related=pods, now=NOW
    )
