"""The status of a Deployment: counts and conditions.

*Available* is whether enough pods are. *Progressing* is the progress of a rollout: a ReplicaSet was
created, its pods start, it is complete, or nothing has changed for longer than the progress
deadline. A complete rollout stays complete when a pod fails later. *ReplicaFailure* is copied from
a ReplicaSet, and so is *HeldByBudget*: a disruption budget does not allow to remove pods.

A condition that does not change is left as it is, times included; one that changes goes to the end
of the list, and keeps the time of its transition if only its reason changed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from zonewise.api.meta import find_condition
from zonewise.api.objects.apps import Deployment, DeploymentStatus, WorkloadCondition
from zonewise.api.values import times
from zonewise.disruption.steering import HELD_BY_BUDGET, format_held_message
from zonewise.embedded.components.workloads.deployments.rollout import (
    DeploymentSets,
    is_complete,
    rollout_limits,
)
from zonewise.embedded.components.workloads.replicasets import replicas

AVAILABLE = "Available"
PROGRESSING = "Progressing"
NEW_SET_AVAILABLE = "NewReplicaSetAvailable"
TIMED_OUT = "ProgressDeadlineExceeded"
PAUSED = "DeploymentPaused"
NO_DEADLINE = 2**31 - 1

Conditions = tuple[WorkloadCondition, ...]


def compute_status(
    deployment: Deployment, sets: DeploymentSets, *, created: str = "", scaling: bool, now: float
) -> DeploymentStatus:
    """The status after a sync.

    ``created`` is the name of a ReplicaSet created in this sync; a ``scaling`` sync does not change
    a rollout's progress.
    """
    conditions = _update_paused(deployment, now)
    if _deadline(deployment) and not deployment.spec.paused:
        conditions = _report_new_set(sets, conditions, created, now)
    status = _count(deployment, sets, conditions)
    conditions = _set_condition(status.conditions, _availability_condition(deployment, status), now)
    if not scaling:
        conditions = _update_progress(deployment, sets, status, conditions, now)
        conditions = _copy_replica_failure(sets, conditions, now)
    conditions = _update_held_by_budget(sets, conditions, now)
    return msgspec.structs.replace(status, conditions=conditions)


def with_create_error(
    deployment: Deployment, name: str, error: str, now: float
) -> DeploymentStatus:
    """The status of a Deployment whose new ReplicaSet was refused."""
    message = f'Failed to create new replica set "{name}": {error}'
    condition = _condition(PROGRESSING, "False", "ReplicaSetCreateError", message)
    conditions = _set_condition(deployment.status.conditions, condition, now)
    return msgspec.structs.replace(deployment.status, conditions=conditions)


def with_collision(deployment: Deployment) -> DeploymentStatus:
    """The status of a Deployment whose ReplicaSet's name belongs to another template."""
    count = (deployment.status.collision_count or 0) + 1
    return msgspec.structs.replace(deployment.status, collision_count=count)


def progress_check_delay(
    deployment: Deployment, status: DeploymentStatus, now: float
) -> float | None:
    """Seconds until the progress deadline has to be checked, if nothing changes before."""
    deadline = _deadline(deployment)
    condition = find_condition(status.conditions, PROGRESSING)
    if deadline is None or condition is None or deployment.spec.paused:
        return None
    if is_complete(deployment, status) or condition.reason in (TIMED_OUT, NEW_SET_AVAILABLE):
        return None
    return max(_last_update(condition) + deadline - now, 0.0) + 1.0


def status_patch(status: DeploymentStatus) -> dict[str, Any]:
    """The merge patch that writes a status; zeros are absent, as in Kubernetes."""
    return {
        "observedGeneration": status.observed_generation or None,
        "replicas": status.replicas or None,
        "updatedReplicas": status.updated_replicas or None,
        "readyReplicas": status.ready_replicas or None,
        "availableReplicas": status.available_replicas or None,
        "unavailableReplicas": status.unavailable_replicas or None,
        "terminatingReplicas": status.terminating_replicas,
        "collisionCount": status.collision_count,
        "conditions": list(status.conditions) or None,
    }


def _count(
    deployment: Deployment, sets: DeploymentSets, conditions: Conditions
) -> DeploymentStatus:
    available = sum(rs.status.available_replicas for rs in sets.all)
    return DeploymentStatus(
        observed_generation=deployment.metadata.generation,
        replicas=sum(rs.status.replicas for rs in sets.all),
        updated_replicas=0 if sets.new is None else sets.new.status.replicas,
        ready_replicas=sum(rs.status.ready_replicas for rs in sets.all),
        available_replicas=available,
        unavailable_replicas=max(0, sum(rs.spec.replicas for rs in sets.all) - available),
        terminating_replicas=sum(rs.status.terminating_replicas or 0 for rs in sets.all),
        collision_count=deployment.status.collision_count,
        conditions=conditions,
    )


def _availability_condition(deployment: Deployment, status: DeploymentStatus) -> WorkloadCondition:
    if status.available_replicas >= rollout_limits(deployment).min_available:
        fields = "True", "MinimumReplicasAvailable", "Deployment has minimum availability."
    else:
        message = "Deployment does not have minimum availability."
        fields = "False", "MinimumReplicasUnavailable", message
    return _condition(AVAILABLE, *fields)


def _update_paused(deployment: Deployment, now: float) -> Conditions:
    """Update Progressing when a pause begins or ends; a rollout that timed out stays so."""
    conditions = deployment.status.conditions
    current = find_condition(conditions, PROGRESSING)
    if _deadline(deployment) is None or (current is not None and current.reason == TIMED_OUT):
        return conditions
    was_paused = current is not None and current.reason == PAUSED
    if deployment.spec.paused and not was_paused:
        fields = "Unknown", PAUSED, "Deployment is paused"
    elif was_paused and not deployment.spec.paused:
        fields = "Unknown", "DeploymentResumed", "Deployment is resumed"
    else:
        return conditions
    return _set_condition(conditions, _condition(PROGRESSING, *fields), now)


def _report_new_set(
    sets: DeploymentSets, conditions: Conditions, created: str, now: float
) -> Conditions:
    if created:
        fields = "True", "NewReplicaSetCreated", f'Created new replica set "{created}"'
    elif sets.new is not None and find_condition(conditions, PROGRESSING) is None:
        fields = "True", "FoundNewReplicaSet", f'Found new replica set "{sets.new.metadata.name}"'
    else:
        return conditions
    return _set_condition(conditions, _condition(PROGRESSING, *fields), now)


def _update_progress(
    deployment: Deployment,
    sets: DeploymentSets,
    status: DeploymentStatus,
    conditions: Conditions,
    now: float,
) -> Conditions:
    if _deadline(deployment) is None:
        return _remove_condition(conditions, PROGRESSING)
    current = find_condition(conditions, PROGRESSING)
    all_updated = status.replicas == status.updated_replicas
    if current and current.reason == NEW_SET_AVAILABLE and all_updated:
        return conditions
    subject = f'Deployment "{deployment.metadata.name}"'
    if sets.new is not None:
        subject = f'ReplicaSet "{sets.new.metadata.name}"'
    if is_complete(deployment, status):
        message = f"{subject} has successfully progressed."
        condition = _condition(PROGRESSING, "True", NEW_SET_AVAILABLE, message)
    elif _has_progressed(deployment.status, status):
        message = f"{subject} is progressing."
        condition = _condition(PROGRESSING, "True", "ReplicaSetUpdated", message)
        # Every progress restarts the deadline, so the time of the update changes, too.
        since = current.last_transition_time if current and current.status == "True" else None
        conditions = _remove_condition(conditions, PROGRESSING)
        return _set_condition(conditions, condition, now, since=since)
    elif _has_timed_out(deployment, current, now):
        message = f"{subject} has timed out progressing."
        condition = _condition(PROGRESSING, "False", TIMED_OUT, message)
    else:
        return conditions
    return _set_condition(conditions, condition, now)


def _has_progressed(before: DeploymentStatus, after: DeploymentStatus) -> bool:
    old_before = before.replicas - before.updated_replicas
    old_after = after.replicas - after.updated_replicas
    return (
        after.updated_replicas > before.updated_replicas
        or old_after < old_before
        or after.ready_replicas > before.ready_replicas
        or after.available_replicas > before.available_replicas
    )


def _has_timed_out(deployment: Deployment, condition: WorkloadCondition | None, now: float) -> bool:
    deadline = _deadline(deployment)
    if condition is None or deadline is None or condition.reason == NEW_SET_AVAILABLE:
        return False
    return condition.reason == TIMED_OUT or _last_update(condition) + deadline < now


def _copy_replica_failure(sets: DeploymentSets, conditions: Conditions, now: float) -> Conditions:
    """Copy the failure of the new ReplicaSet, or else that of an old one."""
    ordered = sets.old if sets.new is None else (sets.new, *sets.old)
    for rs in ordered:
        failure = find_condition(rs.status.conditions, replicas.REPLICA_FAILURE)
        if failure is not None:
            copied = _condition(failure.type, failure.status, failure.reason, failure.message)
            return _set_condition(conditions, copied, now, since=failure.last_transition_time)
    return _remove_condition(conditions, replicas.REPLICA_FAILURE)


def _update_held_by_budget(sets: DeploymentSets, conditions: Conditions, now: float) -> Conditions:
    """Report that a budget holds pods of a ReplicaSet that has to shrink."""
    current = find_condition(conditions, HELD_BY_BUDGET)
    for rs in sets.all:
        if (reason_and_message := replicas.read_held_by_budget(rs)) is not None:
            reason, refusal = reason_and_message
            target = replicas.target_replicas(rs)
            message = format_held_message(rs.metadata.name, rs.status.replicas, target, refusal)
            if current is not None and current.message == message:
                return conditions
            since = None if current is None else current.last_transition_time
            condition = _condition(HELD_BY_BUDGET, "True", reason, message)
            return _set_condition(
                _remove_condition(conditions, HELD_BY_BUDGET), condition, now, since=since
            )
    return _remove_condition(conditions, HELD_BY_BUDGET)


def held_by_budget(status: DeploymentStatus) -> str:
    """The message of the condition that a budget holds pods; "" without it."""
    condition = find_condition(status.conditions, HELD_BY_BUDGET)
    return "" if condition is None else condition.message


def _deadline(deployment: Deployment) -> int | None:
    seconds = deployment.spec.progress_deadline_seconds
    return None if seconds == NO_DEADLINE else seconds


def _condition(type: str, status: str, reason: str, message: str) -> WorkloadCondition:
    return WorkloadCondition(type=type, status=status, reason=reason, message=message)


def _set_condition(
    conditions: Conditions, desired: WorkloadCondition, now: float, *, since: str | None = None
) -> Conditions:
    current = find_condition(conditions, desired.type)
    if current is not None and (current.status, current.reason) == (desired.status, desired.reason):
        return conditions
    timestamp = times.format_time(times.from_epoch(now))
    if current is not None and current.status == desired.status:
        since = current.last_transition_time
    condition = WorkloadCondition(
        type=desired.type,
        status=desired.status,
        reason=desired.reason,
        message=desired.message,
        last_update_time=timestamp,
        last_transition_time=since or timestamp,
    )
    return (*_remove_condition(conditions, desired.type), condition)


def _remove_condition(conditions: Conditions, type: str) -> Conditions:
    return tuple(condition for condition in conditions if condition.type != type)


def _last_update(condition: WorkloadCondition) -> float:
    timestamp = condition.last_update_time or condition.last_transition_time
    return times.parse(timestamp).timestamp() if timestamp else 0.0
