"""The objects: lean typed Structs, quantities, selectors, reasons, gates and errors.

Everything here is a pure value or a pure function. Nothing does I/O, reads a clock or uses
randomness.

Functions that would all be called ``parse`` stay in their modules, which are public::

    quantity.value("100m")              selector.parse("app in (a,b)").matches(labels)
    times.parse(lease.spec.renew_time)  nodeselector.from_object(affinity.required)
"""

from zonewise.api.codec import Decoder as Decoder
from zonewise.api.codec import Page as Page
from zonewise.api.codec import convert as convert
from zonewise.api.codec import decode as decode
from zonewise.api.codec import decoder as decoder
from zonewise.api.codec import encode as encode
from zonewise.api.codec import page_decoder as page_decoder
from zonewise.api.codec import to_builtins as to_builtins
from zonewise.api.errors import AlreadyExists as AlreadyExists
from zonewise.api.errors import ApiError as ApiError
from zonewise.api.errors import BadRequest as BadRequest
from zonewise.api.errors import ConfigError as ConfigError
from zonewise.api.errors import Conflict as Conflict
from zonewise.api.errors import ConnectionFailed as ConnectionFailed
from zonewise.api.errors import Forbidden as Forbidden
from zonewise.api.errors import Gone as Gone
from zonewise.api.errors import Invalid as Invalid
from zonewise.api.errors import LeadershipLost as LeadershipLost
from zonewise.api.errors import MethodNotAllowed as MethodNotAllowed
from zonewise.api.errors import NotFound as NotFound
from zonewise.api.errors import ParseError as ParseError
from zonewise.api.errors import PatchFailed as PatchFailed
from zonewise.api.errors import ProtocolError as ProtocolError
from zonewise.api.errors import ServerError as ServerError
from zonewise.api.errors import Status as Status
from zonewise.api.errors import StatusCause as StatusCause
from zonewise.api.errors import StatusDetails as StatusDetails
from zonewise.api.errors import Terminal as Terminal
from zonewise.api.errors import TooLarge as TooLarge
from zonewise.api.errors import TooManyRequests as TooManyRequests
from zonewise.api.errors import Unauthorized as Unauthorized
from zonewise.api.errors import UnsupportedMediaType as UnsupportedMediaType
from zonewise.api.errors import ZonewiseError as ZonewiseError
from zonewise.api.gates import FeatureGates as FeatureGates
from zonewise.api.meta import Condition as Condition
from zonewise.api.meta import IntOrString as IntOrString
from zonewise.api.meta import Key as Key
from zonewise.api.meta import LabelSelector as LabelSelector
from zonewise.api.meta import Object as Object
from zonewise.api.meta import ObjectMeta as ObjectMeta
from zonewise.api.meta import ObjectReference as ObjectReference
from zonewise.api.meta import OwnerReference as OwnerReference
from zonewise.api.objects.admissionregistration import (
    MutatingWebhookConfiguration as MutatingWebhookConfiguration,
)
from zonewise.api.objects.admissionregistration import (
    ValidatingWebhookConfiguration as ValidatingWebhookConfiguration,
)
from zonewise.api.objects.apiextensions import CustomResourceDefinition as CustomResourceDefinition
from zonewise.api.objects.apps import ControllerRevision as ControllerRevision
from zonewise.api.objects.apps import DaemonSet as DaemonSet
from zonewise.api.objects.apps import Deployment as Deployment
from zonewise.api.objects.apps import ReplicaSet as ReplicaSet
from zonewise.api.objects.apps import ReplicationController as ReplicationController
from zonewise.api.objects.apps import StatefulSet as StatefulSet
from zonewise.api.objects.budgets import DisruptionLedger as DisruptionLedger
from zonewise.api.objects.budgets import DomainRollout as DomainRollout
from zonewise.api.objects.budgets import TopologyDisruptionBudget as TopologyDisruptionBudget
from zonewise.api.objects.coordination import Lease as Lease
from zonewise.api.objects.core import Namespace as Namespace
from zonewise.api.objects.core import Node as Node
from zonewise.api.objects.core import Service as Service
from zonewise.api.objects.discovery import EndpointSlice as EndpointSlice
from zonewise.api.objects.discovery import LeanEndpointSlice as LeanEndpointSlice
from zonewise.api.objects.events import Event as Event
from zonewise.api.objects.pod import Pod as Pod
from zonewise.api.objects.policy import PodDisruptionBudget as PodDisruptionBudget
from zonewise.api.objects.snapshots import VolumeSnapshot as VolumeSnapshot
from zonewise.api.objects.snapshots import VolumeSnapshotClass as VolumeSnapshotClass
from zonewise.api.objects.snapshots import VolumeSnapshotContent as VolumeSnapshotContent
from zonewise.api.objects.storage import CSIDriver as CSIDriver
from zonewise.api.objects.storage import CSINode as CSINode
from zonewise.api.objects.storage import CSIStorageCapacity as CSIStorageCapacity
from zonewise.api.objects.storage import PersistentVolume as PersistentVolume
from zonewise.api.objects.storage import PersistentVolumeClaim as PersistentVolumeClaim
from zonewise.api.objects.storage import StorageClass as StorageClass
from zonewise.api.objects.storage import VolumeAttachment as VolumeAttachment
from zonewise.api.reason import Reason as Reason
from zonewise.api.resource import Resource as Resource
from zonewise.api.struct import Struct as Struct
from zonewise.api.struct import field as field
from zonewise.api.unstructured import Unstructured as Unstructured
from zonewise.api.unstructured import unstructured as unstructured
from zonewise.api.values import fieldselector as fieldselector
from zonewise.api.values import labels as labels
from zonewise.api.values import nodeselector as nodeselector
from zonewise.api.values import quantity as quantity
from zonewise.api.values import selector as selector
from zonewise.api.values import times as times
from zonewise.api.values.fieldselector import FieldSelector as FieldSelector
from zonewise.api.values.nodeselector import NodeTerm as NodeTerm
from zonewise.api.values.nodeselector import NodeTerms as NodeTerms
from zonewise.api.values.quantity import Quantity as Quantity
from zonewise.api.values.selector import Requirement as Requirement
from zonewise.api.values.selector import Selector as Selector
