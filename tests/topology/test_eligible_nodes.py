"""On which nodes the pods of a Service can run."""

from __future__ import annotations

from typing import Any

import pytest

from zonewise.api import Node, Pod, convert
from zonewise.topology.eligible_nodes import eligible_nodes_of
from zonewise.topology.shares import shares_of


def pod(**spec: Any) -> Pod:
    """A pod with these constraints."""
    return convert(Pod, {"metadata": {"name": "p"}, "spec": spec})


def node(name: str, *taints: dict[str, str], **labels: str) -> Node:
    """A node of one core in the zone of its first letter."""
    zone = {"topology.kubernetes.io/zone": name[0]}
    return convert(
        Node,
        {
            "metadata": {"name": name, "labels": zone | labels},
            "spec": {"taints": list(taints)},
            "status": {
                "allocatable": {"cpu": "1"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        },
    )


GPU = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
MILD = {"key": "gpu", "effect": "PreferNoSchedule"}
EXPIRING = {"key": "gpu", "effect": "NoExecute"}
CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
TOLERATES = {"key": "gpu", "operator": "Exists"}


def affinity(*expressions: dict[str, Any]) -> dict[str, Any]:
    """A required node affinity of one term."""
    terms = {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


@pytest.mark.parametrize(
    ("asks", "there", "within"),
    [
        ({}, node("a"), True),
        ({}, node("a", GPU), False),
        ({}, node("a", EXPIRING), False),
        ({}, node("a", MILD), True),
        ({}, node("a", CORDONED), True),
        ({"tolerations": [TOLERATES]}, node("a", GPU, EXPIRING), True),
        ({"tolerations": [{"operator": "Exists"}]}, node("a", GPU), True),
        ({"tolerations": [{"key": "gpu", "value": "no"}]}, node("a", GPU), False),
        ({"tolerations": [{"key": "gpu", "value": "yes"}]}, node("a", GPU), True),
        ({"nodeSelector": {"pool": "x"}}, node("a", pool="x"), True),
        ({"nodeSelector": {"pool": "x"}}, node("a"), False),
        (
            {"affinity": affinity({"key": "pool", "operator": "In", "values": ["x"]})},
            node("a", pool="y"),
            False,
        ),
        (
            {"affinity": affinity({"key": "pool", "operator": "Exists"})},
            node("a", pool="y"),
            True,
        ),
        ({"affinity": affinity({"key": "pool", "operator": "Wrong"})}, node("a"), False),
    ],
)
def test_one_kind_of_pod(asks: dict[str, Any], there: Node, within: bool) -> None:
    """Taints, node selectors and required affinity count; temporary states of a node do not."""
    assert bool(eligible_nodes_of([pod(**asks)]).select([there])) is within


def test_any_pod_counts() -> None:
    """A node is eligible if one of the pods can run there; without pods all nodes are."""
    nodes = [node("a", GPU), node("b", pool="x"), node("c", pool="y")]
    pods = [pod(nodeSelector={"pool": "x"}), pod(nodeSelector={"pool": "y"})]
    assert [n.metadata.name for n in eligible_nodes_of(pods).select(nodes)] == ["b", "c"]
    assert eligible_nodes_of([]).select(nodes) == nodes


def test_a_reach_is_a_value() -> None:
    """Pods of the same template, in any number and order, have equal eligibility."""
    first, second = pod(tolerations=[TOLERATES]), pod(nodeSelector={"a": "1", "b": "2"})
    again = pod(nodeSelector={"b": "2", "a": "1"})
    assert eligible_nodes_of([first, second]) == eligible_nodes_of([again, second, first])
    assert len({eligible_nodes_of([first]), eligible_nodes_of([first, first])}) == 1


def test_shares_of_what_is_in_reach() -> None:
    """Nodes that the pods do not tolerate have no share."""
    nodes = [node("a"), node("b"), *(node(f"a-gpu-{n}", GPU) for n in range(8))]
    assert shares_of(nodes).share("a") > shares_of(nodes).share("b")
    reached = shares_of(eligible_nodes_of([pod()]).select(nodes))
    assert reached.share("a") == reached.share("b")
