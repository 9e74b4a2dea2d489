"""The status of a Deployment."""

from __future__ import annotations

import msgspec
import pytest
from tests.embedded.components.workloads.deployments.rollouts import deployment, make_set

from zonewise.api.meta import Condition
from zonewise.api.objects.apps import Deployment, DeploymentStatus, ReplicaSet, WorkloadCondition
from zonewise.api.values import times
from zonewise.embedded.components.workloads.deployments.rollout import DeploymentSets, split_sets
from zonewise.embedded.components.workloads.deployments.rollout_status import (
    NO_DEADLINE,
    compute_status,
    progress_check_delay,
    status_patch,
    with_collision,
    with_create_error,
)

NOW = times.parse("2026-01-01T01:00:00Z").timestamp()
EARLIER = "2026-01-01T00:50:00Z"


def status_after(
    owner: Deployment, *sets: ReplicaSet, created: str = "", scaling: bool = False
) -> DeploymentStatus:
    """The status after a pass."""
    return compute_status(owner, split_sets(owner, sets), created=created, scaling=scaling, now=NOW)


def read_condition(status: DeploymentStatus, type: str) -> tuple[str, str, str]:
    """Status, reason and message of a condition."""
    (condition,) = [item for item in status.conditions if item.type == type]
    return condition.status, condition.reason, condition.message


def progressing(reason: str, status: str = "True", moment: str = EARLIER) -> WorkloadCondition:
    """A condition Progressing of some time ago."""
    return WorkloadCondition(
        type="Progressing",
        status=status,
        reason=reason,
        last_update_time=moment,
        last_transition_time=moment,
    )


def test_counts_are_sums_and_the_new_ones_are_updated() -> None:
    """Counts are sums over all ReplicaSets; updatedReplicas is that of the new one."""
    status = status_after(deployment(version=2), make_set(1, 8), make_set(2, 5, available=1))
    assert (status.replicas, status.updated_replicas) == (13, 5)
    assert (status.available_replicas, status.unavailable_replicas) == (9, 4)
    assert status.terminating_replicas == 0


@pytest.mark.parametrize(
    ("available", "expected"),
    [
        (8, ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")),
        (
            7,
            (
                "False",
                "MinimumReplicasUnavailable",
                "Deployment does not have minimum availability.",
            ),
        ),
    ],
)
def test_available_needs_the_minimum(available: int, expected: tuple[str, str, str]) -> None:
    """Of ten with maxUnavailable 25 %, eight are enough."""
    status = status_after(deployment(), make_set(1, 10, available=available))
    assert read_condition(status, "Available") == expected


def test_a_created_replica_set_is_progress() -> None:
    """The first reason of a rollout is NewReplicaSetCreated."""
    before = DeploymentStatus(replicas=10, ready_replicas=10, available_replicas=10)
    status = status_after(deployment(version=2, status=before), make_set(1, 10), created="web-2")
    expected = ("True", "NewReplicaSetCreated", 'Created new replica set "web-2"')
    assert read_condition(status, "Progressing") == expected


def test_an_adopted_replica_set_is_progress() -> None:
    """The reason of an adopted ReplicaSet is FoundNewReplicaSet."""
    owner = deployment()
    status = status_after(owner, make_set(1, 10, available=0, have=0))
    expected = ("True", "FoundNewReplicaSet", 'Found new replica set "web-1"')
    assert read_condition(status, "Progressing") == expected


def test_every_progress_restarts_the_deadline() -> None:
    """lastUpdateTime changes, lastTransitionTime does not."""
    before = DeploymentStatus(
        replicas=13, updated_replicas=3, conditions=(progressing("ReplicaSetUpdated"),)
    )
    owner = deployment(version=2, status=before)
    status = status_after(owner, make_set(1, 8), make_set(2, 5, available=1))
    (progress,) = [condition for condition in status.conditions if condition.type == "Progressing"]
    assert (progress.reason, progress.message) == (
        "ReplicaSetUpdated",
        'ReplicaSet "web-2" is progressing.',
    )
    assert progress.last_transition_time == EARLIER
    assert progress.last_update_time == "2026-01-01T01:00:00Z"


def still(
    reason: str = "ReplicaSetUpdated", *, deadline: int
) -> tuple[Deployment, DeploymentStatus]:
    """A Deployment without progress for ten minutes, and its status now."""
    sets = (make_set(1, 8), make_set(2, 5, available=0))
    before = status_after(deployment(version=2, deadline=deadline), *sets)
    others = [condition for condition in before.conditions if condition.type != "Progressing"]
    before = msgspec.structs.replace(before, conditions=(*others, progressing(reason)))
    owner = deployment(version=2, status=before, deadline=deadline)
    return owner, status_after(owner, *sets)


def test_no_progress_until_the_deadline() -> None:
    """After ten minutes a deadline of five minutes is exceeded, one of eleven is not."""
    owner, status = still(deadline=300)
    message = 'ReplicaSet "web-2" has timed out progressing.'
    assert read_condition(status, "Progressing") == ("False", "ProgressDeadlineExceeded", message)
    assert progress_check_delay(owner, status, NOW) is None
    owner, status = still(deadline=660)
    assert read_condition(status, "Progressing")[1] == "ReplicaSetUpdated"
    assert progress_check_delay(owner, status, NOW) == 61.0


def test_a_rollout_that_timed_out_stays_so() -> None:
    """Only progress ends ProgressDeadlineExceeded."""
    owner, status = still("ProgressDeadlineExceeded", deadline=3600)
    assert read_condition(status, "Progressing")[1] == "ProgressDeadlineExceeded"
    assert progress_check_delay(owner, status, NOW) is None


def test_without_a_deadline_there_is_no_condition() -> None:
    """The condition is removed, and no check is scheduled."""
    owner, status = still(deadline=NO_DEADLINE)
    assert [condition.type for condition in status.conditions] == ["Available"]
    assert progress_check_delay(owner, status, NOW) is None


def test_a_finished_rollout_stays_finished() -> None:
    """A pod that fails after a rollout does not change the condition."""
    status = status_after(deployment(generation=0), make_set(1, 10))
    message = 'ReplicaSet "web-1" has successfully progressed.'
    assert read_condition(status, "Progressing") == ("True", "NewReplicaSetAvailable", message)
    later = status_after(deployment(generation=0, status=status), make_set(1, 10, available=9))
    assert read_condition(later, "Progressing")[1] == "NewReplicaSetAvailable"


def test_a_pause_and_its_end_are_reported() -> None:
    """Progress is unknown while it is paused; a rollout that timed out stays so."""
    status = status_after(deployment(paused=True), make_set(1, 10), scaling=True)
    assert read_condition(status, "Progressing") == (
        "Unknown",
        "DeploymentPaused",
        "Deployment is paused",
    )
    resumed = status_after(deployment(status=status), make_set(1, 10), scaling=True)
    assert read_condition(resumed, "Progressing") == (
        "Unknown",
        "DeploymentResumed",
        "Deployment is resumed",
    )
    late = DeploymentStatus(conditions=(progressing("ProgressDeadlineExceeded", "False"),))
    status = status_after(deployment(paused=True, status=late), make_set(1, 10), scaling=True)
    assert read_condition(status, "Progressing")[1] == "ProgressDeadlineExceeded"


def test_a_replica_sets_failure_is_copied() -> None:
    """The failure of the new ReplicaSet comes first; without one the condition is removed."""
    complaint = Condition(
        type="ReplicaFailure", status="True", reason="FailedCreate", message="no quota"
    )
    replica_set = make_set(1, 10)
    failing = msgspec.structs.replace(
        replica_set, status=msgspec.structs.replace(replica_set.status, conditions=(complaint,))
    )
    status = status_after(deployment(), failing)
    assert read_condition(status, "ReplicaFailure") == ("True", "FailedCreate", "no quota")
    healed = status_after(deployment(status=status), replica_set)
    assert "ReplicaFailure" not in {condition.type for condition in healed.conditions}


def test_a_condition_that_changes_goes_to_the_end() -> None:
    """Conditions are in the order of their last changes, as on a real cluster."""
    first = status_after(deployment(), make_set(1, 10, available=0, have=0))
    assert [condition.type for condition in first.conditions] == ["Progressing", "Available"]
    then = status_after(deployment(status=first), make_set(1, 10, available=8))
    assert [condition.type for condition in then.conditions] == ["Available", "Progressing"]


def test_a_refused_replica_set_is_reported() -> None:
    """The condition names the ReplicaSet and the reason."""
    status = with_create_error(deployment(), "web-1", "no", NOW)
    message = 'Failed to create new replica set "web-1": no'
    assert read_condition(status, "Progressing") == ("False", "ReplicaSetCreateError", message)


def test_collisions_are_counted() -> None:
    """Every collision increases the count."""
    once = with_collision(deployment())
    assert once.collision_count == 1
    assert with_collision(deployment(status=once)).collision_count == 2


def test_zeros_are_absent_on_the_wire() -> None:
    """Zero counts are left out of the JSON, except terminatingReplicas."""
    body = status_patch(status_after(deployment(0), make_set(1, 0)))
    assert {name for name, value in body.items() if value is not None} == {
        "observedGeneration",
        "terminatingReplicas",
        "conditions",
    }


def test_a_deployment_without_replica_sets() -> None:
    """Before the first ReplicaSet the message names the Deployment."""
    before = DeploymentStatus(replicas=1, conditions=(progressing("ReplicaSetUpdated"),))
    owner = deployment(status=before)
    status = compute_status(owner, DeploymentSets(None, ()), scaling=False, now=NOW)
    assert read_condition(status, "Progressing")[2] == 'Deployment "web" is progressing.'
