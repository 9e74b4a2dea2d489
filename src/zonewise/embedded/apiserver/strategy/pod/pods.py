"""Pods: what the server sets, what may change after creation, how long a pod may take to go."""

from __future__ import annotations

from typing import Any

from zonewise.api import field_errors
from zonewise.api.objects.pod_state import FINISHED
from zonewise.api.values import quantity
from zonewise.embedded.apiserver.strategy.base import Faults, Obj, Rules, StrategyContext
from zonewise.embedded.apiserver.strategy.pod import changes
from zonewise.embedded.apiserver.strategy.pod.affinity import merge_label_keys
from zonewise.embedded.apiserver.strategy.pod.containers import image_faults
from zonewise.embedded.apiserver.strategy.pod.spec import (
    annotation_faults,
    profile_faults,
    spec_faults,
)
from zonewise.embedded.apiserver.strategy.pod.validated_cache import ValidatedCache
from zonewise.embedded.apiserver.strategy.pod.warnings import pod_warnings, warn_of_name

SCARCE = ("cpu", "memory")


class PodRules(Rules):
    """The rules of Pods."""

    _known = ValidatedCache()
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

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """A new pod is pending."""
        spec = obj.setdefault("spec", {})
        _patient(spec)
        status: Obj = {"phase": "Pending", "qosClass": qos_class(spec)}
        if spec.get("schedulingGates"):
            status["conditions"] = [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "lastProbeTime": None,
                    "lastTransitionTime": context.now,
                    "reason": "SchedulingGated",
                    "message": "Scheduling is blocked due to non-empty scheduling gates",
                }
            ]
        obj["status"] = status
        if spec.get("affinity") or spec.get("topologySpreadConstraints"):
            merge_label_keys(spec, obj["metadata"].get("labels") or {})

    def prepare_update(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """Two subresources change a part of the spec and nothing else."""
        _patient(obj.setdefault("spec", {}))
        if context.subresource == "ephemeralcontainers":
            changes.keep_but_ephemeral(obj, old)
        elif context.subresource == "resize":
            changes.keep_but_resources(obj, old)

    def prepare_status(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """A status write cannot remove what only the server sets."""
        obj["metadata"].pop("ownerReferences", None)
        if old["metadata"].get("ownerReferences"):
            obj["metadata"]["ownerReferences"] = old["metadata"]["ownerReferences"]
        status, before = obj.setdefault("status", {}), old.get("status") or {}
        for key in ("qosClass", "observedGeneration"):
            if not status.get(key) and before.get(key):
                status[key] = before[key]
        seen: dict[str, list[int]] = {}
        for condition in before.get("conditions") or ():
            number = condition.get("observedGeneration", 0)
            seen.setdefault(condition.get("type", ""), []).append(number)
        for condition in status.get("conditions") or ():
            left = seen.get(condition.get("type", ""))
            number = left.pop(0) if left else 0
            if number and not condition.get("observedGeneration"):
                condition["observedGeneration"] = number
        _align(status)

    def grace(self, obj: Obj, asked: int | None, context: StrategyContext) -> int:
        """A pod that never ran or has finished needs no grace period."""
        spec = obj.get("spec") or {}
        seconds = asked if asked is not None else spec.get("terminationGracePeriodSeconds", 30)
        if not spec.get("nodeName") or (obj.get("status") or {}).get("phase") in FINISHED:
            return 0
        return max(int(seconds), 0) if seconds >= 0 else 1

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a pod, new or not."""
        spec, meta = obj["spec"], obj["metadata"]
        # A volume with a claim of its own is judged by the pod's name too.
        claims = any(one.get("ephemeral") for one in spec.get("volumes") or ())
        digest = self._known.digest(
            spec, meta.get("annotations"), meta.get("name") if claims else None
        )
        if digest in self._known:
            return []
        found = self._validate(spec, meta)
        if not found:
            self._known.add(digest)
        return found

    def _validate(self, spec: Obj, meta: Obj) -> Faults:
        found = spec_faults(spec, "spec", meta)
        if meta.get("annotations"):
            found += annotation_faults(meta["annotations"], spec, "metadata.annotations")
        for group in ("containers", "initContainers"):
            for index, one in enumerate(spec.get(group) or ()):
                found += image_faults(one, f"spec.{group}[{index}]")
        if not spec.get("serviceAccountName"):
            found += _tokens_of_nobody(spec)
        return found

    def validate_create(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a new pod."""
        found = self.validate(obj, context)
        spec, annotations = obj["spec"], obj["metadata"].get("annotations")
        if spec.get("ephemeralContainers"):
            found.append(
                field_errors.forbidden("spec.ephemeralContainers", "cannot be set on create")
            )
        if spec.get("nodeName") and spec.get("schedulingGates"):
            text = "cannot be set until all schedulingGates have been cleared"
            found.append(field_errors.forbidden("spec.nodeName", text))
        if annotations:
            found += profile_faults(annotations, spec, "spec")
        return found

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        """Say what is odd about a new pod."""
        if old is None:
            warn_of_name(obj, context, "the Pod's hostname")
            context.warnings.extend(pod_warnings(obj))

    def validate_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What an update may not change."""
        if context.subresource == "binding":
            return []  # the server itself writes what a binding says
        spec, before = obj["spec"], old["spec"]
        found = self.validate(obj, context)
        if context.subresource == "resize":
            quality = (old.get("status") or {}).get("qosClass") or qos_class(before)
            return found + changes.resize_faults(obj, old, qos_class(spec), quality)
        found += changes.annotation_change_faults(obj, old)
        if context.subresource == "ephemeralcontainers":
            return found + changes.ephemeral_change_faults(spec, before)
        return found + changes.spec_change_faults(spec, before)

    def validate_status(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a new status."""
        return changes.status_faults(obj, old)


def _patient(spec: Obj) -> None:
    """A negative grace period means one second."""
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        spec["terminationGracePeriodSeconds"] = 1


def _align(status: Obj) -> None:
    """``podIP`` is the first of ``podIPs``; a client may set either."""
    one, many = status.get("podIP", ""), status.get("podIPs") or []
    if one and not many:
        status["podIPs"] = [{"ip": one}]
    elif many and not one:
        status["podIP"] = many[0].get("ip", "")
    elif many and one != many[0].get("ip", ""):
        status["podIPs"] = [{"ip": one}]


def _tokens_of_nobody(spec: Obj) -> Faults:
    found: Faults = []
    for index, volume in enumerate(spec.get("volumes") or ()):
        for number, source in enumerate((volume.get("projected") or {}).get("sources") or ()):
            if source.get("serviceAccountToken") is not None:
                at = f"spec.volumes[{index}].projected.sources[{number}].serviceAccountToken"
                text = "must not be specified when serviceAccountName is not set"
                found.append(field_errors.forbidden(at, text))
    return found


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
