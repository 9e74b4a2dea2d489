"""Pods: what the server sets, what may change after creation, how long a pod may take to go."""

from __future__ import annotations

from typing import Any

from zonewise.api import quantity
from zonewise.embedded.rules.base import Faults, Obj, Rules, Scene

FINISHED = ("Failed", "Succeeded")
SCARCE = ("cpu", "memory")


class PodRules(Rules):
    """The rules of Pods."""

    graceful = True
    selectable = frozenset(
        {
            "spec.hostNetwork",
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.nominatedNodeName",
            "status.phase",
            "status.podIP",
            "status.podIPs",
        }
    )

    def fields(self, obj: Obj) -> dict[str, str]:
        """The values of the selectable fields."""
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        return {
            "spec.hostNetwork": "true" if spec.get("hostNetwork") else "false",
            "spec.nodeName": spec.get("nodeName", ""),
            "spec.restartPolicy": spec.get("restartPolicy", ""),
            "spec.schedulerName": spec.get("schedulerName", ""),
            "spec.serviceAccountName": spec.get("serviceAccountName", ""),
            "status.nominatedNodeName": status.get("nominatedNodeName", ""),
            "status.phase": status.get("phase", ""),
            "status.podIP": status.get("podIP", ""),
            "status.podIPs": status.get("podIP", ""),
        }

    def prepare_create(self, obj: Obj, scene: Scene) -> None:
        """A new pod is pending."""
        spec = obj.setdefault("spec", {})
        status: Obj = {"phase": "Pending", "qosClass": qos_class(spec)}
        if spec.get("schedulingGates"):
            status["conditions"] = [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "lastProbeTime": None,
                    "lastTransitionTime": None,
                    "reason": "SchedulingGated",
                    "message": "Scheduling is blocked due to non-empty scheduling gates",
                }
            ]
        obj["status"] = status

    def prepare_status(self, obj: Obj, old: Obj, scene: Scene) -> None:
        """A status write cannot take away what only the server knows."""
        obj["metadata"].pop("ownerReferences", None)
        if old["metadata"].get("ownerReferences"):
            obj["metadata"]["ownerReferences"] = old["metadata"]["ownerReferences"]
        quality = (old.get("status") or {}).get("qosClass")
        if quality:
            obj.setdefault("status", {})["qosClass"] = quality

    def grace(self, obj: Obj, asked: int | None, scene: Scene) -> int:
        """Nobody has to finish a pod that never ran or has finished."""
        spec = obj.get("spec") or {}
        seconds = asked if asked is not None else spec.get("terminationGracePeriodSeconds", 30)
        if not spec.get("nodeName") or (obj.get("status") or {}).get("phase") in FINISHED:
            return 0
        return max(int(seconds), 0) if seconds >= 0 else 1

    def validate_status(self, obj: Obj, old: Obj, scene: Scene) -> Faults:
        """What is wrong with a new status."""
        return []


def qos_class(spec: Obj) -> str:
    """Guaranteed, Burstable or BestEffort: how much a pod was promised."""
    containers: list[Obj] = [
        *(spec.get("containers") or ()),
        *(spec.get("initContainers") or ()),
    ]
    if spec.get("resources"):
        containers = [{"resources": spec["resources"]}]
    asked: dict[str, Any] = {}
    guaranteed = True
    for one in containers:
        resources = one.get("resources") or {}
        requests = _positive(resources.get("requests") or {})
        limits = _positive(resources.get("limits") or {})
        asked |= requests | limits
        if set(limits) != set(SCARCE) or any(
            requests.get(name, limits[name]) != limits[name] for name in limits
        ):
            guaranteed = False
    if not asked:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _positive(amounts: Obj) -> dict[str, Any]:
    found = {}
    for name in SCARCE:
        if name in amounts:
            value = quantity.parse(str(amounts[name])).value
            if value > 0:
                found[name] = value
    return found
