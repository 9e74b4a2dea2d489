"""Which pods make way when their domain is taken over."""

from __future__ import annotations

import pytest

from zonewise.storage.takeover import TakeoverMap
from zonewise.storage.takeover.evacuation import VolumePod, makes_way

A, B = {"zone": "a"}, {"zone": "b"}
TAKEN = TakeoverMap({"a": ("b",)})


def pod(**more: object) -> VolumePod:
    """A pod in a with a volume of a, on a node that is not Ready."""
    found = {"name": "n/p", "node": "a-1", "at": A, "ready": False, "homes": (A,), **more}
    return VolumePod(**found)  # type: ignore[arg-type]


def test_a_pod_of_a_dead_node_makes_way() -> None:
    """With its reason: which pod, which node, who takes over."""
    why = makes_way(pod(), TAKEN, [B])
    assert why is not None
    assert why.code == "TakenOver"
    assert "pod n/p" in why.message and "node a-1" in why.message


@pytest.mark.parametrize(
    ("one", "taken", "living"),
    [
        (pod(ready=True), TAKEN, [B]),
        (pod(at=B), TAKEN, [B]),
        (pod(homes=(B,)), TAKEN, [B]),
        (pod(homes=({},)), TAKEN, [B]),
        (pod(), TakeoverMap(), [B]),
        (pod(), TAKEN, [{"zone": "c"}]),
        (pod(), TAKEN, []),
        (pod(at={}), TAKEN, [B]),
    ],
)
def test_everybody_else_stays(
    one: VolumePod, taken: TakeoverMap, living: list[dict[str, str]]
) -> None:
    """On a Ready node, elsewhere, with other volumes, or if nobody could stand in."""
    assert makes_way(one, taken, living) is None
