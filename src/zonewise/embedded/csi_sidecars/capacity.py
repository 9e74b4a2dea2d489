"""Publishes a driver's capacity to the scheduler: one CSIStorageCapacity per class and domain.

Domains are those that nodes with the driver are in. GetCapacity is called for each every ``PERIOD``
seconds, and soon after the driver created or deleted a volume, or its pools changed. Only what
changed is written. Names follow from class and domain, so a restart, or two leaders for a moment,
never create two objects for one pair; those without a class or domain are deleted.

When a driver cannot be reached, the last numbers stay: old numbers cost a failed attempt, missing
ones would block every pod that waits. A class that it refuses does not affect others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256

from zonewise.api.errors import AlreadyExists, NotFound, ZonewiseError
from zonewise.api.meta import LabelSelector, ObjectMeta
from zonewise.api.objects.core import Node
from zonewise.api.objects.storage import CSINode, CSIStorageCapacity, StorageClass
from zonewise.csi.errors import CsiError
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport.methods import GET_CAPACITY
from zonewise.embedded.csi_sidecars.driver import ReachableDriver
from zonewise.embedded.csi_sidecars.volumes import driver_parameters, format_size
from zonewise.runtime.process.logs import logger
from zonewise.runtime.program.context import ControllerContext
from zonewise.storage.provisioning import node_domains

PERIOD = 60.0
BATCH_SECONDS = 0.5
"""How long to wait for further changes before the driver is called."""
DRIVER_LABEL = "csi.storage.k8s.io/drivername"
MANAGED_BY_LABEL = "csi.storage.k8s.io/managed-by"
MANAGED_BY = "zonewise"

_log = logger("provisioner")


class CapacityPublisher:
    """The capacities of one driver."""

    def __init__(
        self,
        context: ControllerContext,
        *,
        driver: ReachableDriver,
        namespace: str,
        changed: asyncio.Event,
    ) -> None:
        self._client = context.client
        self._driver = driver
        self._namespace = namespace
        self._changed = changed
        self._reported_errors: dict[str, str] = {}
        cache = context.cache
        self._cache = cache
        self._classes = cache.store(StorageClass)
        self._nodes = cache.store(Node)
        self._csi_nodes = cache.store(CSINode)
        self._published = cache.store(CSIStorageCapacity)
        self._classes.on_change(lambda *_: changed.set())
        self._csi_nodes.on_change(lambda *_: changed.set())
        self._nodes.on_change(self._node_changed)

    async def run(self) -> None:
        """Publish until cancelled."""
        await self._cache.synced()
        while True:
            self._changed.clear()
            try:
                await self._publish()
            except ZonewiseError as error:
                _log.warning(
                    "free storage was not published", driver=self._driver.name, why=str(error)
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD):
                    await self._changed.wait()
            await asyncio.sleep(BATCH_SECONDS)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if old is None or new is None or old.metadata.labels != new.metadata.labels:
            self._changed.set()

    async def _publish(self) -> None:
        labels = {node.metadata.name: node.metadata.labels for node in self._nodes}
        terms = node_domains(self._driver.name, labels, self._csi_nodes)
        classes = [
            storage_class
            for storage_class in self._classes
            if storage_class.provisioner == self._driver.name
        ]
        desired: dict[str, CSIStorageCapacity] = {}
        unknown = set()
        for storage_class in sorted(classes, key=lambda storage_class: storage_class.metadata.name):
            try:
                capacities = [await self._get_capacity(storage_class, term) for term in terms]
            except CsiError as error:
                unknown.add(storage_class.metadata.name)
                self._warn(storage_class.metadata.name, error)
            else:
                self._reported_errors.pop(storage_class.metadata.name, None)
                desired |= {capacity.metadata.name: capacity for capacity in capacities}
        published = {c.metadata.name: c for c in self._published if self._is_own(c)}
        for name, capacity in desired.items():
            await self._write(capacity, published.get(name))
        for name in published.keys() - desired.keys():
            if published[name].storage_class_name not in unknown:
                with suppress(NotFound):
                    await self._client.delete(CSIStorageCapacity, name, self._namespace)

    def _warn(self, class_name: str, error: CsiError) -> None:
        """Log once why the capacity of a class is unknown."""
        if self._reported_errors.get(class_name) != str(error):
            self._reported_errors[class_name] = str(error)
            _log.warning(
                "free storage of a class is not known",
                driver=self._driver.name,
                storage_class=class_name,
                why=str(error),
            )

    def _is_own(self, capacity: CSIStorageCapacity) -> bool:
        labels = capacity.metadata.labels
        return (
            capacity.metadata.namespace == self._namespace
            and labels.get(DRIVER_LABEL) == self._driver.name
            and labels.get(MANAGED_BY_LABEL) == MANAGED_BY
        )

    async def _get_capacity(
        self, storage_class: StorageClass, term: Mapping[str, str]
    ) -> CSIStorageCapacity:
        request = csi.GetCapacityRequest(
            parameters=driver_parameters(storage_class.parameters),
            accessible_topology=csi.Topology(segments=dict(term)),
        )
        response = await self._driver.client.call(GET_CAPACITY, request)
        max_volume_size = None
        if response.HasField("maximum_volume_size"):
            max_volume_size = format_size(response.maximum_volume_size.value)
        name = storage_class.metadata.name
        return CSIStorageCapacity(
            metadata=ObjectMeta(
                name=_name(self._driver.name, name, term),
                namespace=self._namespace,
                labels={DRIVER_LABEL: self._driver.name, MANAGED_BY_LABEL: MANAGED_BY},
            ),
            storage_class_name=name,
            node_topology=LabelSelector(match_labels=dict(term)),
            capacity=format_size(response.available_capacity),
            maximum_volume_size=max_volume_size,
        )

    async def _write(self, desired: CSIStorageCapacity, current: CSIStorageCapacity | None) -> None:
        if current is None:
            with suppress(AlreadyExists):
                await self._client.create(desired)
        elif (current.capacity, current.maximum_volume_size) != (
            desired.capacity,
            desired.maximum_volume_size,
        ):
            body = {"capacity": desired.capacity, "maximumVolumeSize": desired.maximum_volume_size}
            await self._client.patch(
                CSIStorageCapacity, desired.metadata.name, desired.metadata.namespace, body
            )


def _name(driver: str, class_name: str, term: Mapping[str, str]) -> str:
    text = "\0".join((driver, class_name, *(f"{key}={value}" for key, value in term.items())))
    return f"csisc-{sha256(text.encode()).hexdigest()[:16]}"
