"""Registers a driver on every node: topology labels on the Node, the driver in its CSINode.

A kubelet does this when a plugin registers. The driver's NodeGetInfo returns the node's domain; as
long as that is unknown (a label is missing) the node is left unchanged and the call is retried. A
domain that changed is followed: the driver's own label gets the new value, the keys in CSINode
never change.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from zonewise.api.errors import AlreadyExists, NotFound
from zonewise.api.meta import Key, ObjectMeta, OwnerReference
from zonewise.api.objects.core import Node
from zonewise.api.objects.storage import CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources
from zonewise.csi.errors import CsiError
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport.client import CsiClient
from zonewise.csi.transport.methods import NODE_GET_INFO
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.process.logs import logger
from zonewise.runtime.program.context import ControllerContext

RETRY_SECONDS = 5.0
WORKERS = 8

_log = logger("csi")


class DriverRegistrar:
    """Registers the driver on all nodes; ``clients`` returns the client of one node's driver."""

    def __init__(
        self, context: ControllerContext, *, driver: str, clients: Callable[[str], CsiClient]
    ) -> None:
        self._client = context.client
        self._driver = driver
        self._clients = clients
        self._reported_errors: dict[str, str] = {}
        self._controller = context.controller("csi registration", self._sync, workers=WORKERS)
        self.run = self._controller.run
        self._nodes = self._controller.watches(Node, own_key, when=_labels_changed)
        self._csi_nodes = self._controller.watches(CSINode, own_key)

    async def _sync(self, key: Key) -> float | None:
        node = self._nodes.get(key)
        if node is None:
            self._reported_errors.pop(key[1], None)
            return None
        try:
            info = await self._clients(key[1]).call(NODE_GET_INFO, csi.NodeGetInfoRequest())
        except CsiError as error:
            if self._reported_errors.get(key[1]) != error.message:
                self._reported_errors[key[1]] = error.message
                _log.warning("a node is not registered yet", node=key[1], why=error.message)
            return RETRY_SECONDS
        self._reported_errors.pop(key[1], None)
        segments = dict(info.accessible_topology.segments)
        with suppress(NotFound):
            await self._update_labels(node, segments)
            await self._update_csi_node(node, info, segments)
        return None

    async def _update_labels(self, node: Node, segments: dict[str, str]) -> None:
        labels = node.metadata.labels
        labels_to_set = {key: value for key, value in segments.items() if labels.get(key) != value}
        if labels_to_set:
            body = {"metadata": {"uid": node.metadata.uid, "labels": labels_to_set}}
            await self._client.patch(Node, node.metadata.name, None, body)

    async def _update_csi_node(
        self, node: Node, info: csi.NodeGetInfoResponse, segments: dict[str, str]
    ) -> None:
        meta = node.metadata
        max_volumes = info.max_volumes_per_node
        entry = CSINodeDriver(
            name=self._driver,
            node_id=info.node_id,
            topology_keys=tuple(sorted(segments)),
            allocatable=VolumeNodeResources(count=max_volumes) if max_volumes > 0 else None,
        )
        csi_node = self._csi_nodes.get(("", meta.name))
        if csi_node is None:
            owner = OwnerReference(api_version="v1", kind="Node", name=meta.name, uid=meta.uid)
            new_csi_node = CSINode(
                metadata=ObjectMeta(name=meta.name, owner_references=(owner,)),
                spec=CSINodeSpec(drivers=(entry,)),
            )
            with suppress(AlreadyExists):
                await self._client.create(new_csi_node)
            return
        drivers = {driver.name: driver for driver in csi_node.spec.drivers or ()}
        if drivers.get(self._driver) == entry:
            return
        # An entry cannot be changed in place, only removed and added again.
        others = [_encode_driver(d) for d in drivers.values() if d.name != self._driver]
        version = csi_node.metadata.resource_version
        if self._driver in drivers:
            body = {"metadata": {"resourceVersion": version}, "spec": {"drivers": others}}
            written = await self._client.patch(CSINode, meta.name, None, body)
            version = written.metadata.resource_version
        drivers_of_node = {"drivers": [*others, _encode_driver(entry)]}
        body = {"metadata": {"resourceVersion": version}, "spec": drivers_of_node}
        await self._client.patch(CSINode, meta.name, None, body)


def _encode_driver(driver: CSINodeDriver) -> dict[str, Any]:
    encoded: dict[str, Any] = {
        "name": driver.name,
        "nodeID": driver.node_id,
        "topologyKeys": list(driver.topology_keys or ()),
    }
    if driver.allocatable is not None:
        encoded["allocatable"] = {"count": driver.allocatable.count}
    return encoded


def _labels_changed(old: Node | None, new: Node | None) -> bool:
    return old is None or new is None or old.metadata.labels != new.metadata.labels
