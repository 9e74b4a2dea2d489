"""Pods: what the server sets, what may change after creation, how long a pod may take to go."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec

from zonewise.api.field_cursor import Field
from zonewise.api.objects.pod_state import FINISHED_PHASES
from zonewise.api.values import quantity
from zonewise.embedded.apiserver.strategy.base import Obj, Rules, StrategyContext, revert
from zonewise.embedded.apiserver.strategy.pod import changes
from zonewise.embedded.apiserver.strategy.pod.affinity import merge_label_keys
from zonewise.embedded.apiserver.strategy.pod.containers import validate_image
from zonewise.embedded.apiserver.strategy.pod.resources import CPU_AND_MEMORY
from zonewise.embedded.apiserver.strategy.pod.spec import (
    validate_pod_annotations,
    validate_pod_spec,
    validate_profiles_agree,
)
from zonewise.embedded.apiserver.strategy.pod.warnings import pod_warnings, warn_of_name

CACHED_SPECS = 4096
CACHED_BYTES = 64 * 1024

_encode = msgspec.json.Encoder().encode


class ValidSpecs:
    """A bounded set of digests of specs that passed validation; if full, it drops the older half.

    Pods of one template are the same in all but their names, and an update mostly leaves the spec
    as it was. Validating a spec costs hundreds of checks; recognising that its very bytes passed
    costs one hash. Only valid specs are cached, so an error is always found again, with its path.
    The digest is a cryptographic one: a client that can choose a spec cannot make it pass for
    another.
    """

    def __init__(self) -> None:
        self._digests: dict[bytes, None] = {}

    def digest(self, *parts: Any) -> bytes | None:
        """The digest of these JSON values; None where they are too large to be cached."""
        text = _encode(parts)
        return blake2b(text, digest_size=16).digest() if len(text) <= CACHED_BYTES else None

    def __contains__(self, digest: bytes | None) -> bool:
        return digest in self._digests

    def add(self, digest: bytes | None) -> None:
        """Remember that all was valid."""
        if digest is None:
            return
        if len(self._digests) >= CACHED_SPECS:
            for old in list(self._digests)[: CACHED_SPECS // 2]:
                del self._digests[old]
        self._digests[digest] = None


def _selectable_fields(obj: Obj) -> dict[str, str]:
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


class PodRules(Rules):
    """The rules of Pods."""

    _valid_specs = ValidSpecs()
    graceful = True
    selectable = frozenset(_selectable_fields({}))

    def fields(self, obj: Obj) -> dict[str, str]:
        return _selectable_fields(obj)

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """A new pod is pending."""
        spec = obj.setdefault("spec", {})
        _replace_negative_grace_period(spec)
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
        _replace_negative_grace_period(obj.setdefault("spec", {}))
        if context.subresource == "ephemeralcontainers":
            changes.keep_but_ephemeral(obj, old)
        elif context.subresource == "resize":
            changes.keep_but_resources(obj, old)

    def prepare_status(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """A status write cannot remove what only the server sets."""
        revert(obj["metadata"], old["metadata"], "ownerReferences")
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
        _sync_pod_ips(status)

    def grace(self, obj: Obj, requested: int | None, context: StrategyContext) -> int:
        """A pod that never ran or has finished needs no grace period."""
        spec = obj.get("spec") or {}
        default = spec.get("terminationGracePeriodSeconds", 30)
        seconds = default if requested is None else requested
        if not spec.get("nodeName") or (obj.get("status") or {}).get("phase") in FINISHED_PHASES:
            return 0
        return max(int(seconds), 0) if seconds >= 0 else 1

    def validate(self, obj: Field, context: StrategyContext) -> None:
        spec, meta = obj.value["spec"], obj.value["metadata"]
        # A volume with a claim of its own depends on the pod's name, too.
        has_claims = any(volume.get("ephemeral") for volume in spec.get("volumes") or ())
        digest = self._valid_specs.digest(
            spec, meta.get("annotations"), meta.get("name") if has_claims else None
        )
        if digest in self._valid_specs:
            return
        if obj.is_valid(_validate_pod):
            self._valid_specs.add(digest)

    def validate_create(self, obj: Field, context: StrategyContext) -> None:
        self.validate(obj, context)
        fields, annotations = obj.value["spec"], obj.value["metadata"].get("annotations")
        if fields.get("ephemeralContainers"):
            obj["spec"]["ephemeralContainers"].forbid("cannot be set on create")
        if fields.get("nodeName") and fields.get("schedulingGates"):
            obj["spec"]["nodeName"].forbid(
                "cannot be set until all schedulingGates have been cleared"
            )
        if annotations:
            validate_profiles_agree(annotations, obj["spec"])

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        """Say what is odd about a new pod."""
        if old is None:
            warn_of_name(obj, context, "the Pod's hostname")
            context.warnings.extend(pod_warnings(obj))

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        if context.subresource == "binding":
            return  # the server itself writes what a binding says
        self.validate(obj, context)
        spec, old_spec = obj["spec"], old["spec"]
        if context.subresource == "resize":
            old_qos = (old.get("status") or {}).get("qosClass") or qos_class(old_spec)
            changes.validate_pod_resize(obj, old, qos_class(spec.value), old_qos)
            return
        changes.validate_pod_annotations_update(
            obj["metadata"]["annotations"], old["metadata"].get("annotations") or {}
        )
        if context.subresource == "ephemeralcontainers":
            changes.validate_ephemeral_containers_update(spec, old_spec)
        else:
            changes.validate_pod_spec_update(spec, old_spec)

    def validate_status(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        changes.validate_pod_status_update(obj, old)


def _replace_negative_grace_period(spec: Obj) -> None:
    """A negative grace period means one second."""
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        spec["terminationGracePeriodSeconds"] = 1


def _sync_pod_ips(status: Obj) -> None:
    """``podIP`` is the first of ``podIPs``; a client may set either."""
    address, addresses = status.get("podIP", ""), status.get("podIPs") or []
    if not address and addresses:
        status["podIP"] = addresses[0].get("ip", "")
    elif address and (not addresses or addresses[0].get("ip", "") != address):
        status["podIPs"] = [{"ip": address}]


def _validate_pod(pod: Field) -> None:
    spec, fields = pod["spec"], pod.value["spec"]
    validate_pod_spec(spec, pod.value["metadata"])
    if pod.value["metadata"].get("annotations"):
        validate_pod_annotations(pod["metadata"]["annotations"], spec)
    for containers in ("containers", "initContainers"):
        for index, container in enumerate(fields.get(containers) or ()):
            image = container.get("image")
            if image and image.strip() != image:
                validate_image(spec[containers].item(index)["image"])
    if not fields.get("serviceAccountName"):
        for volume in spec["volumes"].each():
            for source in volume["projected"]["sources"].each():
                source["serviceAccountToken"].forbid_set(
                    "must not be specified when serviceAccountName is not set"
                )


def qos_class(spec: Obj) -> str:
    """Guaranteed, Burstable or BestEffort: how much a pod was promised."""
    holders: list[Obj] = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    if spec.get("resources"):
        holders = [spec]
    has_amounts, is_guaranteed = False, True
    for holder in holders:
        resources = holder.get("resources") or {}
        requests = _positive(resources.get("requests") or {})
        limits = _positive(resources.get("limits") or {})
        has_amounts = has_amounts or bool(requests or limits)
        if limits.keys() != CPU_AND_MEMORY or any(
            requests.get(name, limit) != limit for name, limit in limits.items()
        ):
            is_guaranteed = False
    if not has_amounts:
        return "BestEffort"
    return "Guaranteed" if is_guaranteed else "Burstable"


def _positive(amounts: Obj) -> dict[str, Any]:
    values = {
        name: quantity.value(amount) for name, amount in amounts.items() if name in CPU_AND_MEMORY
    }
    return {name: value for name, value in values.items() if value > 0}
