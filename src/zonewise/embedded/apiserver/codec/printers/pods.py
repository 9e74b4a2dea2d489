"""Printers of pods and pod templates."""

from __future__ import annotations

from typing import Any

from zonewise.embedded.apiserver.codec.printers.base import (
    NONE,
    Obj,
    age_of,
    container_cells,
    format_age,
    format_selector,
    name_of,
    printer_for,
    spec_of,
    status_of,
)


@printer_for("/pods")
def _print_pod(obj: Obj, now: str) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    reason, ready, total, restarts, last_restart = _summarize_pod(obj)
    restarts_text = str(restarts)
    if restarts and last_restart:
        restarts_text = f"{restarts} ({format_age(last_restart, now)} ago)"
    gates = NONE
    if spec.get("readinessGates"):
        true_conditions = {
            condition.get("type")
            for condition in status.get("conditions") or ()
            if condition.get("status") == "True"
        }
        met_gates = sum(
            gate.get("conditionType") in true_conditions for gate in spec["readinessGates"]
        )
        gates = f"{met_gates}/{len(spec['readinessGates'])}"
    addresses = status.get("podIPs") or ()
    address = addresses[0].get("ip", "") if addresses else status.get("podIP", "")
    return [
        name_of(obj),
        f"{ready}/{total}",
        reason,
        restarts_text,
        age_of(obj, now),
        address or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        gates,
    ]


def _summarize_pod(obj: Obj) -> tuple[str, int, int, int, str]:
    spec, status = spec_of(obj), status_of(obj)
    reason = status.get("reason") or status.get("phase", "")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            reason = "SchedulingGated"
    sidecars = {
        container["name"]
        for container in spec.get("initContainers") or ()
        if container.get("restartPolicy") == "Always"
    }
    total = len(spec.get("containers") or ()) + len(sidecars)
    ready = restarts = sidecar_restarts = 0
    last_restart = ""
    initializing = False
    states = status.get("initContainerStatuses") or []
    for index, container_status in enumerate(states):
        state = container_status.get("state") or {}
        restarts += container_status.get("restartCount", 0)
        last_restart = max(last_restart, _finished_at(container_status))
        sidecar = container_status.get("name") in sidecars
        if sidecar:
            sidecar_restarts += container_status.get("restartCount", 0)
        terminated, waiting = state.get("terminated"), state.get("waiting")
        if terminated is not None and terminated.get("exitCode", 0) == 0:
            continue
        if sidecar and container_status.get("started"):
            ready += bool(container_status.get("ready"))
            continue
        initializing = True
        if terminated is not None:
            reason = f"Init:{_termination_reason(terminated)}"
        elif waiting and waiting.get("reason") not in {None, "", "PodInitializing"}:
            reason = f"Init:{waiting['reason']}"
        else:
            reason = f"Init:{index}/{len(spec.get('initContainers') or ())}"
        break
    if not initializing:
        restarts = sidecar_restarts
        running = False
        for container_status in reversed(status.get("containerStatuses") or ()):
            state = container_status.get("state") or {}
            restarts += container_status.get("restartCount", 0)
            last_restart = max(last_restart, _finished_at(container_status))
            terminated, waiting = state.get("terminated"), state.get("waiting")
            if waiting and waiting.get("reason"):
                reason = waiting["reason"]
            elif terminated is not None:
                reason = _termination_reason(terminated)
            elif container_status.get("ready") and state.get("running") is not None:
                running = True
                ready += 1
        if reason == "Completed" and running:
            is_ready = any(
                condition.get("type") == "Ready" and condition.get("status") == "True"
                for condition in status.get("conditions") or ()
            )
            reason = "Running" if is_ready else "NotReady"
    if obj["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            reason = "Unknown"
        elif status.get("phase") not in {"Failed", "Succeeded"}:
            reason = "Terminating"
    return reason, ready, total, restarts, last_restart


def _finished_at(container: Obj) -> str:
    terminated = (container.get("lastState") or {}).get("terminated") or {}
    return terminated.get("finishedAt") or ""


def _termination_reason(terminated: Obj) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


@printer_for("/podtemplates")
def _print_pod_template(obj: Obj, _now: str) -> list[Any]:
    template = obj.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels")
    return [name_of(obj), *container_cells(template.get("spec")), format_selector(labels)]
