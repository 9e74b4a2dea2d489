"""Pods of sets, for tests of decisions."""

from __future__ import annotations

from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.pod import Pod, PodCondition, PodSpec, PodStatus
from zonewise.api.values import times

NOW = 1_750_000_000.0


def make_pod(
    name: str,
    *,
    phase: str = "Running",
    ready: bool | None = None,
    since: float = 3600.0,
    revision: str = "r1",
    leaving: bool = False,
    node: str = "",
    created: str = "2025-01-01T00:00:00Z",
    uid: str = "",
) -> Pod:
    """A pod; a running one has been Ready for an hour unless arguments say otherwise."""
    up = phase == "Running" if ready is None else ready
    moment = times.format_time(times.from_epoch(NOW - since))
    condition = PodCondition(
        type="Ready", status="True" if up else "False", last_transition_time=moment
    )
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="default",
            uid=uid or name,
            creation_timestamp=created,
            deletion_timestamp=moment if leaving else None,
            labels={"controller-revision-hash": revision},
        ),
        spec=PodSpec(node_name=node),
        status=PodStatus(phase=phase, conditions=(condition,)),
    )
