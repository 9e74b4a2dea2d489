"""Registers a driver on every node: topology labels on the Node, the driver in its CSINode.

A kubelet does this when a plugin registers. The driver is asked for the node's domain; as long as
that is unknown (a label is missing) the node is left unchanged and the driver is asked again. A
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
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.status import CsiError
from zonewise.csi.transport.client import CsiClient
from zonewise.csi.transport.methods import NODE_GET_INFO
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.controller.controller import Controller, own_key
from zonewise.runtime.process.logs import logger

AGAIN = 5.0
WORKERS = 8

_log = logger("csi")


class Registration:
    """A component: the driver on all nodes; ``clients`` gives it as it is on one."""

    def __init__(
        self, context: ComponentContext, driver: str, clients: Callable[[str], CsiClient]
    ) -> None:
        self._client = context.client
        self._driver = driver
        self._clients = clients
        self._told: dict[str, str] = {}
        self._controller: Controller[Key] = Controller(
            "csi registration", self._sync, cache=context.cache, workers=WORKERS, rng=context.rng
        )
        self._nodes = self._controller.watches(Node, own_key, when=_moved)
        self._csi_nodes = self._controller.watches(CSINode, own_key)

    async def run(self) -> None:
        """Register until cancelled."""
        await self._controller.run()

    async def _sync(self, key: Key) -> float | None:
        node = self._nodes.get(key)
        if node is None:
            self._told.pop(key[1], None)
            return None
        try:
            info = await self._clients(key[1]).call(NODE_GET_INFO, csi.NodeGetInfoRequest())
        except CsiError as error:
            if self._told.get(key[1]) != error.message:
                self._told[key[1]] = error.message
                _log.warning("a node is not registered yet", node=key[1], why=error.message)
            return AGAIN
        self._told.pop(key[1], None)
        segments = dict(info.accessible_topology.segments)
        with suppress(NotFound):
            await self._label(node, segments)
            await self._record(node, info, segments)
        return None

    async def _label(self, node: Node, segments: dict[str, str]) -> None:
        labels = node.metadata.labels
        change = {key: value for key, value in segments.items() if labels.get(key) != value}
        if change:
            body = {"metadata": {"uid": node.metadata.uid, "labels": change}}
            await self._client.patch(Node, node.metadata.name, None, body)

    async def _record(
        self, node: Node, info: csi.NodeGetInfoResponse, segments: dict[str, str]
    ) -> None:
        meta = node.metadata
        most = info.max_volumes_per_node
        own = CSINodeDriver(
            name=self._driver,
            node_id=info.node_id,
            topology_keys=tuple(sorted(segments)),
            allocatable=VolumeNodeResources(count=most) if most > 0 else None,
        )
        found = self._csi_nodes.get(("", meta.name))
        if found is None:
            owner = OwnerReference(api_version="v1", kind="Node", name=meta.name, uid=meta.uid)
            item = CSINode(
                metadata=ObjectMeta(name=meta.name, owner_references=(owner,)),
                spec=CSINodeSpec(drivers=(own,)),
            )
            with suppress(AlreadyExists):
                await self._client.create(item)
            return
        drivers = {one.name: one for one in found.spec.drivers or ()}
        if drivers.get(self._driver) == own:
            return
        # An entry cannot be changed in place, only removed and made again.
        others = [_plain(one) for one in drivers.values() if one.name != self._driver]
        version = found.metadata.resource_version
        if self._driver in drivers:
            body = {"metadata": {"resourceVersion": version}, "spec": {"drivers": others}}
            version = (
                await self._client.patch(CSINode, meta.name, None, body)
            ).metadata.resource_version
        body = {
            "metadata": {"resourceVersion": version},
            "spec": {"drivers": [*others, _plain(own)]},
        }
        await self._client.patch(CSINode, meta.name, None, body)


def _plain(driver: CSINodeDriver) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": driver.name,
        "nodeID": driver.node_id,
        "topologyKeys": list(driver.topology_keys or ()),
    }
    if driver.allocatable is not None:
        found["allocatable"] = {"count": driver.allocatable.count}
    return found


def _moved(old: Node | None, new: Node | None) -> bool:
    return old is None or new is None or old.metadata.labels != new.metadata.labels
