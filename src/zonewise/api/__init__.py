"""The objects: lean typed Structs, quantities, selectors, reasons, gates and errors.

Everything here is a pure value or a pure function. Nothing does I/O, reads a clock or uses
randomness.

Functions that would all be called ``parse`` stay in their modules, which are public::

    quantity.value("100m")              selector.parse("app in (a,b)").matches(labels)
    times.parse(lease.spec.renew_time)  nodeselector.from_object(affinity.required)
"""

from zonewise.api.codec import (
    Decoder,
    Page,
    convert,
    decode,
    decoder,
    encode,
    page_decoder,
    to_builtins,
)
from zonewise.api.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    ConfigError,
    Conflict,
    ConnectionFailed,
    Forbidden,
    Gone,
    Invalid,
    LeadershipLost,
    MethodNotAllowed,
    NotFound,
    ParseError,
    PatchFailed,
    ProtocolError,
    ServerError,
    Status,
    StatusCause,
    StatusDetails,
    Terminal,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    UnsupportedMediaType,
    ZonewiseError,
)
from zonewise.api.gates import FeatureGates
from zonewise.api.meta import (
    Condition,
    IntOrString,
    Key,
    LabelSelector,
    Object,
    ObjectMeta,
    ObjectReference,
    OwnerReference,
)
from zonewise.api.objects.admissionregistration import (
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
)
from zonewise.api.objects.apiextensions import CustomResourceDefinition
from zonewise.api.objects.apps import (
    ControllerRevision,
    DaemonSet,
    Deployment,
    ReplicaSet,
    ReplicationController,
    StatefulSet,
)
from zonewise.api.objects.budgets import DisruptionLedger, DomainRollout, TopologyDisruptionBudget
from zonewise.api.objects.coordination import Lease
from zonewise.api.objects.core import Namespace, Node, Service
from zonewise.api.objects.discovery import EndpointSlice, LeanEndpointSlice
from zonewise.api.objects.events import Event
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.api.objects.snapshots import (
    VolumeSnapshot,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
)
from zonewise.api.objects.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from zonewise.api.reason import Reason
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct, field
from zonewise.api.unstructured import Unstructured, unstructured
from zonewise.api.values import fieldselector, labels, nodeselector, quantity, selector, times
from zonewise.api.values.fieldselector import FieldSelector
from zonewise.api.values.nodeselector import NodeTerm, NodeTerms
from zonewise.api.values.quantity import Quantity
from zonewise.api.values.selector import Requirement, Selector

__all__ = [
    "AlreadyExists",
    "ApiError",
    "BadRequest",
    "CSIDriver",
    "CSINode",
    "CSIStorageCapacity",
    "Condition",
    "ConfigError",
    "Conflict",
    "ConnectionFailed",
    "ControllerRevision",
    "CustomResourceDefinition",
    "DaemonSet",
    "Decoder",
    "Deployment",
    "DisruptionLedger",
    "DomainRollout",
    "EndpointSlice",
    "Event",
    "FeatureGates",
    "FieldSelector",
    "Forbidden",
    "Gone",
    "IntOrString",
    "Invalid",
    "Key",
    "LabelSelector",
    "LeadershipLost",
    "LeanEndpointSlice",
    "Lease",
    "MethodNotAllowed",
    "MutatingWebhookConfiguration",
    "Namespace",
    "Node",
    "NodeTerm",
    "NodeTerms",
    "NotFound",
    "Object",
    "ObjectMeta",
    "ObjectReference",
    "OwnerReference",
    "Page",
    "ParseError",
    "PatchFailed",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodDisruptionBudget",
    "ProtocolError",
    "Quantity",
    "Reason",
    "ReplicaSet",
    "ReplicationController",
    "Requirement",
    "Resource",
    "Selector",
    "ServerError",
    "Service",
    "StatefulSet",
    "Status",
    "StatusCause",
    "StatusDetails",
    "StorageClass",
    "Struct",
    "Terminal",
    "TooLarge",
    "TooManyRequests",
    "TopologyDisruptionBudget",
    "Unauthorized",
    "Unstructured",
    "UnsupportedMediaType",
    "ValidatingWebhookConfiguration",
    "VolumeAttachment",
    "VolumeSnapshot",
    "VolumeSnapshotClass",
    "VolumeSnapshotContent",
    "ZonewiseError",
    "convert",
    "decode",
    "decoder",
    "encode",
    "field",
    "fieldselector",
    "labels",
    "nodeselector",
    "page_decoder",
    "quantity",
    "selector",
    "times",
    "to_builtins",
    "unstructured",
]
