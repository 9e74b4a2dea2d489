"""A claim as a driver's request, and the driver's answer as a PersistentVolume: pure functions.

Parameters of a class that begin with ``csi.storage.k8s.io/`` are for the provisioner, not for the
driver. They name the file system and the Secrets of each call; names of Secrets may contain
``${pv.name}``, ``${pvc.name}``, ``${pvc.namespace}`` and ``${pvc.annotations['key']}``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import ceil

from zonewise.api.errors import ZonewiseError
from zonewise.api.meta import ObjectMeta, ObjectReference
from zonewise.api.objects.storage import (
    CSIPersistentVolumeSource,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeSpec,
    SecretReference,
    StorageClass,
)
from zonewise.api.values import quantity
from zonewise.api.values.quantity import Family, Quantity
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.storage.placement import AccessibilityRequirement
from zonewise.storage.provisioning import volume_node_affinity

FINALIZER = "external-provisioner.volume.kubernetes.io/finalizer"
"""On PersistentVolumes: deleting the object does not leak the driver's volume."""
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
SECRET_NAME = "volume.kubernetes.io/provisioner-deletion-secret-name"  # noqa: S105 - an annotation
SECRET_NAMESPACE = "volume.kubernetes.io/provisioner-deletion-secret-namespace"  # noqa: S105 - and one
PARAMETER_PREFIX = "csi.storage.k8s.io/"
FS_TYPE = f"{PARAMETER_PREFIX}fstype"
SECRET_CALLS = (
    "provisioner",
    "controller-publish",
    "node-stage",
    "node-publish",
    "controller-expand",
    "node-expand",
)
MODES = csi.VolumeCapability.AccessMode
_ACCESS_MODES = {
    "ReadWriteOnce": MODES.SINGLE_NODE_WRITER,
    "ReadOnlyMany": MODES.MULTI_NODE_READER_ONLY,
    "ReadWriteMany": MODES.MULTI_NODE_MULTI_WRITER,
    "ReadWriteOncePod": MODES.SINGLE_NODE_SINGLE_WRITER,
}
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_ANNOTATION = re.compile(r"pvc\.annotations\['([^']*)'\]\Z")


class AnswerError(ZonewiseError):
    """A driver's answer does not match the request."""


def volume_name(claim: PersistentVolumeClaim) -> str:
    """The name of a claim's volume, for the driver and for Kubernetes; unique."""
    return f"pvc-{claim.metadata.uid}"


def bytes_of(resources: Mapping[str, str | int | float]) -> int:
    """The bytes of storage in a resource list."""
    return ceil(quantity.value(resources.get("storage", 0)))


def format_size(size: int) -> str:
    """Bytes as Kubernetes writes sizes."""
    return str(Quantity(Fraction(size), Family.BINARY))


def volume_capabilities(
    access_modes: Iterable[str],
    *,
    block: bool,
    fs_type: str,
    mount_flags: Iterable[str],
    multi_writer: bool,
) -> list[csi.VolumeCapability]:
    """The capabilities for access modes; ``multi_writer`` if the driver has that capability."""
    capabilities = []
    for mode in access_modes:
        access_mode = _ACCESS_MODES.get(mode, MODES.UNKNOWN)
        if mode == "ReadWriteOnce" and multi_writer:
            access_mode = MODES.SINGLE_NODE_MULTI_WRITER
        capability = csi.VolumeCapability(access_mode=MODES(mode=access_mode))
        if block:
            capability.block.SetInParent()
        else:
            capability.mount.fs_type = fs_type
            capability.mount.mount_flags.extend(mount_flags)
        capabilities.append(capability)
    return capabilities


def make_create_request(
    claim: PersistentVolumeClaim,
    storage_class: StorageClass,
    requirement: AccessibilityRequirement | None,
    *,
    multi_writer: bool,
    source: csi.VolumeContentSource | None = None,
    secrets: Mapping[str, str] | None = None,
) -> csi.CreateVolumeRequest:
    """The request to create the volume of a claim."""
    request = csi.CreateVolumeRequest(
        name=volume_name(claim),
        capacity_range=csi.CapacityRange(required_bytes=bytes_of(claim.spec.resources.requests)),
        volume_capabilities=volume_capabilities(
            claim.spec.access_modes,
            block=claim.spec.volume_mode == "Block",
            fs_type=storage_class.parameters.get(FS_TYPE, ""),
            mount_flags=storage_class.mount_options,
            multi_writer=multi_writer,
        ),
        parameters=driver_parameters(storage_class.parameters),
        secrets=dict(secrets or {}),
    )
    if source is not None:
        request.volume_content_source.CopyFrom(source)
    if requirement is not None:
        request.accessibility_requirements.SetInParent()
        for terms, topologies in (
            (requirement.requisite, request.accessibility_requirements.requisite),
            (requirement.preferred, request.accessibility_requirements.preferred),
        ):
            topologies.extend(csi.Topology(segments=dict(term)) for term in terms)
    return request


def check_answer(request: csi.CreateVolumeRequest, volume: csi.Volume) -> None:
    """Raise ``AnswerError`` if a claim cannot use the created volume."""
    required = request.capacity_range.required_bytes
    if 0 < volume.capacity_bytes < required:
        size = volume.capacity_bytes
        raise AnswerError(f"the driver created {size} bytes, {required} were requested")
    if request.HasField("volume_content_source") and not volume.HasField("content_source"):
        raise AnswerError("the driver created an empty volume, and a copy was requested")


def make_persistent_volume(
    driver: str,
    claim: PersistentVolumeClaim,
    storage_class: StorageClass,
    request: csi.CreateVolumeRequest,
    volume: csi.Volume,
) -> PersistentVolume:
    """The PersistentVolume of a volume that a driver created."""
    name = request.name
    block = claim.spec.volume_mode == "Block"
    annotations = {PROVISIONED_BY: driver}
    references = {
        call: secret_reference(storage_class.parameters, call, name, claim) for call in SECRET_CALLS
    }
    if (secret := references["provisioner"]) is not None:
        annotations |= {SECRET_NAME: secret.name, SECRET_NAMESPACE: secret.namespace}
    size = volume.capacity_bytes or request.capacity_range.required_bytes
    return PersistentVolume(
        metadata=ObjectMeta(name=name, annotations=annotations, finalizers=(FINALIZER,)),
        spec=PersistentVolumeSpec(
            capacity={"storage": format_size(size)},
            access_modes=claim.spec.access_modes,
            claim_ref=ObjectReference.to(claim),
            persistent_volume_reclaim_policy=storage_class.reclaim_policy or "Delete",
            storage_class_name=storage_class.metadata.name,
            mount_options=storage_class.mount_options,
            volume_mode=claim.spec.volume_mode,
            node_affinity=volume_node_affinity(
                topology.segments for topology in volume.accessible_topology
            ),
            csi=CSIPersistentVolumeSource(
                driver=driver,
                volume_handle=volume.volume_id,
                fs_type="" if block else storage_class.parameters.get(FS_TYPE, ""),
                volume_attributes=dict(volume.volume_context),
                controller_publish_secret_ref=references["controller-publish"],
                node_stage_secret_ref=references["node-stage"],
                node_publish_secret_ref=references["node-publish"],
                controller_expand_secret_ref=references["controller-expand"],
                node_expand_secret_ref=references["node-expand"],
            ),
        ),
    )


class ParameterError(ZonewiseError):
    """A class has a provisioner parameter that is not valid."""


def driver_parameters(parameters: Mapping[str, str]) -> dict[str, str]:
    """The parameters of a class for the driver; unknown ones of the provisioner are refused."""
    secrets = (f"{PARAMETER_PREFIX}{call}-secret-" for call in SECRET_CALLS)
    known = {FS_TYPE, *(s + part for s in secrets for part in ("name", "namespace"))}
    for key in parameters:
        if key.startswith(PARAMETER_PREFIX) and key not in known:
            raise ParameterError(f"the class has the unknown parameter {key}")
    return {key: value for key, value in parameters.items() if not key.startswith(PARAMETER_PREFIX)}


def secret_reference(
    parameters: Mapping[str, str], call: str, volume: str, claim: PersistentVolumeClaim
) -> SecretReference | None:
    """The Secret of a call, if the class names one."""
    name = parameters.get(f"{PARAMETER_PREFIX}{call}-secret-name", "")
    namespace = parameters.get(f"{PARAMETER_PREFIX}{call}-secret-namespace", "")
    if not name and not namespace:
        return None
    if not name or not namespace:
        raise ParameterError(f"the class needs both name and namespace of its {call} secret")
    name, namespace = (_expand(text, volume, claim) for text in (name, namespace))
    return SecretReference(name=name, namespace=namespace)


def _expand(template: str, volume: str, claim: PersistentVolumeClaim) -> str:
    meta = claim.metadata
    values = {"pv.name": volume, "pvc.name": meta.name, "pvc.namespace": meta.namespace}

    def replace(match: re.Match[str]) -> str:
        value = values.get(match[1])
        if value is not None:
            return value
        annotation = _ANNOTATION.match(match[1])
        if annotation is None or annotation[1] not in claim.metadata.annotations:
            raise ParameterError(f"{match[0]} in the name of a secret is unknown")
        return claim.metadata.annotations[annotation[1]]

    return _VARIABLE.sub(replace, template)
