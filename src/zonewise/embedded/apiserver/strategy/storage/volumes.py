"""PersistentVolumes and the claims on them.

A volume's source and a claim's requests do not change once they are written; what may still change
is what binding and growing need.
"""

from __future__ import annotations

from fractions import Fraction

from zonewise.api.field_cursor import Field
from zonewise.api.objects.storage import LEGACY_CLASS
from zonewise.api.resource import Resource
from zonewise.api.values import quantity
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.strategy.base import Obj, Rules, StrategyContext, revert, words
from zonewise.embedded.apiserver.strategy.pod.volumes import (
    VOLUME_MODES,
    validate_access_modes,
    validate_claim_spec,
)
from zonewise.embedded.apiserver.strategy.selectors import validate_node_selector
from zonewise.embedded.apiserver.strategy.storage.sources import SOURCES, validate_volume_source
from zonewise.embedded.apiserver.strategy.warnings import claim_warnings, volume_warnings

RECLAIM_POLICIES = ("Delete", "Recycle", "Retain")
RESIZE_STATES = words(
    "ControllerResizeInProgress ControllerResizeInfeasible NodeResizePending NodeResizeInProgress"
    " NodeResizeInfeasible"
)
CLAIM = Resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", True)
LEGACY_MOUNT_OPTIONS = "volume.beta.kubernetes.io/mount-options"
WITHOUT_MOUNT_OPTIONS = words(
    "fc flexVolume flocker hostPath local photonPersistentDisk portworxVolume scaleIO"
)
NOT_INLINE = "may not be specified in the context of inline volumes"


class PersistentVolumeRules(Rules):
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

    def validate(self, obj: Field, context: StrategyContext) -> None:
        spec, annotations = obj["spec"], obj["metadata"]["annotations"]
        validate_volume_spec(spec)
        if not _sources(spec.value or {}).keys() - WITHOUT_MOUNT_OPTIONS:
            annotations[LEGACY_MOUNT_OPTIONS].forbid_set(
                "may not specify mount options for this volume type"
            )

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """The source, the mode and the nodes of a volume do not change."""
        self.validate(obj, context)
        spec, old_spec = obj["spec"].value or {}, old.get("spec") or {}
        if _sources(spec) != _sources(old_spec) and not _only_adds_secret(spec, old_spec):
            obj["spec"]["persistentvolumesource"].forbid(
                "spec.persistentvolumesource is immutable after creation"
            )
        obj.child("volumeMode", spec.get("volumeMode")).immutable(old_spec.get("volumeMode"))
        if old_spec.get("nodeAffinity") is not None:
            obj.child("nodeAffinity", spec.get("nodeAffinity")).immutable(old_spec["nodeAffinity"])


class PersistentVolumeClaimRules(Rules):
    """The rules of PersistentVolumeClaims."""

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        """Annotations that are fields now, and parts of a byte."""
        context.warnings.extend(claim_warnings(obj))

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """A new claim waits; its source is in both of the fields for it."""
        obj["status"] = {"phase": "Pending"}
        spec = obj.setdefault("spec", {})
        _drop_unsupported_sources(spec)
        source, reference = spec.get("dataSource"), spec.get("dataSourceRef")
        if source is not None and reference is None:
            spec["dataSourceRef"] = dict(source)
        elif reference is not None and source is None:
            spec["dataSource"] = dict(reference)

    def prepare_update(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """A source that the server does not support is dropped."""
        spec, old_spec = obj.setdefault("spec", {}), old.get("spec") or {}
        if old_spec.get("dataSource") is None and old_spec.get("dataSourceRef") is None:
            _drop_unsupported_sources(spec)

    def validate(self, obj: Field, context: StrategyContext) -> None:
        validate_claim_spec(obj["spec"])
        _validate_data_sources(obj["spec"])

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """An unbound claim may be given a volume; a bound one may request more."""
        if not obj.is_valid(lambda claim: self._validate_update(claim, old, context)):
            return
        if (old.get("status") or {}).get("phase") == "Bound":
            self._check_growth(obj.value, old.get("spec") or {}, context)

    def _validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        self.validate(obj, context)
        spec, old_spec = obj["spec"].value or {}, old.get("spec") or {}
        is_bound = (old.get("status") or {}).get("phase") == "Bound"
        reverted = dict(spec)
        for key, is_changeable in (
            ("volumeName", not old_spec.get("volumeName")),
            ("storageClassName", old_spec.get("storageClassName") is None),
            ("volumeAttributesClassName", is_bound),
        ):
            if is_changeable:
                revert(reverted, old_spec, key)
        if is_bound:
            _validate_size_update(obj["spec"], old)
            reverted["resources"] = dict(spec.get("resources") or {})
            revert(reverted["resources"], old_spec.get("resources") or {}, "requests")
        if reverted != old_spec:
            obj["spec"].forbid(
                "spec is immutable after creation except resources.requests and"
                " volumeAttributesClassName for bound claims"
            )
        obj.child("volumeMode", spec.get("volumeMode")).immutable(old_spec.get("volumeMode"))
        legacy_class, old_class = obj["metadata"]["annotations"][LEGACY_CLASS], _legacy_class(old)
        if old_class is not None:
            legacy_class.immutable(old_class)

    def _check_growth(self, obj: Obj, old_spec: Obj, context: StrategyContext) -> None:
        """What admission has to say on growing: the class must allow it."""
        spec = obj["spec"]
        size, old_size = _requested_size(spec), _requested_size(old_spec)
        if size is None or old_size is None or size <= old_size:
            return
        legacy = _legacy_class(obj)
        name = (spec.get("storageClassName") if legacy is None else legacy) or ""
        storage_class = (
            context.get_object("storage.k8s.io/storageclasses", "", name) if name else None
        )
        if storage_class is None or not storage_class.get("allowVolumeExpansion"):
            raise status_errors.forbidden(
                CLAIM,
                obj["metadata"]["name"],
                "only dynamically provisioned pvc can be resized and the storageclass that"
                " provisions the pvc must support resize",
            )

    def validate_status(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        status = obj["status"]
        for key in ("capacity", "allocatedResources"):
            for _, amount in status[key].entries():
                if quantity.value(amount.value) < 0:
                    amount.invalid("must be greater than or equal to 0", str(amount.value))
        states = status["allocatedResourceStatuses"]
        for state in (states.value or {}).values():
            states.holding(state).enum(RESIZE_STATES)


def validate_volume_spec(spec: Field, *, inline: bool = False) -> None:
    """The spec of a volume; an inline one is part of an attachment and promises nothing."""
    fields, policy = spec.value or {}, spec["persistentVolumeReclaimPolicy"]
    if inline:
        for key in ("claimRef", "capacity", "nodeAffinity", "storageClassName"):
            spec[key].forbid_filled(NOT_INLINE)
        spec["csi"].present("has to be specified for inline volumes")
    else:
        _validate_capacity(spec["capacity"])
    spec["accessModes"].required()
    validate_access_modes(spec["accessModes"])
    if inline and policy.value != "Retain":
        policy.forbid_filled(NOT_INLINE)
    else:
        policy.optional().enum(RECLAIM_POLICIES)
    if not inline and fields.get("nodeAffinity") is not None:
        required = spec["nodeAffinity"]["required"]
        if required.present("must specify required node constraints"):
            validate_node_selector(required)
    validate_volume_source(spec)
    if policy.value == "Recycle" and spec["hostPath"]["path"].value == "/":
        policy.forbid("may not be 'recycle' for a hostPath mount of '/'")
    if not inline:
        spec["storageClassName"].optional().dns_subdomain()
    mode = spec["volumeMode"].enum(VOLUME_MODES)
    if inline and mode.value not in {None, "Filesystem"}:
        mode.forbid(NOT_INLINE)
    attributes_class = spec["volumeAttributesClassName"]
    if attributes_class.value:
        attributes_class.dns_subdomain()
        if not inline:
            spec["csi"].present("has to be specified when using volumeAttributesClassName")


def _validate_capacity(capacity: Field) -> None:
    amounts = capacity.value or {}
    capacity.required()
    if amounts.keys() != {"storage"}:
        capacity.unsupported(("storage",), amounts)
    for _, amount in capacity.entries():
        if quantity.value(amount.value) <= 0:
            amount.invalid("must be greater than zero", str(amount.value))


def _sources(spec: Obj) -> Obj:
    return {key: spec[key] for key in SOURCES if spec.get(key) is not None}


def _only_adds_secret(spec: Obj, old: Obj) -> bool:
    """Whether nothing but the secret for growing a CSI volume was added."""
    source, old_source = spec.get("csi"), old.get("csi")
    if not source or not old_source or old_source.get("controllerExpandSecretRef"):
        return False
    rest = {key: value for key, value in source.items() if key != "controllerExpandSecretRef"}
    return rest == old_source and _sources(spec).keys() == _sources(old).keys()


def _drop_unsupported_sources(spec: Obj) -> None:
    source = spec.get("dataSource")
    if source is not None and not _is_supported_source(source):
        del spec["dataSource"]
    reference = spec.get("dataSourceRef")
    if reference is not None and reference.get("namespace"):
        del spec["dataSourceRef"]


def _is_supported_source(source: Obj) -> bool:
    return bool(source.get("name")) and (source.get("apiGroup") or "", source.get("kind", "")) in {
        ("", "PersistentVolumeClaim"),
        ("snapshot.storage.k8s.io", "VolumeSnapshot"),
    }


def _validate_data_sources(spec: Field) -> None:
    sources = [
        source for source in (spec["dataSource"], spec["dataSourceRef"]) if source.value is not None
    ]
    for source in sources:
        source.require("name", "kind")
        group, kind = source.value.get("apiGroup") or "", source.value.get("kind", "")
        if not group and kind and kind != "PersistentVolumeClaim":
            source.invalid(
                "must be 'PersistentVolumeClaim' when referencing the default apiGroup", kind
            )
        source.holding(group).optional().dns_subdomain()
    if len(sources) > 1:
        source, reference = (source.value for source in sources)
        if any(source.get(key) != reference.get(key) for key in ("apiGroup", "kind", "name")):
            spec.invalid("must match dataSourceRef", source)


def _validate_size_update(spec: Field, old: Obj) -> None:
    size, old_size = _requested_size(spec.value or {}), _requested_size(old.get("spec") or {})
    capacity = ((old.get("status") or {}).get("capacity") or {}).get("storage")
    if size is None or old_size is None or size >= old_size:
        return
    if capacity is None or size <= quantity.value(capacity):
        spec["resources"]["requests"]["storage"].forbid(
            "field can not be less than status.capacity"
        )


def _legacy_class(obj: Obj) -> str | None:
    name: str | None = (obj["metadata"].get("annotations") or {}).get(LEGACY_CLASS)
    return name


def _requested_size(spec: Obj) -> Fraction | None:
    size = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    return None if size is None else quantity.value(size)
