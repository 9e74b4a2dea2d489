"""Which pods are deleted when their domain is taken over."""

from __future__ import annotations

import pytest

from zonewise.storage.takeover.dead_nodes import VolumePod, find_reason_to_delete
from zonewise.storage.takeover.stand_ins import TakeoverMap

A, B = {"zone": "a"}, {"zone": "b"}
TAKEN = TakeoverMap({"a": ("b",)})


def pod(**more: object) -> VolumePod:
    """A pod in a with a volume of a, on a node that is not Ready."""
    facts = {
        "name": "n/p",
        "node": "a-1",
        "node_domain": A,
        "node_ready": False,
        "homes": (A,),
        **more,
    }
    return VolumePod(**facts)  # type: ignore[arg-type]


def test_a_pod_of_a_dead_node_is_deleted() -> None:
    """A pod of a dead node whose domain is taken over is deleted for a reason with the pod and the
    node.
    """
    why = find_reason_to_delete(pod(), TAKEN, [B])
    assert why is not None
    assert why.code == "TakenOver"
    assert "pod n/p" in why.message and "node a-1" in why.message


@pytest.mark.parametrize(
    ("staying", "taken", "living"),
    [
        (pod(node_ready=True), TAKEN, [B]),
        (pod(node_domain=B), TAKEN, [B]),
        (pod(homes=(B,)), TAKEN, [B]),
        (pod(homes=({},)), TAKEN, [B]),
        (pod(), TakeoverMap(), [B]),
        (pod(), TAKEN, [{"zone": "c"}]),
        (pod(), TAKEN, []),
        (pod(node_domain={}), TAKEN, [B]),
    ],
)
def test_other_pods_stay(
    staying: VolumePod, taken: TakeoverMap, living: list[dict[str, str]]
) -> None:
    """Pods on a Ready node, elsewhere, with other volumes, or without a domain that stands in,
    stay.
    """
    assert find_reason_to_delete(staying, taken, living) is None
