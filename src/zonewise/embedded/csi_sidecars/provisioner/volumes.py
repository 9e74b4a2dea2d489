"""A claim as a driver's request, and the driver's answer as a PersistentVolume. Pure."""

from __future__ import annotations

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
    StorageClass,
)
from zonewise.api.values import quantity
from zonewise.api.values.quantity import Family, Quantity
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.embedded.csi_sidecars.provisioner import parameters
from zonewise.storage.placement import AccessibilityRequirement
from zonewise.storage.provisioning import volume_node_affinity

FINALIZER = "external-provisioner.volume.kubernetes.io/finalizer"
"""On volumes: deleting the object does not leak the driver's volume."""
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
SECRET_NAME = "volume.kubernetes.io/provisioner-deletion-secret-name"  # noqa: S105 - an annotation
SECRET_NAMESPACE = "volume.kubernetes.io/provisioner-deletion-secret-namespace"  # noqa: S105 - and one
MODES = csi.VolumeCapability.AccessMode
_MODES = {
    "ReadWriteOnce": MODES.SINGLE_NODE_WRITER,
    "ReadOnlyMany": MODES.MULTI_NODE_READER_ONLY,
    "ReadWriteMany": MODES.MULTI_NODE_MULTI_WRITER,
    "ReadWriteOncePod": MODES.SINGLE_NODE_SINGLE_WRITER,
}


class AnswerError(ZonewiseError):
    """A driver's answer does not match the request."""


def volume_name(claim: PersistentVolumeClaim) -> str:
    """The name of a claim's volume, for the driver and for Kubernetes: never used again."""
    return f"pvc-{claim.metadata.uid}"


def bytes_of(resources: Mapping[str, str | int | float]) -> int:
    """How many bytes of storage are meant."""
    return ceil(quantity.value(resources.get("storage", 0)))


def size_text(size: int) -> str:
    """Bytes as Kubernetes writes sizes."""
    return str(Quantity(Fraction(size), Family.BINARY))


def capabilities(
    access_modes: Iterable[str],
    *,
    block: bool,
    fs_type: str,
    mount_flags: Iterable[str],
    multi_writer: bool,
) -> list[csi.VolumeCapability]:
    """How a volume will be used; ``multi_writer`` if the driver distinguishes single writers."""
    found = []
    for mode in access_modes:
        meant = _MODES.get(mode, MODES.UNKNOWN)
        if mode == "ReadWriteOnce" and multi_writer:
            meant = MODES.SINGLE_NODE_MULTI_WRITER
        one = csi.VolumeCapability(access_mode=MODES(mode=meant))
        if block:
            one.block.SetInParent()
        else:
            one.mount.fs_type = fs_type
            one.mount.mount_flags.extend(mount_flags)
        found.append(one)
    return found


def create_request(
    claim: PersistentVolumeClaim,
    made_by: StorageClass,
    requirement: AccessibilityRequirement | None,
    *,
    multi_writer: bool,
    source: csi.VolumeContentSource | None = None,
    secrets: Mapping[str, str] | None = None,
) -> csi.CreateVolumeRequest:
    """The request to a driver."""
    request = csi.CreateVolumeRequest(
        name=volume_name(claim),
        capacity_range=csi.CapacityRange(required_bytes=bytes_of(claim.spec.resources.requests)),
        volume_capabilities=capabilities(
            claim.spec.access_modes,
            block=claim.spec.volume_mode == "Block",
            fs_type=made_by.parameters.get(parameters.FS_TYPE, ""),
            mount_flags=made_by.mount_options,
            multi_writer=multi_writer,
        ),
        parameters=parameters.for_driver(made_by.parameters),
        secrets=dict(secrets or {}),
    )
    if source is not None:
        request.volume_content_source.CopyFrom(source)
    if requirement is not None:
        request.accessibility_requirements.SetInParent()
        for terms, told in (
            (requirement.requisite, request.accessibility_requirements.requisite),
            (requirement.preferred, request.accessibility_requirements.preferred),
        ):
            told.extend(csi.Topology(segments=dict(term)) for term in terms)
    return request


def checked(request: csi.CreateVolumeRequest, volume: csi.Volume) -> None:
    """Refuse an answer that a claim cannot use."""
    asked = request.capacity_range.required_bytes
    if 0 < volume.capacity_bytes < asked:
        raise AnswerError(f"the driver made {volume.capacity_bytes} bytes, {asked} were asked for")
    if request.HasField("volume_content_source") and not volume.HasField("content_source"):
        raise AnswerError("the driver made an empty volume, and a copy was asked for")


def persistent_volume(
    driver: str,
    claim: PersistentVolumeClaim,
    made_by: StorageClass,
    request: csi.CreateVolumeRequest,
    volume: csi.Volume,
) -> PersistentVolume:
    """The PersistentVolume of a volume that a driver made."""
    name = request.name
    block = claim.spec.volume_mode == "Block"
    annotations = {PROVISIONED_BY: driver}
    references = {
        call: parameters.secret(made_by.parameters, call, name, claim)
        for call in parameters.SECRETS
    }
    if (own := references["provisioner"]) is not None:
        annotations |= {SECRET_NAME: own.name, SECRET_NAMESPACE: own.namespace}
    size = volume.capacity_bytes or request.capacity_range.required_bytes
    return PersistentVolume(
        metadata=ObjectMeta(name=name, annotations=annotations, finalizers=(FINALIZER,)),
        spec=PersistentVolumeSpec(
            capacity={"storage": size_text(size)},
            access_modes=claim.spec.access_modes,
            claim_ref=ObjectReference.to(claim),
            persistent_volume_reclaim_policy=made_by.reclaim_policy or "Delete",
            storage_class_name=made_by.metadata.name,
            mount_options=made_by.mount_options,
            volume_mode=claim.spec.volume_mode,
            node_affinity=volume_node_affinity(one.segments for one in volume.accessible_topology),
            csi=CSIPersistentVolumeSource(
                driver=driver,
                volume_handle=volume.volume_id,
                fs_type="" if block else made_by.parameters.get(parameters.FS_TYPE, ""),
                volume_attributes=dict(volume.volume_context),
                controller_publish_secret_ref=references["controller-publish"],
                node_stage_secret_ref=references["node-stage"],
                node_publish_secret_ref=references["node-publish"],
                controller_expand_secret_ref=references["controller-expand"],
                node_expand_secret_ref=references["node-expand"],
            ),
        ),
    )
