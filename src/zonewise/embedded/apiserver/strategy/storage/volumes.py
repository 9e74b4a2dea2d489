"""PersistentVolumes and the claims on them.

A volume's source and a claim's requests do not change once they are written; what may still change
is what binding and growing need.
"""

from __future__ import annotations

from fractions import Fraction

from zonewise.api import field_errors
from zonewise.api.objects.storage import LEGACY_CLASS
from zonewise.api.resource import Resource
from zonewise.api.values import names, quantity
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.strategy.base import Faults, Obj, Rules, StrategyContext
from zonewise.embedded.apiserver.strategy.pod.affinity import node_selector_faults
from zonewise.embedded.apiserver.strategy.pod.volumes import (
    ACCESS_MODES,
    VOLUME_MODES,
    claim_spec_faults,
)
from zonewise.embedded.apiserver.strategy.storage.sources import SOURCES, source_faults
from zonewise.embedded.apiserver.strategy.warnings import claim_warnings, volume_warnings

RECLAIM_POLICIES = ("Delete", "Recycle", "Retain")
RESIZE_STATES = frozenset(
    {
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizePending",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
    }
)
CLAIM = Resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", True)
LEGACY_OPTIONS = "volume.beta.kubernetes.io/mount-options"
MOUNTED_AS_TOLD = frozenset(
    {
        "awsElasticBlockStore",
        "azureDisk",
        "azureFile",
        "cephfs",
        "cinder",
        "csi",
        "gcePersistentDisk",
        "glusterfs",
        "iscsi",
        "nfs",
        "quobyte",
        "rbd",
        "storageos",
        "vsphereVolume",
    }
)
"""Sources whose mounts take options."""
INLINE = "may not be specified in the context of inline volumes"


class VolumeRules(Rules):
    """The rules of PersistentVolumes."""

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        """Annotations that are fields now, and removed sources."""
        context.warnings.extend(volume_warnings(obj))

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """A new volume is on its way."""
        obj["status"] = {"phase": "Pending", "lastPhaseTransitionTime": context.now}

    def prepare_status(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """A change of the phase may set its time; otherwise the server does."""
        status, before = obj.setdefault("status", {}), old.get("status") or {}
        since = "lastPhaseTransitionTime"
        if status.get("phase") != before.get("phase"):
            if status.get(since) == before.get(since) or since not in status:
                status[since] = context.now
        elif since not in status and since in before:
            status[since] = before[since]

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a volume."""
        spec = obj.get("spec") or {}
        found = volume_spec_faults(spec, "spec")
        options = LEGACY_OPTIONS in (obj["metadata"].get("annotations") or {})
        if options and not any(spec.get(key) is not None for key in MOUNTED_AS_TOLD):
            text = "may not specify mount options for this volume type"
            found.append(field_errors.forbidden(f"metadata.annotations.{LEGACY_OPTIONS}", text))
        return found

    def validate_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """The source, the mode and the place of a volume stay."""
        spec, before = obj.get("spec") or {}, old.get("spec") or {}
        found = self.validate(obj, context)
        if _source(spec) != _source(before) and not _only_expansion(spec, before):
            text = "spec.persistentvolumesource is immutable after creation"
            found.append(field_errors.forbidden("spec.persistentvolumesource", text))
        found += _kept("volumeMode", spec, before)
        if before.get("nodeAffinity") is not None:
            found += _kept("nodeAffinity", spec, before)
        return found


class ClaimRules(Rules):
    """The rules of PersistentVolumeClaims."""

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        """Annotations that are fields now, and parts of a byte."""
        context.warnings.extend(claim_warnings(obj))

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """A new claim waits; its source is in both of the fields for it."""
        obj["status"] = {"phase": "Pending"}
        spec = obj.setdefault("spec", {})
        _drop_sources(spec)
        source, reference = spec.get("dataSource"), spec.get("dataSourceRef")
        if source is not None and reference is None:
            spec["dataSourceRef"] = dict(source)
        elif reference is not None and source is None:
            spec["dataSource"] = dict(reference)

    def prepare_update(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """A source that the server does not support is dropped."""
        spec, before = obj.setdefault("spec", {}), old.get("spec") or {}
        if before.get("dataSource") is None and before.get("dataSourceRef") is None:
            _drop_sources(spec)

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a claim."""
        spec = obj.get("spec") or {}
        return claim_spec_faults(spec, "spec") + _filling_faults(spec)

    def validate_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """An unbound claim may be given a volume; a bound one may request more."""
        spec, before = obj.get("spec") or {}, old.get("spec") or {}
        found = self.validate(obj, context)
        bound = (old.get("status") or {}).get("phase") == "Bound"
        same = dict(spec)
        for key, free in (
            ("volumeName", not before.get("volumeName")),
            ("storageClassName", before.get("storageClassName") is None),
            ("volumeAttributesClassName", bound),
        ):
            if free:
                _carry(same, before, key)
        if bound:
            found += _size_faults(spec, before, old)
            same["resources"] = dict(spec.get("resources") or {})
            _carry(same["resources"], before.get("resources") or {}, "requests")
        if same != before:
            text = (
                "spec is immutable after creation except resources.requests and"
                " volumeAttributesClassName for bound claims"
            )
            found.append(field_errors.forbidden("spec", text))
        found += _kept("volumeMode", spec, before)
        now, was = _legacy_class(obj), _legacy_class(old)
        if was is not None and now != was:
            path = f"metadata.annotations.{LEGACY_CLASS}"
            found.append(field_errors.invalid(path, now, "field is immutable"))
        if not found and bound:
            self._check_growth(obj, before, context)
        return found

    def _check_growth(self, obj: Obj, before: Obj, context: StrategyContext) -> None:
        """Admission's word on growing: the class must allow it."""
        spec = obj["spec"]
        now, was = _wanted(spec), _wanted(before)
        if now is None or was is None or now <= was:
            return
        legacy = _legacy_class(obj)
        name = (spec.get("storageClassName") if legacy is None else legacy) or ""
        chosen = context.look("storage.k8s.io/storageclasses", "", name) if name else None
        if chosen is None or not chosen.get("allowVolumeExpansion"):
            raise status_errors.forbidden(
                CLAIM,
                obj["metadata"]["name"],
                "only dynamically provisioned pvc can be resized and the storageclass that"
                " provisions the pvc must support resize",
            )

    def validate_status(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a claim's status."""
        status = obj.get("status") or {}
        found: Faults = []
        for key in ("capacity", "allocatedResources"):
            for name, amount in (status.get(key) or {}).items():
                if quantity.value(amount) < 0:
                    text = "must be greater than or equal to 0"
                    found.append(field_errors.invalid(f"status.{key}[{name}]", str(amount), text))
        for state in (status.get("allocatedResourceStatuses") or {}).values():
            if state not in RESIZE_STATES:
                path = "status.allocatedResourceStatuses"
                found.append(field_errors.unsupported(path, state, RESIZE_STATES))
        return found


def volume_spec_faults(spec: Obj, path: str, *, inline: bool = False) -> Faults:
    """What is wrong with a volume; an inline one is part of an attachment and promises nothing."""
    found: Faults = []
    if inline:
        for key in ("claimRef", "capacity", "nodeAffinity", "storageClassName"):
            if spec.get(key):
                found.append(field_errors.forbidden(f"{path}.{key}", INLINE))
        if spec.get("csi") is None:
            found.append(
                field_errors.required(f"{path}.csi", "has to be specified for inline volumes")
            )
    else:
        found += _capacity_faults(spec.get("capacity") or {}, f"{path}.capacity")
    found += _mode_faults(spec.get("accessModes") or (), f"{path}.accessModes")
    policy = spec.get("persistentVolumeReclaimPolicy")
    at = f"{path}.persistentVolumeReclaimPolicy"
    if policy and inline and policy != "Retain":
        found.append(field_errors.forbidden(at, INLINE))
    elif policy and policy not in RECLAIM_POLICIES:
        found.append(field_errors.unsupported(at, policy, RECLAIM_POLICIES))
    if not inline and spec.get("nodeAffinity") is not None:
        found += _affinity_faults(spec["nodeAffinity"], f"{path}.nodeAffinity")
    found += source_faults(spec, path)
    if (spec.get("hostPath") or {}).get("path") == "/" and policy == "Recycle":
        text = "may not be 'recycle' for a hostPath mount of '/'"
        found.append(field_errors.forbidden(at, text))
    name = spec.get("storageClassName")
    if name and not inline:
        at = f"{path}.storageClassName"
        found += [field_errors.invalid(at, name, text) for text in names.subdomain(name)]
    mode = spec.get("volumeMode")
    if mode is not None and mode not in VOLUME_MODES:
        found.append(field_errors.unsupported(f"{path}.volumeMode", mode, VOLUME_MODES))
    elif inline and mode not in {None, "Filesystem"}:
        found.append(field_errors.forbidden(f"{path}.volumeMode", INLINE))
    quality = spec.get("volumeAttributesClassName")
    if quality:
        at = f"{path}.volumeAttributesClassName"
        found += [field_errors.invalid(at, quality, text) for text in names.subdomain(quality)]
        if spec.get("csi") is None and not inline:
            text = "has to be specified when using volumeAttributesClassName"
            found.append(field_errors.required(f"{path}.csi", text))
    return found


def _capacity_faults(capacity: Obj, path: str) -> Faults:
    found: Faults = []
    if not capacity:
        found.append(field_errors.required(path))
    if capacity.keys() != {"storage"}:
        found.append(field_errors.unsupported(path, capacity, ("storage",)))
    for name, amount in capacity.items():
        if quantity.value(amount) <= 0:
            text = "must be greater than zero"
            found.append(field_errors.invalid(f"{path}[{name}]", str(amount), text))
    return found


def _mode_faults(modes: list[str] | tuple[()], path: str) -> Faults:
    found: Faults = []
    if not modes:
        found.append(field_errors.required(path))
    for mode in modes:
        if mode not in ACCESS_MODES:
            found.append(field_errors.unsupported(path, mode, ACCESS_MODES))
    known = {mode for mode in modes if mode in ACCESS_MODES}
    if "ReadWriteOncePod" in known and len(known) > 1:
        text = "may not use ReadWriteOncePod with other access modes"
        found.append(field_errors.forbidden(path, text))
    return found


def _affinity_faults(affinity: Obj, path: str) -> Faults:
    if affinity.get("required") is None:
        return [field_errors.required(f"{path}.required", "must specify required node constraints")]
    return node_selector_faults(affinity["required"], f"{path}.required")


def _source(spec: Obj) -> Obj:
    return {key: spec[key] for key in SOURCES if spec.get(key) is not None}


def _only_expansion(spec: Obj, before: Obj) -> bool:
    """Whether nothing but the secret for growing a CSI volume was added."""
    now, was = spec.get("csi"), before.get("csi")
    if not now or not was or was.get("controllerExpandSecretRef"):
        return False
    rest = {key: value for key, value in now.items() if key != "controllerExpandSecretRef"}
    return rest == was and _source(spec).keys() == _source(before).keys()


def _kept(key: str, spec: Obj, before: Obj) -> Faults:
    if spec.get(key) == before.get(key):
        return []
    return [field_errors.invalid(key, spec.get(key), "field is immutable")]


def _carry(spec: Obj, before: Obj, key: str) -> None:
    if key in before:
        spec[key] = before[key]
    else:
        spec.pop(key, None)


def _drop_sources(spec: Obj) -> None:
    source = spec.get("dataSource")
    if source is not None and not _fills(source):
        del spec["dataSource"]
    reference = spec.get("dataSourceRef")
    if reference is not None and reference.get("namespace"):
        del spec["dataSourceRef"]


def _fills(source: Obj) -> bool:
    group, kind = source.get("apiGroup") or "", source.get("kind", "")
    if not source.get("name"):
        return False
    return (group, kind) in {
        ("", "PersistentVolumeClaim"),
        ("snapshot.storage.k8s.io", "VolumeSnapshot"),
    }


def _filling_faults(spec: Obj) -> Faults:
    found: Faults = []
    given = [key for key in ("dataSource", "dataSourceRef") if spec.get(key) is not None]
    for key in given:
        source, path = spec[key], f"spec.{key}"
        for part in ("name", "kind"):
            if not source.get(part):
                found.append(field_errors.required(f"{path}.{part}"))
        group, kind = source.get("apiGroup") or "", source.get("kind", "")
        if not group and kind and kind != "PersistentVolumeClaim":
            text = "must be 'PersistentVolumeClaim' when referencing the default apiGroup"
            found.append(field_errors.invalid(path, kind, text))
        found += [
            field_errors.invalid(path, group, text)
            for text in (names.subdomain(group) if group else ())
        ]
    if len(given) > 1:
        one, other = spec["dataSource"], spec["dataSourceRef"]
        parts = ("apiGroup", "kind", "name")
        if any(one.get(part) != other.get(part) for part in parts):
            text = "must match dataSourceRef"
            found.append(field_errors.invalid("spec", one, text))
    return found


def _size_faults(spec: Obj, before: Obj, old: Obj) -> Faults:
    now = _wanted(spec)
    was = _wanted(before)
    have = ((old.get("status") or {}).get("capacity") or {}).get("storage")
    if now is None or was is None or now >= was:
        return []
    if have is not None and now > quantity.value(have):
        return []
    path = "spec.resources.requests.storage"
    return [field_errors.forbidden(path, "field can not be less than status.capacity")]


def _legacy_class(obj: Obj) -> str | None:
    name: str | None = (obj["metadata"].get("annotations") or {}).get(LEGACY_CLASS)
    return name


def _wanted(spec: Obj) -> Fraction | None:
    size = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    return None if size is None else quantity.value(size)
