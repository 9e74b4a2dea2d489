"""The status of a Deployment: counts and conditions.

*Available* is whether enough pods are. *Progressing* is the progress of a rollout: a ReplicaSet was
created, its pods start, it is complete, or nothing has changed for longer than the progress
deadline. A complete rollout stays complete when a pod fails later. *ReplicaFailure* is copied from
a ReplicaSet, and so is *HeldByBudget*: pods should go, and a disruption budget does not let them.

A condition that does not change is left as it is, times included; one that changes goes to the end
of the list, and keeps the time of its transition if only its reason changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from zonewise.api.objects.apps import Deployment, DeploymentStatus, WorkloadCondition
from zonewise.api.values import times
from zonewise.disruption.steering import HELD, held_message
from zonewise.embedded.components.workloads.deployments.rollout import Sets, complete, limits
from zonewise.embedded.components.workloads.replicasets import replicas

AVAILABLE = "Available"
PROGRESSING = "Progressing"
DONE = "NewReplicaSetAvailable"
TIMED_OUT = "ProgressDeadlineExceeded"
PAUSED = "DeploymentPaused"
NO_DEADLINE = 2**31 - 1

Conditions = tuple[WorkloadCondition, ...]


def status_of(
    deployment: Deployment, sets: Sets, *, created: str = "", scaling: bool, now: float
) -> DeploymentStatus:
    """The status after a pass.

    ``created`` is the name of a ReplicaSet made in this pass; ``scaling`` passes say nothing about
    a rollout's progress.
    """
    conditions = _paused(deployment, now)
    if _deadline(deployment) and not deployment.spec.paused:
        conditions = _found(sets, conditions, created, now)
    status = _counted(deployment, sets, conditions)
    conditions = _set(status.conditions, _availability(deployment, status), now)
    if not scaling:
        conditions = _progress(deployment, sets, status, conditions, now)
        conditions = _failures(sets, conditions, now)
    conditions = _held(sets, conditions, now)
    return msgspec.structs.replace(status, conditions=conditions)


def failed_to_create(deployment: Deployment, name: str, why: str, now: float) -> DeploymentStatus:
    """The status of a Deployment whose new ReplicaSet was refused."""
    condition = _condition(
        PROGRESSING,
        "False",
        "ReplicaSetCreateError",
        f'Failed to create new replica set "{name}": {why}',
    )
    conditions = _set(deployment.status.conditions, condition, now)
    return msgspec.structs.replace(deployment.status, conditions=conditions)


def collided(deployment: Deployment) -> DeploymentStatus:
    """The status of a Deployment that met another template under its ReplicaSet's name."""
    count = (deployment.status.collision_count or 0) + 1
    return msgspec.structs.replace(deployment.status, collision_count=count)


def stuck_in(deployment: Deployment, status: DeploymentStatus, now: float) -> float | None:
    """Seconds until the progress deadline is to be looked at, if nothing happens before."""
    deadline = _deadline(deployment)
    known = _get(status.conditions, PROGRESSING)
    if deadline is None or known is None or deployment.spec.paused:
        return None
    if complete(deployment, status) or known.reason in (TIMED_OUT, DONE):
        return None
    return max(_since(known) + deadline - now, 0.0) + 1.0


def patch_of(status: DeploymentStatus) -> dict[str, Any]:
    """A merge patch that makes the status this one; zeros are absent, as Kubernetes has it."""
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


def _counted(deployment: Deployment, sets: Sets, conditions: Conditions) -> DeploymentStatus:
    available = sum(one.status.available_replicas for one in sets.all)
    return DeploymentStatus(
        observed_generation=deployment.metadata.generation,
        replicas=sum(one.status.replicas for one in sets.all),
        updated_replicas=0 if sets.new is None else sets.new.status.replicas,
        ready_replicas=sum(one.status.ready_replicas for one in sets.all),
        available_replicas=available,
        unavailable_replicas=max(0, sum(one.spec.replicas for one in sets.all) - available),
        terminating_replicas=sum(one.status.terminating_replicas or 0 for one in sets.all),
        collision_count=deployment.status.collision_count,
        conditions=conditions,
    )


def _availability(deployment: Deployment, status: DeploymentStatus) -> WorkloadCondition:
    if status.available_replicas >= limits(deployment).least:
        words = "True", "MinimumReplicasAvailable", "Deployment has minimum availability."
    else:
        words = (
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        )
    return _condition(AVAILABLE, *words)


def _paused(deployment: Deployment, now: float) -> Conditions:
    """The conditions after a pause began or ended; a rollout that timed out stays so."""
    conditions = deployment.status.conditions
    known = _get(conditions, PROGRESSING)
    if _deadline(deployment) is None or (known is not None and known.reason == TIMED_OUT):
        return conditions
    was_paused = known is not None and known.reason == PAUSED
    if deployment.spec.paused and not was_paused:
        words = "Unknown", PAUSED, "Deployment is paused"
    elif was_paused and not deployment.spec.paused:
        words = "Unknown", "DeploymentResumed", "Deployment is resumed"
    else:
        return conditions
    return _set(conditions, _condition(PROGRESSING, *words), now)


def _found(sets: Sets, conditions: Conditions, created: str, now: float) -> Conditions:
    if created:
        words = "True", "NewReplicaSetCreated", f'Created new replica set "{created}"'
    elif sets.new is not None and _get(conditions, PROGRESSING) is None:
        words = "True", "FoundNewReplicaSet", f'Found new replica set "{sets.new.metadata.name}"'
    else:
        return conditions
    return _set(conditions, _condition(PROGRESSING, *words), now)


def _progress(
    deployment: Deployment,
    sets: Sets,
    status: DeploymentStatus,
    conditions: Conditions,
    now: float,
) -> Conditions:
    if _deadline(deployment) is None:
        return _without(conditions, PROGRESSING)
    known = _get(conditions, PROGRESSING)
    if known is not None and known.reason == DONE and status.replicas == status.updated_replicas:
        return conditions
    who = f'Deployment "{deployment.metadata.name}"'
    if sets.new is not None:
        who = f'ReplicaSet "{sets.new.metadata.name}"'
    if complete(deployment, status):
        condition = _condition(PROGRESSING, "True", DONE, f"{who} has successfully progressed.")
    elif _moved(deployment.status, status):
        condition = _condition(PROGRESSING, "True", "ReplicaSetUpdated", f"{who} is progressing.")
        # Every move counts against the deadline, so the time of the update moves, too.
        kept = known.last_transition_time if known and known.status == "True" else None
        return _set(_without(conditions, PROGRESSING), condition, now, since=kept)
    elif _timed_out(deployment, known, now):
        condition = _condition(PROGRESSING, "False", TIMED_OUT, f"{who} has timed out progressing.")
    else:
        return conditions
    return _set(conditions, condition, now)


def _moved(before: DeploymentStatus, after: DeploymentStatus) -> bool:
    old_before = before.replicas - before.updated_replicas
    old_after = after.replicas - after.updated_replicas
    return (
        after.updated_replicas > before.updated_replicas
        or old_after < old_before
        or after.ready_replicas > before.ready_replicas
        or after.available_replicas > before.available_replicas
    )


def _timed_out(deployment: Deployment, known: WorkloadCondition | None, now: float) -> bool:
    deadline = _deadline(deployment)
    if known is None or deadline is None or known.reason == DONE:
        return False
    return known.reason == TIMED_OUT or _since(known) + deadline < now


def _failures(sets: Sets, conditions: Conditions, now: float) -> Conditions:
    """A ReplicaSet's failure is the Deployment's: the new one's, or else that of an old one."""
    ordered = sets.old if sets.new is None else (sets.new, *sets.old)
    for one in ordered:
        for condition in one.status.conditions:
            if condition.type == replicas.FAILURE:
                told = _condition(
                    replicas.FAILURE, condition.status, condition.reason, condition.message
                )
                return _set(conditions, told, now, since=condition.last_transition_time)
    return _without(conditions, replicas.FAILURE)


def _held(sets: Sets, conditions: Conditions, now: float) -> Conditions:
    """A ReplicaSet that a budget keeps from shrinking holds the rollout, or the scale-down."""
    known = _get(conditions, HELD)
    for one in sets.all:
        if (words := replicas.held_by(one)) is not None:
            reason, why = words
            message = held_message(one.metadata.name, one.status.replicas, replicas.aim(one), why)
            if known is not None and known.message == message:
                return conditions
            since = None if known is None else known.last_transition_time
            condition = _condition(HELD, "True", reason, message)
            return _set(_without(conditions, HELD), condition, now, since=since)
    return _without(conditions, HELD)


def held(status: DeploymentStatus) -> str:
    """What a budget prevents, "" if nothing."""
    known = _get(status.conditions, HELD)
    return "" if known is None else known.message


def _deadline(deployment: Deployment) -> int | None:
    seconds = deployment.spec.progress_deadline_seconds
    return None if seconds == NO_DEADLINE else seconds


def _condition(type: str, status: str, reason: str, message: str) -> WorkloadCondition:
    return WorkloadCondition(type=type, status=status, reason=reason, message=message)


def _set(
    conditions: Conditions, wanted: WorkloadCondition, now: float, *, since: str | None = None
) -> Conditions:
    known = _get(conditions, wanted.type)
    if known is not None and (known.status, known.reason) == (wanted.status, wanted.reason):
        return conditions
    moment = times.format_time(times.from_epoch(now))
    if known is not None and known.status == wanted.status:
        since = known.last_transition_time
    condition = WorkloadCondition(
        type=wanted.type,
        status=wanted.status,
        reason=wanted.reason,
        message=wanted.message,
        last_update_time=moment,
        last_transition_time=since or moment,
    )
    return (*_without(conditions, wanted.type), condition)


def _get(conditions: Iterable[WorkloadCondition], type: str) -> WorkloadCondition | None:
    return next((one for one in conditions if one.type == type), None)


def _without(conditions: Conditions, type: str) -> Conditions:
    return tuple(one for one in conditions if one.type != type)


def _since(condition: WorkloadCondition) -> float:
    moment = condition.last_update_time or condition.last_transition_time
    return times.parse(moment).timestamp() if moment else 0.0
