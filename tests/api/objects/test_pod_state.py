"""What is read from a pod's status."""

from __future__ import annotations

import pytest

from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.pod import Pod, PodCondition, PodStatus
from zonewise.api.objects.pod_state import is_pod_active, is_pod_finished, is_pod_ready, ready_since

THEN = "2026-01-01T00:00:00Z"


def pod(phase: str = "Running", *conditions: PodCondition, leaving: bool = False) -> Pod:
    """A pod with these fields."""
    return Pod(
        metadata=ObjectMeta(deletion_timestamp=THEN if leaving else None),
        status=PodStatus(phase=phase, conditions=conditions),
    )


@pytest.mark.parametrize(
    ("phase", "leaving", "ended", "counts"),
    [
        ("Running", False, False, True),
        ("", False, False, True),
        ("Running", True, False, False),
        ("Succeeded", False, True, False),
        ("Failed", True, True, False),
    ],
)
def test_a_pod_is_active_until_it_ends_or_is_deleted(
    phase: str, leaving: bool, ended: bool, counts: bool
) -> None:
    """A finished pod and one with a deletion timestamp are not active; only the first is final."""
    observed = pod(phase, leaving=leaving)
    assert (is_pod_finished(observed), is_pod_active(observed)) == (ended, counts)


def test_ready_is_what_the_condition_says() -> None:
    """Without a condition Ready that is True the pod is not ready; a missing time is None."""
    other = PodCondition(type="Initialized", status="True", last_transition_time=THEN)
    no = PodCondition(type="Ready", status="False", last_transition_time=THEN)
    yes = PodCondition(type="Ready", status="True", last_transition_time=THEN)
    for unready in (pod(), pod("Running", other), pod("Running", other, no)):
        assert not is_pod_ready(unready)
        assert ready_since(unready) is None
    assert is_pod_ready(pod("Running", other, yes))
    assert ready_since(pod("Running", other, yes)) == THEN
    assert ready_since(pod("Running", PodCondition(type="Ready", status="True"))) == ""
