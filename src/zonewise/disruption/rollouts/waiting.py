"""Why a pod that admission holds has no domain yet, for people who ask about that pod.

Which pod goes where is decided for all waiting pods of a workload at once (``replacements``), and
the rollout's status says what that waits for. So the answer about a single pod is that status: the
numbers are not counted again, and cannot differ from what the controller goes by.
"""

from __future__ import annotations

from collections.abc import Iterable

from zonewise.api.meta import find_condition
from zonewise.api.objects.budgets import DomainRollout
from zonewise.api.objects.pod import Pod
from zonewise.api.reason import Reason
from zonewise.disruption.owners import Owners
from zonewise.disruption.rollouts.plan import PROGRESSING
from zonewise.disruption.rollouts.replacements import (
    GATE,
    NO_ROOM,
    is_held,
    workload_reference,
)

NO_ROLLOUT = "NoDomainRollout"
UNKNOWN_ROLLOUT = "DomainRolloutNotKnown"


def explain_waiting(
    pod: Pod, rollouts: Iterable[DomainRollout] | None, owners: Owners
) -> Reason | None:
    """What a pod waits for at our scheduling gate; None if it has none.

    ``rollouts`` are those of its namespace, or None if they may not be read.
    """
    if not is_held(pod):
        return None
    name = f"Pod/{pod.metadata.namespace}/{pod.metadata.name}"
    begin = f"pod {pod.metadata.name} waits at the scheduling gate {GATE}"
    if rollouts is None:
        return Reason(
            code=UNKNOWN_ROLLOUT,
            message=f"{begin}, and the DomainRollouts of its namespace are not known",
            object=name,
            fix="They say why: kubectl describe domainrollouts.",
        )
    workload = workload_reference(pod, owners)
    matching = [rollout for rollout in rollouts if rollout.spec.workload_ref == workload]
    if not matching:
        return Reason(
            code=NO_ROLLOUT,
            message=f"{begin}, and no DomainRollout updates its workload",
            object=name,
            fix="The controller releases it; if it stays, check that the controller runs.",
        )
    rollout = min(
        matching, key=lambda each: (each.metadata.creation_timestamp or "", each.metadata.name)
    )
    return _explain_rollout(rollout, begin)


def _explain_rollout(rollout: DomainRollout, begin: str) -> Reason:
    """The reason of a rollout as that of a pod that waits for it."""
    meta, status = rollout.metadata, rollout.status
    if status.reason == NO_ROOM:
        turn = f"for domain {status.domain}: DomainRollout {meta.name} has no room there"
    elif status.domain:
        turn = f"for its turn: DomainRollout {meta.name} is at domain {status.domain}"
    else:
        turn = f"for its turn: DomainRollout {meta.name} has no domain in progress"
    condition = find_condition(status.conditions, "Progressing")
    detail = f" ({status.reason}): {condition.message}" if condition is not None else ""
    return Reason(
        code=status.reason or NO_ROLLOUT,
        message=f"{begin} {turn}{detail}",
        object=f"DomainRollout/{meta.namespace}/{meta.name}",
        fix="It starts when a domain lacks a pod of the new revision: this one or the next."
        if status.reason in PROGRESSING
        else "",
    )
