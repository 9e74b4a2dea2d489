"""Pods and their templates."""

from __future__ import annotations

from typing import Any

from zonewise.embedded.apiserver.codec.printers.base import (
    NONE,
    Obj,
    age_of,
    containers_of,
    labels_of,
    name_of,
    prints,
    since,
    spec_of,
    status_of,
)


@prints("/pods")
def _pod(obj: Obj, now: str) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    reason, ready, total, restarts, last = _pod_reason(obj)
    shown = str(restarts)
    if restarts and last:
        shown = f"{restarts} ({since(last, now)} ago)"
    gates = NONE
    if spec.get("readinessGates"):
        good = {
            one.get("type") for one in status.get("conditions") or () if one.get("status") == "True"
        }
        met = sum(gate.get("conditionType") in good for gate in spec["readinessGates"])
        gates = f"{met}/{len(spec['readinessGates'])}"
    addresses = status.get("podIPs") or ()
    address = addresses[0].get("ip", "") if addresses else status.get("podIP", "")
    return [
        name_of(obj),
        f"{ready}/{total}",
        reason,
        shown,
        age_of(obj, now),
        address or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        gates,
    ]


def _pod_reason(obj: Obj) -> tuple[str, int, int, int, str]:
    spec, status = spec_of(obj), status_of(obj)
    reason = status.get("reason") or status.get("phase", "")
    for one in status.get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("reason") == "SchedulingGated":
            reason = "SchedulingGated"
    sidecars = {
        one["name"]
        for one in spec.get("initContainers") or ()
        if one.get("restartPolicy") == "Always"
    }
    total = len(spec.get("containers") or ()) + len(sidecars)
    ready = restarts = sidecar_restarts = 0
    last = ""
    initializing = False
    states = status.get("initContainerStatuses") or []
    for index, one in enumerate(states):
        state = one.get("state") or {}
        restarts += one.get("restartCount", 0)
        last = max(last, _finished(one))
        sidecar = one.get("name") in sidecars
        if sidecar:
            sidecar_restarts += one.get("restartCount", 0)
        ended, waiting = state.get("terminated"), state.get("waiting")
        if ended is not None and ended.get("exitCode", 0) == 0:
            continue
        if sidecar and one.get("started"):
            ready += bool(one.get("ready"))
            continue
        initializing = True
        if ended is not None:
            reason = f"Init:{_ending(ended)}"
        elif waiting and waiting.get("reason") not in {None, "", "PodInitializing"}:
            reason = f"Init:{waiting['reason']}"
        else:
            reason = f"Init:{index}/{len(spec.get('initContainers') or ())}"
        break
    if not initializing:
        restarts = sidecar_restarts
        running = False
        for one in reversed(status.get("containerStatuses") or ()):
            state = one.get("state") or {}
            restarts += one.get("restartCount", 0)
            last = max(last, _finished(one))
            ended, waiting = state.get("terminated"), state.get("waiting")
            if waiting and waiting.get("reason"):
                reason = waiting["reason"]
            elif ended is not None:
                reason = _ending(ended)
            elif one.get("ready") and state.get("running") is not None:
                running = True
                ready += 1
        if reason == "Completed" and running:
            good = any(
                one.get("type") == "Ready" and one.get("status") == "True"
                for one in status.get("conditions") or ()
            )
            reason = "Running" if good else "NotReady"
    if obj["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            reason = "Unknown"
        elif status.get("phase") not in {"Failed", "Succeeded"}:
            reason = "Terminating"
    return reason, ready, total, restarts, last


def _finished(container: Obj) -> str:
    ended = (container.get("lastState") or {}).get("terminated") or {}
    return ended.get("finishedAt") or ""


def _ending(ended: Obj) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    if ended.get("signal"):
        return f"Signal:{ended['signal']}"
    return f"ExitCode:{ended.get('exitCode', 0)}"


@prints("/podtemplates")
def _pod_template(obj: Obj, _now: str) -> list[Any]:
    template = obj.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels")
    return [name_of(obj), *containers_of(template.get("spec")), labels_of(labels)]
