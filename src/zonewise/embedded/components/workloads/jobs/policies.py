"""What a Job makes of pods that failed, and of indexes that succeeded: its two policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from zonewise.api.objects.pod import ContainerStatus, Pod
from zonewise.api.struct import Struct
from zonewise.embedded.components.workloads.jobs import completion_indexes

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
    """What is done about pods that failed so."""

    action: FailureAction = "Count"
    on_exit_codes: OnExitCodes | None = None
    on_pod_conditions: tuple[OnPodCondition, ...] = ()


class FailurePolicy(Struct):
    """Rules; the first that fits counts."""

    rules: tuple[FailureRule, ...] = ()


class SuccessRule(Struct):
    """Which indexes, or how many, are enough."""

    succeeded_indexes: str | None = None
    succeeded_count: int | None = None


class SuccessPolicy(Struct):
    """Rules; one that holds is enough."""

    rules: tuple[SuccessRule, ...] = ()


@dataclass(frozen=True, slots=True)
class PodFailureVerdict:
    """What a failed pod means; ``message`` only if the whole Job fails."""

    action: FailureAction = "Count"
    message: str = ""


def judged(policy: FailurePolicy | None, pod: Pod) -> PodFailureVerdict:
    """What a failed pod means."""
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    for number, rule in enumerate(policy.rules if policy else ()):
        tail = f"matching {rule.action} rule at index {number}"
        if rule.on_exit_codes is not None:
            found = _exited(pod, rule.on_exit_codes)
            if found is not None:
                container, code = found
                text = f"Container {container} for pod {name} failed with exit code {code} {tail}"
                return PodFailureVerdict(rule.action, text if rule.action == "FailJob" else "")
        for condition in pod.status.conditions:
            if any(
                (wanted.type, wanted.status) == (condition.type, condition.status)
                for wanted in rule.on_pod_conditions
            ):
                text = f"Pod {name} has condition {condition.type} {tail}"
                return PodFailureVerdict(rule.action, text if rule.action == "FailJob" else "")
    return PodFailureVerdict()


def enough(policy: SuccessPolicy | None, completions: int, succeeded: frozenset[int]) -> str | None:
    """Which rule says that these indexes are enough, in words."""
    if policy is None or not succeeded:
        return None
    for number, rule in enumerate(policy.rules):
        wanted = rule.succeeded_count
        if rule.succeeded_indexes is None:
            met = wanted is not None and len(succeeded) >= wanted
        else:
            required = completion_indexes.parse(rule.succeeded_indexes, completions)
            has = len(required & succeeded)
            met = bool(required) and (
                has == len(required) or (wanted is not None and has >= wanted)
            )
        if met:
            return f"Matched rules at index {number}"
    return None


def _exited(pod: Pod, wanted: OnExitCodes) -> tuple[str, int] | None:
    """The first container whose exit code matches, and the code."""
    statuses: tuple[ContainerStatus, ...] = (
        pod.status.container_statuses + pod.status.init_container_statuses
    )
    for one in statuses:
        end = one.state.terminated
        if end is None or end.exit_code == 0 or wanted.container_name not in {None, one.name}:
            continue
        if (end.exit_code in wanted.values) == (wanted.operator == "In"):
            return one.name, end.exit_code
    return None
