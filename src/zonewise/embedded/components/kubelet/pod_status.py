"""What a kubelet writes into a pod's status, in the words of the real one.

Pure: a pod, its progress and its addresses give the patch, or None if its status is already so.
Conditions keep their transition time while their status stays; conditions of others (readiness
gates, disruption) are read and never written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zonewise.api.objects.pod import Container, ContainerStatus, Pod, PodCondition
from zonewise.api.objects.pod_state import FINISHED
from zonewise.api.values.times import format_time, from_epoch
from zonewise.embedded.components.kubelet.pod_lifecycle import DEADLINE, LOST, PodProgress
from zonewise.embedded.components.kubelet.stages import backoff

Obj = dict[str, Any]

PHASES = {"bound": "Pending", "running": "Running", "ready": "Running", "ended": "Running"}
NOTHING = PodCondition()
DEADLINE_TEXT = "Pod was active on the node longer than the specified deadline"
LOST_TEXT = "The container could not be located when the pod was terminated"


@dataclass(frozen=True, slots=True)
class PodAddresses:
    """A pod's addresses: those of its node and its own, the first of each family."""

    hosts: tuple[str, ...]
    addresses: tuple[str, ...] = ()


def phase_of(progress: PodProgress) -> str:
    """The phase of a pod that is so far."""
    if progress.state == "finished":
        return "Failed" if progress.code or progress.reason else "Succeeded"
    return PHASES[progress.state]


def report(pod: Pod, progress: PodProgress, place: PodAddresses, now: float) -> Obj | None:
    """The status to write, or None if nothing differs."""
    status = pod.status
    if status.phase in FINISHED:
        return None
    moment = _text(now)
    conditions = _conditions(pod, progress)
    containers = [_container(pod, one, progress) for one in pod.spec.containers or ()]
    if _said(pod, progress, place, conditions, containers):
        return None
    body: Obj = {
        "phase": phase_of(progress),
        "observedGeneration": pod.metadata.generation,
        "startTime": status.start_time or moment,
        "hostIP": place.hosts[0],
        "hostIPs": _replaced(place.hosts),
        "conditions": [_condition(pod, *one, now=moment) for one in conditions],
        "containerStatuses": containers,
    }
    if place.addresses:
        body["podIP"] = place.addresses[0]
        body["podIPs"] = _replaced(place.addresses)
    if pod.spec.init_containers:
        body["initContainerStatuses"] = [
            _init_container(pod, one, progress) for one in pod.spec.init_containers
        ]
    if progress.reason:
        body["reason"] = progress.reason
        body["message"] = DEADLINE_TEXT if progress.reason == DEADLINE else progress.reason
    return body


def _replaced(addresses: Sequence[str]) -> list[Obj]:
    """For a strategic patch, which would merge else: a recreated Node has other addresses."""
    return [{"$patch": "replace"}, *({"ip": one} for one in addresses)]


def _said(
    pod: Pod,
    progress: PodProgress,
    place: PodAddresses,
    conditions: Sequence[tuple[str, bool, str, str]],
    containers: Sequence[Obj],
) -> bool:
    status, generation = pod.status, pod.metadata.generation
    have = {
        one.type: (one.status == "True", one.reason, one.message)
        for one in status.conditions
        if one.observed_generation == generation and one.status != "Unknown"
    }
    return (
        status.phase == phase_of(progress)
        and status.observed_generation == generation
        and status.host_ip == place.hosts[0]
        and (not place.addresses or status.pod_ip == place.addresses[0])
        and all(have.get(kind) == tuple(rest) for kind, *rest in conditions)
        and len(status.container_statuses) == len(containers)
        and all(map(_same, status.container_statuses, containers))
    )


def _same(have: ContainerStatus, want: Mapping[str, Any]) -> bool:
    state = have.state
    kind = "running" if state.running else "terminated" if state.terminated else "waiting"
    return (
        have.name == want["name"]
        and have.ready == want["ready"]
        and have.restart_count == want["restartCount"]
        and kind in want["state"]
    )


def _conditions(pod: Pod, progress: PodProgress) -> list[tuple[str, bool, str, str]]:
    """Type, status, reason and message."""
    names = " ".join(one.name for one in pod.spec.containers or ())
    reason, message = "ContainersNotReady", f"containers with unready status: [{names}]"
    started = progress.state in ("running", "ready", "ended")
    initialized = ("Initialized", True, "", "")
    if progress.state == "finished":
        reason, message = (
            ("PodFailed", "") if progress.code or progress.reason else ("PodCompleted", "")
        )
        if reason == "PodCompleted":
            initialized = ("Initialized", True, reason, "")
    if _uninitialized(pod, progress):
        waiting = " ".join(one.name for one in pod.spec.init_containers)
        text = f"containers with incomplete status: [{waiting}]"
        initialized = ("Initialized", False, "ContainersNotInitialized", text)
    ready = containers = (False, reason, message)
    if progress.state == "ready":
        containers = (True, "", "")
        ready = _gates(pod)
    return [
        ("PodReadyToStartContainers", started, "", ""),
        initialized,
        ("Ready", *ready),
        ("ContainersReady", *containers),
    ]


def _uninitialized(pod: Pod, progress: PodProgress) -> bool:
    """Whether the init containers have yet to run, or never will."""
    return bool(pod.spec.init_containers) and (progress.state == "bound" or _lost(progress))


def _lost(progress: PodProgress) -> bool:
    """Whether a pod was over before its containers started."""
    return progress.state == "finished" and progress.code == LOST and not progress.previous


def _gates(pod: Pod) -> tuple[bool, str, str]:
    """Whether the pod is ready, given that its containers are."""
    if not pod.spec.readiness_gates:
        return (True, "", "")
    have = {one.type: one.status for one in pod.status.conditions}
    faults = []
    for gate in pod.spec.readiness_gates:
        kind = gate.condition_type
        if kind not in have:
            faults.append(f'corresponding condition of pod readiness gate "{kind}" does not exist.')
        elif have[kind] != "True":
            faults.append(
                f'the status of pod readiness gate "{kind}" is not "True", but {have[kind]}'
            )
    return (not faults, "ReadinessGatesNotReady" if faults else "", ", ".join(faults))


def _condition(pod: Pod, kind: str, value: bool, reason: str, message: str, *, now: str) -> Obj:
    known = next((one for one in pod.status.conditions if one.type == kind), NOTHING)
    same = known.status == str(value) and known.last_transition_time
    body: Obj = {
        "type": kind,
        "status": str(value),
        "observedGeneration": pod.metadata.generation,
        "lastProbeTime": None,
        "lastTransitionTime": known.last_transition_time if same else now,
    }
    # A patch leaves what it does not name: a reason that is over has to be removed.
    if reason or known.reason:
        body["reason"] = reason or None
    if message or known.message:
        body["message"] = message or None
    return body


def _container(pod: Pod, container: Container, progress: PodProgress) -> Obj:
    body = _identity(pod, container, restarts=progress.restarts)
    body["ready"] = progress.state == "ready"
    body["started"] = progress.state in ("running", "ready")
    last = _terminated(pod, container, progress)
    match progress.state:
        case "running" | "ready":
            body["state"] = {"running": {"startedAt": _text(progress.started)}}
        case "finished" if last is not None and not _uninitialized(pod, progress):
            body["state"] = {"terminated": last}
            return body
        case "ended":
            body["state"] = {"waiting": _crash_loop(pod, container, progress)}
        case _:
            first = "PodInitializing" if pod.spec.init_containers else "ContainerCreating"
            body["state"] = {"waiting": {"reason": first}}
            del body["containerID"]
    if last is not None and not _lost(progress):
        body["lastState"] = {"terminated": last}
    return body


def _init_container(pod: Pod, container: Container, progress: PodProgress) -> Obj:
    beside = container.restart_policy == "Always"
    body = _identity(pod, container, restarts=0)
    if _uninitialized(pod, progress):
        waiting = {"waiting": {"reason": "PodInitializing"}}
        return body | {"ready": False, "started": False, "state": waiting}
    began = _text(progress.started or progress.previous)
    if beside and progress.state != "finished":
        return body | {"ready": True, "started": True, "state": {"running": {"startedAt": began}}}
    over = {"exitCode": 0, "reason": "Completed", "startedAt": began, "finishedAt": began}
    return body | {"ready": not beside, "started": False, "state": {"terminated": over}}


def _identity(pod: Pod, container: Container, *, restarts: int) -> Obj:
    return {
        "name": container.name,
        "image": container.image,
        "imageID": f"zonewise://{container.image}",
        "containerID": f"zonewise://{pod.metadata.uid}/{container.name}/{restarts}",
        "restartCount": restarts,
    }


def _terminated(pod: Pod, container: Container, progress: PodProgress) -> Obj | None:
    if progress.code is None:
        return None
    if _lost(progress):
        return {"exitCode": LOST, "reason": "ContainerStatusUnknown", "message": LOST_TEXT}
    run = progress.restarts - (progress.state in ("running", "ready"))
    return {
        "exitCode": progress.code,
        "reason": "Error" if progress.code else "Completed",
        "startedAt": _text(progress.previous),
        "finishedAt": _text(progress.ended),
        "containerID": f"zonewise://{pod.metadata.uid}/{container.name}/{run}",
    }


def _crash_loop(pod: Pod, container: Container, progress: PodProgress) -> Obj:
    meta = pod.metadata
    name = f"{meta.name}_{meta.namespace}({meta.uid})"
    pause = backoff(progress.restarts)
    text = f"{pause // 60:.0f}m{pause % 60:.0f}s" if pause >= 60 else f"{pause:.0f}s"
    return {
        "reason": "CrashLoopBackOff",
        "message": f"back-off {text} restarting failed container={container.name} pod={name}",
    }


def _text(moment: float) -> str:
    return format_time(from_epoch(moment))
