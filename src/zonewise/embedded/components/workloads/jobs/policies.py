"""The pod failure policy and the success policy of a Job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from zonewise.api.objects.pod import ContainerStatus, Pod
from zonewise.api.struct import Struct
from zonewise.embedded.components.workloads.jobs.pods import parse_indexes

FailureAction = Literal["Count", "Ignore", "FailIndex", "FailJob"]


class OnExitCodes(Struct):
    """Exit codes of a container, or of any."""

    container_name: str | None = None
    operator: str = ""
    values: tuple[int, ...] = ()


class OnPodCondition(Struct):
    """A condition of the pod."""

    type: str = ""
    status: str = "True"


class FailureRule(Struct):
    """What is done about pods that failed in this way."""

    action: FailureAction = "Count"
    on_exit_codes: OnExitCodes | None = None
    on_pod_conditions: tuple[OnPodCondition, ...] = ()


class FailurePolicy(Struct):
    """Rules; the first that matches counts."""

    rules: tuple[FailureRule, ...] = ()


class SuccessRule(Struct):
    """Which indexes, or how many, suffice."""

    succeeded_indexes: str | None = None
    succeeded_count: int | None = None


class SuccessPolicy(Struct):
    """Rules; one that matches suffices."""

    rules: tuple[SuccessRule, ...] = ()


@dataclass(frozen=True, slots=True)
class PodFailureVerdict:
    """What follows from a failed pod; ``message`` only if the Job fails."""

    action: FailureAction = "Count"
    message: str = ""


def match_failure_policy(policy: FailurePolicy | None, pod: Pod) -> PodFailureVerdict:
    """What follows from a failed pod."""
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    for number, rule in enumerate(policy.rules if policy else ()):
        suffix = f"matching {rule.action} rule at index {number}"
        if rule.on_exit_codes is not None:
            match = _match_exit_codes(pod, rule.on_exit_codes)
            if match is not None:
                container, code = match
                failure = f"failed with exit code {code} {suffix}"
                message = f"Container {container} for pod {name} {failure}"
                return PodFailureVerdict(rule.action, message if rule.action == "FailJob" else "")
        for condition in pod.status.conditions:
            if any(
                (pattern.type, pattern.status) == (condition.type, condition.status)
                for pattern in rule.on_pod_conditions
            ):
                message = f"Pod {name} has condition {condition.type} {suffix}"
                return PodFailureVerdict(rule.action, message if rule.action == "FailJob" else "")
    return PodFailureVerdict()


def match_success_policy(
    policy: SuccessPolicy | None, completions: int, succeeded: frozenset[int]
) -> str | None:
    """The message of the first rule that these succeeded indexes satisfy, or None."""
    if policy is None or not succeeded:
        return None
    for number, rule in enumerate(policy.rules):
        required_count = rule.succeeded_count
        if rule.succeeded_indexes is None:
            is_met = required_count is not None and len(succeeded) >= required_count
        else:
            required_indexes = parse_indexes(rule.succeeded_indexes, completions)
            present = len(required_indexes & succeeded)
            is_met = bool(required_indexes) and (
                present == len(required_indexes)
                or (required_count is not None and present >= required_count)
            )
        if is_met:
            return f"Matched rules at index {number}"
    return None


def _match_exit_codes(pod: Pod, requirement: OnExitCodes) -> tuple[str, int] | None:
    """The first container whose exit code matches, and the code."""
    statuses: tuple[ContainerStatus, ...] = (
        pod.status.container_statuses + pod.status.init_container_statuses
    )
    for container in statuses:
        terminated = container.state.terminated
        if (
            terminated is None
            or terminated.exit_code == 0
            or requirement.container_name not in {None, container.name}
        ):
            continue
        if (terminated.exit_code in requirement.values) == (requirement.operator == "In"):
            return container.name, terminated.exit_code
    return None
