"""From which holders a volume may be taken."""

from __future__ import annotations

import pytest

from zonewise.storage.takeover.dead_nodes import Fence, FenceStep, VolumeHolder, decide_fencing
from zonewise.storage.takeover.stand_ins import TakeoverMap

HOME = {"zone": "a"}
A1 = VolumeHolder("a-1", {"zone": "a"})
A2 = VolumeHolder("a-2", {"zone": "a"})
B1 = VolumeHolder("b-1", {"zone": "b"})
C1 = VolumeHolder("c-1", {"zone": "c"})
GONE = VolumeHolder("a-1", {"zone": "a"}, connected=False)
UNKNOWN = VolumeHolder()
BEGUN = VolumeHolder("a-1", {"zone": "a"}, connected=False, fence=Fence.BEGUN)
FENCED = VolumeHolder("a-1", {"zone": "a"}, connected=False, fence=Fence.CONFIRMED)
BACK = VolumeHolder("a-1", {"zone": "a"}, fence=Fence.CONFIRMED)
TAKEN = {"a": ("b", "c")}


@pytest.mark.parametrize(
    ("holder", "node", "taken", "step", "code"),
    [
        (None, B1, {}, FenceStep.NOTHING, "NobodyElse"),
        (A1, A1, TAKEN, FenceStep.NOTHING, "NobodyElse"),
        (A1, B1, {}, FenceStep.REFUSE, "VolumeInUse"),
        (A1, B1, TAKEN, FenceStep.FENCE, "HolderFenced"),
        (B1, C1, TAKEN, FenceStep.REFUSE, "VolumeInUse"),
        (B1, A1, TAKEN, FenceStep.REFUSE, "VolumeInUse"),
        (B1, A1, {}, FenceStep.REFUSE, "VolumeInUse"),
        (B1, C1, {"a": ("c",), "b": ("c",)}, FenceStep.FENCE, "HolderFenced"),
        (A1, A2, TAKEN, FenceStep.REFUSE, "FencedSelf"),
        (GONE, A2, {}, FenceStep.NOTHING, "HolderGone"),
        (GONE, B1, TAKEN, FenceStep.FENCE, "HolderFenced"),
        (UNKNOWN, B1, {}, FenceStep.REFUSE, "VolumeInUse"),
        (UNKNOWN, B1, TAKEN, FenceStep.FENCE, "HolderFenced"),
        (BEGUN, A2, {}, FenceStep.REFUSE, "FenceUnconfirmed"),
        (BEGUN, B1, TAKEN, FenceStep.FENCE, "HolderFenced"),
        (BEGUN, A1, {}, FenceStep.NOTHING, "NobodyElse"),
        (FENCED, A2, {}, FenceStep.NOTHING, "HolderGone"),
        (BACK, A2, {}, FenceStep.REFUSE, "VolumeInUse"),
    ],
)
def test_only_from_the_dead(
    holder: VolumeHolder | None,
    node: VolumeHolder,
    taken: dict[str, tuple[str, ...]],
    step: FenceStep,
    code: str,
) -> None:
    """A volume is taken only from a holder in a domain that was taken over."""
    decision = decide_fencing("v", holder, node, HOME, TakeoverMap(taken))
    assert (decision.step, decision.reason.code) == (step, code)


def test_a_holder_is_read_as_it_was_written() -> None:
    """A stored holder is read back; invalid text is an unknown holder."""
    assert VolumeHolder.from_json(A1.to_json()) == A1
    assert VolumeHolder.from_json(BACK.to_json()) == BACK
    for text in ("", "{", "[]", '{"node":"x"}', '{"node":"x","at":[]}', "\x00", "[" * 100_000):
        assert VolumeHolder.from_json(text) == VolumeHolder()


def test_a_node_that_is_out_of_service_gets_no_volume() -> None:
    """Not even one that nobody has, or that it has itself: it would be fenced from it again."""
    for holder in (None, A1, GONE):
        decision = decide_fencing("v", holder, A1, HOME, TakeoverMap(TAKEN), out_of_service=True)
        assert (decision.step, decision.reason.code) == (FenceStep.REFUSE, "OutOfService")
