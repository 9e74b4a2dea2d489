"""Publishes a driver's capacity to the scheduler: one CSIStorageCapacity per class and domain.

Domains are those that nodes with the driver are in. The driver is asked for each every ``PERIOD``
seconds, and soon after it made or deleted a volume, or its pools changed. Only what changed is
written. Names follow from class and domain, so a restart, or two leaders for a moment, never make
two objects for one pair; those without a class or domain are deleted.

When a driver cannot be reached, the last numbers stay: old numbers cost a failed attempt, none
would stop every pod that waits. A class that it refuses does not affect others.
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
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.status import CsiError
from zonewise.csi.transport.methods import GET_CAPACITY
from zonewise.embedded.csi_sidecars.provisioner import parameters
from zonewise.embedded.csi_sidecars.provisioner.driver import ReachableDriver
from zonewise.embedded.csi_sidecars.provisioner.volumes import size_text
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.process.logs import logger
from zonewise.storage.provisioning import domains_of

PERIOD = 60.0
SETTLE = 0.5
"""How long further changes are waited for before the driver is asked."""
DRIVER_LABEL = "csi.storage.k8s.io/drivername"
MANAGER_LABEL = "csi.storage.k8s.io/managed-by"
MANAGER = "zonewise"

_log = logger("provisioner")


class CapacityPublisher:
    """The capacities of one driver."""

    def __init__(
        self,
        context: ComponentContext,
        driver: ReachableDriver,
        namespace: str,
        changed: asyncio.Event,
    ) -> None:
        self._client = context.client
        self._driver = driver
        self._namespace = namespace
        self._changed = changed
        self._refused: dict[str, str] = {}
        cache = context.cache
        self._cache = cache
        self._classes = cache.store(StorageClass)
        self._nodes = cache.store(Node)
        self._csi_nodes = cache.store(CSINode)
        self._told = cache.store(CSIStorageCapacity)
        self._classes.on_change(lambda *_: changed.set())
        self._csi_nodes.on_change(lambda *_: changed.set())
        self._nodes.on_change(self._node_changed)

    async def run(self) -> None:
        """Publish until cancelled."""
        await self._cache.synced()
        while True:
            self._changed.clear()
            try:
                await self._tell()
            except ZonewiseError as error:
                _log.warning(
                    "free storage was not published", driver=self._driver.name, why=str(error)
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD):
                    await self._changed.wait()
            await asyncio.sleep(SETTLE)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if old is None or new is None or old.metadata.labels != new.metadata.labels:
            self._changed.set()

    async def _tell(self) -> None:
        labels = {one.metadata.name: one.metadata.labels for one in self._nodes}
        terms = domains_of(self._driver.name, labels, self._csi_nodes)
        classes = [one for one in self._classes if one.provisioner == self._driver.name]
        wanted: dict[str, CSIStorageCapacity] = {}
        unknown = set()
        for made_by in sorted(classes, key=lambda one: one.metadata.name):
            try:
                found = [await self._room(made_by, term) for term in terms]
            except CsiError as error:
                unknown.add(made_by.metadata.name)
                self._warn(made_by.metadata.name, error)
            else:
                self._refused.pop(made_by.metadata.name, None)
                wanted |= {one.metadata.name: one for one in found}
        told = {one.metadata.name: one for one in self._told if self._mine(one)}
        for name, item in wanted.items():
            await self._write(item, told.get(name))
        for name in told.keys() - wanted.keys():
            if told[name].storage_class_name not in unknown:
                with suppress(NotFound):
                    await self._client.delete(CSIStorageCapacity, name, self._namespace)

    def _warn(self, made_by: str, error: CsiError) -> None:
        """Say once why nothing is known about a class."""
        if self._refused.get(made_by) != str(error):
            self._refused[made_by] = str(error)
            _log.warning(
                "free storage of a class is not known",
                driver=self._driver.name,
                storage_class=made_by,
                why=str(error),
            )

    def _mine(self, item: CSIStorageCapacity) -> bool:
        labels = item.metadata.labels
        return (
            item.metadata.namespace == self._namespace
            and labels.get(DRIVER_LABEL) == self._driver.name
            and labels.get(MANAGER_LABEL) == MANAGER
        )

    async def _room(self, made_by: StorageClass, term: Mapping[str, str]) -> CSIStorageCapacity:
        request = csi.GetCapacityRequest(
            parameters=parameters.for_driver(made_by.parameters),
            accessible_topology=csi.Topology(segments=dict(term)),
        )
        answer = await self._driver.client.call(GET_CAPACITY, request)
        largest = None
        if answer.HasField("maximum_volume_size"):
            largest = size_text(answer.maximum_volume_size.value)
        name = made_by.metadata.name
        return CSIStorageCapacity(
            metadata=ObjectMeta(
                name=_name(self._driver.name, name, term),
                namespace=self._namespace,
                labels={DRIVER_LABEL: self._driver.name, MANAGER_LABEL: MANAGER},
            ),
            storage_class_name=name,
            node_topology=LabelSelector(match_labels=dict(term)),
            capacity=size_text(answer.available_capacity),
            maximum_volume_size=largest,
        )

    async def _write(self, item: CSIStorageCapacity, old: CSIStorageCapacity | None) -> None:
        if old is None:
            with suppress(AlreadyExists):
                await self._client.create(item)
        elif (old.capacity, old.maximum_volume_size) != (item.capacity, item.maximum_volume_size):
            body = {"capacity": item.capacity, "maximumVolumeSize": item.maximum_volume_size}
            await self._client.patch(
                CSIStorageCapacity, item.metadata.name, item.metadata.namespace, body
            )


def _name(driver: str, made_by: str, term: Mapping[str, str]) -> str:
    text = "\0".join((driver, made_by, *(f"{key}={value}" for key, value in term.items())))
    return f"csisc-{sha256(text.encode()).hexdigest()[:16]}"
