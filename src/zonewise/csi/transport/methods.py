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
    """One call: its service, its request, which names it, and its answer."""

    service: str
    request_type: type[Request]
    response_type: type[Response]
    quiet: bool = False
    """Called often or by probes: logged at debug level only."""

    @property
    def name(self) -> str:
        """The name of the call: that of its request."""
        return self.request_type.__name__.removesuffix("Request")

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
    "Identity", csi.GetPluginInfoRequest, csi.GetPluginInfoResponse, quiet=True
)
GET_PLUGIN_CAPABILITIES = Method(
    "Identity", csi.GetPluginCapabilitiesRequest, csi.GetPluginCapabilitiesResponse, quiet=True
)
PROBE = Method("Identity", csi.ProbeRequest, csi.ProbeResponse, quiet=True)

CREATE_VOLUME = Method("Controller", csi.CreateVolumeRequest, csi.CreateVolumeResponse)
DELETE_VOLUME = Method("Controller", csi.DeleteVolumeRequest, csi.DeleteVolumeResponse)
VALIDATE_VOLUME_CAPABILITIES = Method(
    "Controller",
    csi.ValidateVolumeCapabilitiesRequest,
    csi.ValidateVolumeCapabilitiesResponse,
    quiet=True,
)
LIST_VOLUMES = Method("Controller", csi.ListVolumesRequest, csi.ListVolumesResponse, quiet=True)
CONTROLLER_GET_VOLUME = Method(
    "Controller", csi.ControllerGetVolumeRequest, csi.ControllerGetVolumeResponse, quiet=True
)
GET_CAPACITY = Method("Controller", csi.GetCapacityRequest, csi.GetCapacityResponse, quiet=True)
CONTROLLER_GET_CAPABILITIES = Method(
    "Controller",
    csi.ControllerGetCapabilitiesRequest,
    csi.ControllerGetCapabilitiesResponse,
    quiet=True,
)
CONTROLLER_EXPAND_VOLUME = Method(
    "Controller", csi.ControllerExpandVolumeRequest, csi.ControllerExpandVolumeResponse
)
CREATE_SNAPSHOT = Method("Controller", csi.CreateSnapshotRequest, csi.CreateSnapshotResponse)
DELETE_SNAPSHOT = Method("Controller", csi.DeleteSnapshotRequest, csi.DeleteSnapshotResponse)
LIST_SNAPSHOTS = Method(
    "Controller", csi.ListSnapshotsRequest, csi.ListSnapshotsResponse, quiet=True
)
GET_SNAPSHOT = Method("Controller", csi.GetSnapshotRequest, csi.GetSnapshotResponse, quiet=True)

NODE_STAGE_VOLUME = Method("Node", csi.NodeStageVolumeRequest, csi.NodeStageVolumeResponse)
NODE_UNSTAGE_VOLUME = Method("Node", csi.NodeUnstageVolumeRequest, csi.NodeUnstageVolumeResponse)
NODE_PUBLISH_VOLUME = Method("Node", csi.NodePublishVolumeRequest, csi.NodePublishVolumeResponse)
NODE_UNPUBLISH_VOLUME = Method(
    "Node", csi.NodeUnpublishVolumeRequest, csi.NodeUnpublishVolumeResponse
)
NODE_GET_VOLUME_STATS = Method(
    "Node", csi.NodeGetVolumeStatsRequest, csi.NodeGetVolumeStatsResponse, quiet=True
)
NODE_EXPAND_VOLUME = Method("Node", csi.NodeExpandVolumeRequest, csi.NodeExpandVolumeResponse)
NODE_GET_CAPABILITIES = Method(
    "Node", csi.NodeGetCapabilitiesRequest, csi.NodeGetCapabilitiesResponse, quiet=True
)
NODE_GET_INFO = Method("Node", csi.NodeGetInfoRequest, csi.NodeGetInfoResponse, quiet=True)
