"""What a kubelet writes into a pod's status, with the reasons and messages of a real kubelet.

Pure: a pod, its progress and its addresses give the patch, or None if its status equals it already.
Conditions keep their transition time while their status stays; conditions of others (readiness
gates, disruption) are read and never written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zonewise.api.meta import find_condition
from zonewise.api.objects.pod import Container, ContainerStatus, Pod, PodCondition
from zonewise.api.objects.pod_state import FINISHED_PHASES
from zonewise.api.values.times import format_time, from_epoch
from zonewise.embedded.components.kubelet.pod_lifecycle import (
    DEADLINE_EXCEEDED,
    LOST_EXIT_CODE,
    PodProgress,
)
from zonewise.embedded.components.kubelet.stages import backoff_seconds

Obj = dict[str, Any]

PHASES = {"bound": "Pending", "running": "Running", "ready": "Running", "ended": "Running"}
NO_CONDITION = PodCondition()
DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"
LOST_MESSAGE = "The container could not be located when the pod was terminated"


@dataclass(frozen=True, slots=True)
class PodAddresses:
    """The addresses of a pod and of its node, one per family."""

    host_ips: tuple[str, ...]
    pod_ips: tuple[str, ...] = ()


def phase_of(progress: PodProgress) -> str:
    """The phase of a pod with this progress."""
    if progress.state == "finished":
        return "Failed" if progress.exit_code or progress.reason else "Succeeded"
    return PHASES[progress.state]


def generate_pod_status(
    pod: Pod, progress: PodProgress, addresses: PodAddresses, now: float
) -> Obj | None:
    """The status to write, or None if nothing differs."""
    status = pod.status
    if status.phase in FINISHED_PHASES:
        return None
    timestamp = _format(now)
    conditions = _generate_conditions(pod, progress)
    containers = [_container_status(pod, c, progress) for c in pod.spec.containers or ()]
    if _is_current(pod, progress, addresses, conditions, containers):
        return None
    body: Obj = {
        "phase": phase_of(progress),
        "observedGeneration": pod.metadata.generation,
        "startTime": status.start_time or timestamp,
        "hostIP": addresses.host_ips[0],
        "hostIPs": _replace_ips(addresses.host_ips),
        "conditions": [
            _condition_patch(pod, *condition, now=timestamp) for condition in conditions
        ],
        "containerStatuses": containers,
    }
    if addresses.pod_ips:
        body["podIP"] = addresses.pod_ips[0]
        body["podIPs"] = _replace_ips(addresses.pod_ips)
    if pod.spec.init_containers:
        body["initContainerStatuses"] = [
            _init_container_status(pod, container, progress)
            for container in pod.spec.init_containers
        ]
    if progress.reason:
        body["reason"] = progress.reason
        at_deadline = progress.reason == DEADLINE_EXCEEDED
        body["message"] = DEADLINE_MESSAGE if at_deadline else progress.reason
    return body


def _replace_ips(addresses: Sequence[str]) -> list[Obj]:
    """Replace addresses in a strategic patch, which merges otherwise: a new Node has others."""
    return [{"$patch": "replace"}, *({"ip": address} for address in addresses)]


def _is_current(
    pod: Pod,
    progress: PodProgress,
    addresses: PodAddresses,
    conditions: Sequence[tuple[str, bool, str, str]],
    containers: Sequence[Obj],
) -> bool:
    status, generation = pod.status, pod.metadata.generation
    current = {
        condition.type: (condition.status == "True", condition.reason, condition.message)
        for condition in status.conditions
        if condition.observed_generation == generation and condition.status != "Unknown"
    }
    return (
        status.phase == phase_of(progress)
        and status.observed_generation == generation
        and status.host_ip == addresses.host_ips[0]
        and (not addresses.pod_ips or status.pod_ip == addresses.pod_ips[0])
        and all(current.get(kind) == tuple(rest) for kind, *rest in conditions)
        and len(status.container_statuses) == len(containers)
        and all(map(_matches_container, status.container_statuses, containers))
    )


def _matches_container(current: ContainerStatus, desired: Mapping[str, Any]) -> bool:
    state = current.state
    kind = "running" if state.running else "terminated" if state.terminated else "waiting"
    return (
        current.name == desired["name"]
        and current.ready == desired["ready"]
        and current.restart_count == desired["restartCount"]
        and kind in desired["state"]
    )


def _generate_conditions(pod: Pod, progress: PodProgress) -> list[tuple[str, bool, str, str]]:
    """Type, status, reason and message."""
    names = " ".join(container.name for container in pod.spec.containers or ())
    reason, message = "ContainersNotReady", f"containers with unready status: [{names}]"
    started = progress.state in ("running", "ready", "ended")
    initialized = ("Initialized", True, "", "")
    if progress.state == "finished":
        reason, message = (
            ("PodFailed", "") if progress.exit_code or progress.reason else ("PodCompleted", "")
        )
        if reason == "PodCompleted":
            initialized = ("Initialized", True, reason, "")
    if _uninitialized(pod, progress):
        waiting = " ".join(container.name for container in pod.spec.init_containers)
        text = f"containers with incomplete status: [{waiting}]"
        initialized = ("Initialized", False, "ContainersNotInitialized", text)
    ready = containers_ready = (False, reason, message)
    if progress.state == "ready":
        containers_ready = (True, "", "")
        ready = _check_readiness_gates(pod)
    return [
        ("PodReadyToStartContainers", started, "", ""),
        initialized,
        ("Ready", *ready),
        ("ContainersReady", *containers_ready),
    ]


def _uninitialized(pod: Pod, progress: PodProgress) -> bool:
    """Whether the init containers have not run yet, or never will."""
    return bool(pod.spec.init_containers) and (progress.state == "bound" or _lost(progress))


def _lost(progress: PodProgress) -> bool:
    """Whether a pod was deleted before its containers started."""
    never_started = not progress.last_started and progress.exit_code == LOST_EXIT_CODE
    return progress.state == "finished" and never_started


def _check_readiness_gates(pod: Pod) -> tuple[bool, str, str]:
    """Whether the pod is ready, given that its containers are."""
    if not pod.spec.readiness_gates:
        return (True, "", "")
    statuses = {condition.type: condition.status for condition in pod.status.conditions}
    messages = []
    for gate in pod.spec.readiness_gates:
        kind = gate.condition_type
        if kind not in statuses:
            messages.append(
                f'corresponding condition of pod readiness gate "{kind}" does not exist.'
            )
        elif statuses[kind] != "True":
            messages.append(
                f'the status of pod readiness gate "{kind}" is not "True", but {statuses[kind]}'
            )
    return (not messages, "ReadinessGatesNotReady" if messages else "", ", ".join(messages))


def _condition_patch(
    pod: Pod, kind: str, value: bool, reason: str, message: str, *, now: str
) -> Obj:
    current = find_condition(pod.status.conditions, kind) or NO_CONDITION
    same = current.status == str(value) and current.last_transition_time
    body: Obj = {
        "type": kind,
        "status": str(value),
        "observedGeneration": pod.metadata.generation,
        "lastProbeTime": None,
        "lastTransitionTime": current.last_transition_time if same else now,
    }
    # A patch keeps fields it does not name: an old reason has to be removed.
    if reason or current.reason:
        body["reason"] = reason or None
    if message or current.message:
        body["message"] = message or None
    return body


def _container_status(pod: Pod, container: Container, progress: PodProgress) -> Obj:
    body = _container_identity(pod, container, restarts=progress.restarts)
    body["ready"] = progress.state == "ready"
    body["started"] = progress.state in ("running", "ready")
    terminated = _terminated_state(pod, container, progress)
    match progress.state:
        case "running" | "ready":
            body["state"] = {"running": {"startedAt": _format(progress.started)}}
        case "finished" if terminated is not None and not _uninitialized(pod, progress):
            body["state"] = {"terminated": terminated}
            return body
        case "ended":
            body["state"] = {"waiting": _crash_loop_state(pod, container, progress)}
        case _:
            first = "PodInitializing" if pod.spec.init_containers else "ContainerCreating"
            body["state"] = {"waiting": {"reason": first}}
            del body["containerID"]
    if terminated is not None and not _lost(progress):
        body["lastState"] = {"terminated": terminated}
    return body


def _init_container_status(pod: Pod, container: Container, progress: PodProgress) -> Obj:
    is_sidecar = container.restart_policy == "Always"
    body = _container_identity(pod, container, restarts=0)
    if _uninitialized(pod, progress):
        waiting = {"waiting": {"reason": "PodInitializing"}}
        return body | {"ready": False, "started": False, "state": waiting}
    started_at = _format(progress.started or progress.last_started)
    if is_sidecar and progress.state != "finished":
        state = {"running": {"startedAt": started_at}}
        return body | {"ready": True, "started": True, "state": state}
    times = {"startedAt": started_at, "finishedAt": started_at}
    terminated = {"exitCode": 0, "reason": "Completed", **times}
    return body | {"ready": not is_sidecar, "started": False, "state": {"terminated": terminated}}


def _container_identity(pod: Pod, container: Container, *, restarts: int) -> Obj:
    return {
        "name": container.name,
        "image": container.image,
        "imageID": f"zonewise://{container.image}",
        "containerID": f"zonewise://{pod.metadata.uid}/{container.name}/{restarts}",
        "restartCount": restarts,
    }


def _terminated_state(pod: Pod, container: Container, progress: PodProgress) -> Obj | None:
    if progress.exit_code is None:
        return None
    if _lost(progress):
        reason = "ContainerStatusUnknown"
        return {"exitCode": LOST_EXIT_CODE, "reason": reason, "message": LOST_MESSAGE}
    run = progress.restarts - (progress.state in ("running", "ready"))
    return {
        "exitCode": progress.exit_code,
        "reason": "Error" if progress.exit_code else "Completed",
        "startedAt": _format(progress.last_started),
        "finishedAt": _format(progress.last_ended),
        "containerID": f"zonewise://{pod.metadata.uid}/{container.name}/{run}",
    }


def _crash_loop_state(pod: Pod, container: Container, progress: PodProgress) -> Obj:
    meta = pod.metadata
    name = f"{meta.name}_{meta.namespace}({meta.uid})"
    pause = backoff_seconds(progress.restarts)
    text = f"{pause // 60:.0f}m{pause % 60:.0f}s" if pause >= 60 else f"{pause:.0f}s"
    return {
        "reason": "CrashLoopBackOff",
        "message": f"back-off {text} restarting failed container={container.name} pod={name}",
    }


def _format(moment: float) -> str:
    return format_time(from_epoch(moment))
