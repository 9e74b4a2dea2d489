"""The calls of the protocol that we make and serve, each with its types.

A ``Method`` is the one name of a call for both transports, the services and their callers. A
``ServedMethod`` couples it with the function that serves it, so that a wrong pair is a type error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from zonewise.csi.protocol import csi_pb2 as csi

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    """One call: its service, its name, its request and its answer."""

    service: str
    name: str
    request_type: type[Request]
    response_type: type[Response]
    quiet: bool = False
    """Called often or by probes: logged at debug level only."""

    @property
    def path(self) -> str:
        """The name on the wire."""
        return f"/csi.v1.{self.service}/{self.name}"


@dataclass(frozen=True, slots=True)
class ServedMethod:
    """A call and the blocking function that serves it."""

    method: Method[Any, Any]
    serve: Callable[[Any], Message]


def bind(method: Method[Request, Response], serve: Callable[[Request], Response]) -> ServedMethod:
    """Couple a call with the function that serves it."""
    return ServedMethod(method, serve)


GET_PLUGIN_INFO = Method(
    "Identity", "GetPluginInfo", csi.GetPluginInfoRequest, csi.GetPluginInfoResponse, quiet=True
)
GET_PLUGIN_CAPABILITIES = Method(
    "Identity",
    "GetPluginCapabilities",
    csi.GetPluginCapabilitiesRequest,
    csi.GetPluginCapabilitiesResponse,
    quiet=True,
)
PROBE = Method("Identity", "Probe", csi.ProbeRequest, csi.ProbeResponse, quiet=True)

CREATE_VOLUME = Method(
    "Controller", "CreateVolume", csi.CreateVolumeRequest, csi.CreateVolumeResponse
)
DELETE_VOLUME = Method(
    "Controller", "DeleteVolume", csi.DeleteVolumeRequest, csi.DeleteVolumeResponse
)
VALIDATE_VOLUME_CAPABILITIES = Method(
    "Controller",
    "ValidateVolumeCapabilities",
    csi.ValidateVolumeCapabilitiesRequest,
    csi.ValidateVolumeCapabilitiesResponse,
    quiet=True,
)
LIST_VOLUMES = Method(
    "Controller", "ListVolumes", csi.ListVolumesRequest, csi.ListVolumesResponse, quiet=True
)
CONTROLLER_GET_VOLUME = Method(
    "Controller",
    "ControllerGetVolume",
    csi.ControllerGetVolumeRequest,
    csi.ControllerGetVolumeResponse,
    quiet=True,
)
GET_CAPACITY = Method(
    "Controller", "GetCapacity", csi.GetCapacityRequest, csi.GetCapacityResponse, quiet=True
)
CONTROLLER_GET_CAPABILITIES = Method(
    "Controller",
    "ControllerGetCapabilities",
    csi.ControllerGetCapabilitiesRequest,
    csi.ControllerGetCapabilitiesResponse,
    quiet=True,
)
CONTROLLER_EXPAND_VOLUME = Method(
    "Controller",
    "ControllerExpandVolume",
    csi.ControllerExpandVolumeRequest,
    csi.ControllerExpandVolumeResponse,
)
CREATE_SNAPSHOT = Method(
    "Controller", "CreateSnapshot", csi.CreateSnapshotRequest, csi.CreateSnapshotResponse
)
DELETE_SNAPSHOT = Method(
    "Controller", "DeleteSnapshot", csi.DeleteSnapshotRequest, csi.DeleteSnapshotResponse
)
LIST_SNAPSHOTS = Method(
    "Controller", "ListSnapshots", csi.ListSnapshotsRequest, csi.ListSnapshotsResponse, quiet=True
)
GET_SNAPSHOT = Method(
    "Controller", "GetSnapshot", csi.GetSnapshotRequest, csi.GetSnapshotResponse, quiet=True
)

NODE_STAGE_VOLUME = Method(
    "Node", "NodeStageVolume", csi.NodeStageVolumeRequest, csi.NodeStageVolumeResponse
)
NODE_UNSTAGE_VOLUME = Method(
    "Node", "NodeUnstageVolume", csi.NodeUnstageVolumeRequest, csi.NodeUnstageVolumeResponse
)
NODE_PUBLISH_VOLUME = Method(
    "Node", "NodePublishVolume", csi.NodePublishVolumeRequest, csi.NodePublishVolumeResponse
)
NODE_UNPUBLISH_VOLUME = Method(
    "Node", "NodeUnpublishVolume", csi.NodeUnpublishVolumeRequest, csi.NodeUnpublishVolumeResponse
)
NODE_GET_VOLUME_STATS = Method(
    "Node",
    "NodeGetVolumeStats",
    csi.NodeGetVolumeStatsRequest,
    csi.NodeGetVolumeStatsResponse,
    quiet=True,
)
NODE_EXPAND_VOLUME = Method(
    "Node", "NodeExpandVolume", csi.NodeExpandVolumeRequest, csi.NodeExpandVolumeResponse
)
NODE_GET_CAPABILITIES = Method(
    "Node",
    "NodeGetCapabilities",
    csi.NodeGetCapabilitiesRequest,
    csi.NodeGetCapabilitiesResponse,
    quiet=True,
)
NODE_GET_INFO = Method(
    "Node", "NodeGetInfo", csi.NodeGetInfoRequest, csi.NodeGetInfoResponse, quiet=True
)
