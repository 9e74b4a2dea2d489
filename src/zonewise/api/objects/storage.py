"""Claims, volumes and classes: PersistentVolumeClaim, PersistentVolume, StorageClass.

And what a driver reports about itself: CSINode, CSIDriver, CSIStorageCapacity, VolumeAttachment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from zonewise.api.meta import (
    Condition,
    LabelSelector,
    Object,
    ObjectMeta,
    ObjectReference,
    QuantityText,
)
from zonewise.api.objects.core import NodeSelector
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct, field

DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
LEGACY_CLASS = "volume.beta.kubernetes.io/storage-class"
"""The annotation that named a claim's class before there was a field; it overrides the field."""

_BETA_DEFAULT_CLASS = "storageclass.beta.kubernetes.io/is-default-class"


class TypedReference(Struct):
    """An object a claim is filled from: a claim, a snapshot, or a populator's own kind."""

    api_group: str | None = None
    kind: str = ""
    namespace: str | None = None
    name: str = ""


class VolumeResources(Struct):
    """How much is requested."""

    requests: dict[str, QuantityText] = field(default_factory=dict)
    limits: dict[str, QuantityText] = field(default_factory=dict)


class PersistentVolumeClaimSpec(Struct):
    """What a claim requests; ``storage_class_name`` None means the default class, "" none."""

    access_modes: tuple[str, ...] = ()
    selector: LabelSelector | None = None
    resources: VolumeResources = VolumeResources()
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str | None = None
    data_source: TypedReference | None = None
    data_source_ref: TypedReference | None = None
    volume_attributes_class_name: str | None = None


class PersistentVolumeClaimStatus(Struct):
    """What a claim was given."""

    phase: str = ""
    access_modes: tuple[str, ...] = ()
    capacity: dict[str, QuantityText] = field(default_factory=dict)
    allocated_resources: dict[str, QuantityText] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()


class PersistentVolumeClaim(Object):
    """A request for a volume."""

    resource: ClassVar = Resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")

    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()

    @property
    def storage_class(self) -> str | None:
        """The class it requests, "" for none; None if it leaves that to the default."""
        return self.metadata.annotations.get(LEGACY_CLASS, self.spec.storage_class_name)


class PersistentVolumeClaimTemplate(Struct):
    """What a claim is made from."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()


class VolumeNodeAffinity(Struct):
    """From which nodes a volume can be used."""

    required: NodeSelector | None = None


class SecretReference(Struct):
    """A Secret by namespace and name."""

    name: str = ""
    namespace: str = ""


class CSIPersistentVolumeSource(Struct):
    """A volume that a CSI driver made."""

    driver: str = ""
    volume_handle: str = ""
    read_only: bool = False
    fs_type: str = ""
    volume_attributes: dict[str, str] = field(default_factory=dict)
    controller_publish_secret_ref: SecretReference | None = None
    node_stage_secret_ref: SecretReference | None = None
    node_publish_secret_ref: SecretReference | None = None
    controller_expand_secret_ref: SecretReference | None = None
    node_expand_secret_ref: SecretReference | None = None


class PersistentVolumeSpec(Struct):
    """A volume, its size, and from which nodes it can be used."""

    capacity: dict[str, QuantityText] = field(default_factory=dict)
    access_modes: tuple[str, ...] = ()
    claim_ref: ObjectReference | None = None
    persistent_volume_reclaim_policy: str = ""
    storage_class_name: str = ""
    mount_options: tuple[str, ...] = ()
    volume_mode: str | None = None
    node_affinity: VolumeNodeAffinity | None = None
    volume_attributes_class_name: str | None = None
    csi: CSIPersistentVolumeSource | None = None


class PersistentVolumeStatus(Struct):
    """Available, bound, released or failed."""

    phase: str = ""
    message: str = ""
    reason: str = ""
    last_phase_transition_time: str | None = None


class PersistentVolume(Object):
    """A volume."""

    resource: ClassVar = Resource(
        "", "v1", "PersistentVolume", "persistentvolumes", namespaced=False
    )

    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


class TopologySelectorLabelRequirement(Struct):
    """A node label and the values that are allowed."""

    key: str = ""
    values: tuple[str, ...] | None = ()


class TopologySelectorTerm(Struct):
    """Requirements that must all hold."""

    match_label_expressions: tuple[TopologySelectorLabelRequirement, ...] = ()


class StorageClass(Object):
    """How volumes of a class are made."""

    resource: ClassVar = Resource(
        "storage.k8s.io", "v1", "StorageClass", "storageclasses", namespaced=False
    )

    provisioner: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    reclaim_policy: str | None = None
    mount_options: tuple[str, ...] = ()
    allow_volume_expansion: bool | None = None
    volume_binding_mode: str | None = None
    allowed_topologies: tuple[TopologySelectorTerm, ...] = ()


def is_default_class(annotations: Mapping[str, str]) -> bool:
    """Whether a StorageClass with these annotations is for claims that name none."""
    return "true" in (annotations.get(DEFAULT_CLASS), annotations.get(_BETA_DEFAULT_CLASS))


def newest_default_class(candidates: Iterable[tuple[str, str]]) -> str:
    """Which of several default classes counts; "" without any.

    Candidates are creation times with names. The newest counts, of equally new ones the first name.
    """
    by_name = sorted(candidates, key=lambda candidate: candidate[1])
    return max(by_name, key=lambda candidate: candidate[0], default=("", ""))[1]


class VolumeNodeResources(Struct):
    """How many volumes of a driver a node can hold."""

    count: int | None = None


class CSINodeDriver(Struct):
    """A driver on a node and the topology keys it reports there."""

    name: str = ""
    node_id: str = field(name="nodeID", default="")
    topology_keys: tuple[str, ...] | None = ()
    allocatable: VolumeNodeResources | None = None


class CSINodeSpec(Struct):
    """All drivers on a node."""

    drivers: tuple[CSINodeDriver, ...] | None = ()


class CSINode(Object):
    """The CSI drivers of the node of the same name."""

    resource: ClassVar = Resource("storage.k8s.io", "v1", "CSINode", "csinodes", namespaced=False)

    spec: CSINodeSpec = CSINodeSpec()


class TokenRequest(Struct):
    """A token a driver needs for the pod it mounts for."""

    audience: str = ""
    expiration_seconds: int | None = None


class CSIDriverSpec(Struct):
    """How a driver is to be called."""

    attach_required: bool | None = None
    pod_info_on_mount: bool | None = None
    volume_lifecycle_modes: tuple[str, ...] = ()
    storage_capacity: bool | None = None
    fs_group_policy: str | None = None
    token_requests: tuple[TokenRequest, ...] = ()
    requires_republish: bool | None = None
    se_linux_mount: bool | None = field(name="seLinuxMount", default=None)
    node_allocatable_update_period_seconds: int | None = None


class CSIDriver(Object):
    """A CSI driver that is installed in the cluster."""

    resource: ClassVar = Resource(
        "storage.k8s.io", "v1", "CSIDriver", "csidrivers", namespaced=False
    )

    spec: CSIDriverSpec = CSIDriverSpec()


class CSIStorageCapacity(Object):
    """How much room a driver has for a class where nodes have certain labels."""

    resource: ClassVar = Resource(
        "storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities"
    )

    node_topology: LabelSelector | None = None
    storage_class_name: str = ""
    capacity: QuantityText | None = None
    maximum_volume_size: QuantityText | None = None


class VolumeAttachmentSource(Struct):
    """The volume that is attached."""

    persistent_volume_name: str | None = None


class VolumeAttachmentSpec(Struct):
    """Which driver attaches which volume to which node."""

    attacher: str = ""
    source: VolumeAttachmentSource = VolumeAttachmentSource()
    node_name: str = ""


class VolumeError(Struct):
    """What went wrong, and when."""

    time: str | None = None
    message: str = ""
    error_code: int | None = None


class VolumeAttachmentStatus(Struct):
    """How far the attacher is."""

    attached: bool = False
    attachment_metadata: dict[str, str] = field(default_factory=dict)
    attach_error: VolumeError | None = None
    detach_error: VolumeError | None = None


class VolumeAttachment(Object):
    """A volume that is to be attached to a node; deleted when it is to be detached."""

    resource: ClassVar = Resource(
        "storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", namespaced=False
    )

    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()
    status: VolumeAttachmentStatus = VolumeAttachmentStatus()
