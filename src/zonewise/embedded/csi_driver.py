"""The driver ``csi.zonewise.io`` in an embedded cluster: real volumes.

One data folder holds the pools of all zones; every node has the driver as if it ran there, and its
kubelet mounts volumes below ``nodes/``. All calls stay in this process. Where mounting is
impossible (no root, a container without permission, no mkfs) volumes are folders and mounts are
links.

The pools are in the ConfigMap ``zonewise-system/csi``, key ``config.json``, in the form that
``zonewise csi --config`` reads; a change applies at once, an invalid one changes nothing and is
reported. As long as the annotation ``csi.zonewise.io/pools: by-zone`` exists, each zone that a node
is in gets a pool of its own; remove it to manage the pools yourself.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from zonewise.api.errors import AlreadyExists, ApiError, ConfigError
from zonewise.api.meta import Key, ObjectMeta
from zonewise.api.objects.apiextensions import CustomResourceDefinition
from zonewise.api.objects.core import Node
from zonewise.api.objects.snapshots import VolumeSnapshot, VolumeSnapshotClass
from zonewise.api.objects.storage import CSIDriver, CSIDriverSpec, StorageClass
from zonewise.csi.backends.folders import filesystems, mounts
from zonewise.csi.backends.folders.node import FolderNode
from zonewise.csi.driver import DataFolder, open_data_folder, open_driver
from zonewise.csi.errors import CsiError
from zonewise.csi.missing_pools import MissingPoolReporter
from zonewise.csi.node_domain import FixedDomain, StoredDomain
from zonewise.csi.services.node import NodeService
from zonewise.csi.services.plugin import NO_CLUSTER
from zonewise.csi.takeover.automatic import AutomaticLoop
from zonewise.csi.takeover.controller import StatesByCluster, TakeoverController, TakeoverSettings
from zonewise.csi.takeover.out_of_service import OutOfServiceController
from zonewise.csi.takeover.source import FollowedConfiguration
from zonewise.csi.takeover.status import CONFIG_KEY, CONFIG_MAP
from zonewise.csi.transport.calls import Calls, CallWorker
from zonewise.csi.transport.client import CsiClient, InProcessClient
from zonewise.embedded.components.kubelet.node_status import FAILED_ANNOTATION
from zonewise.embedded.csi_sidecars.pod_mounts import PodMounts
from zonewise.embedded.csi_sidecars.provisioner import TopologyOptions
from zonewise.embedded.csi_sidecars.registration import DriverRegistrar
from zonewise.embedded.csi_sidecars.sidecars import DriverSidecars
from zonewise.embedded.csi_sidecars.snapshot_definitions import definitions
from zonewise.embedded.leftovers.volumes import VolumeRecord
from zonewise.embedded.seed.seed_marker import NAMESPACE, ConfigMap, ensure_namespace
from zonewise.runtime.cache.store import Store
from zonewise.runtime.process.logs import logger
from zonewise.runtime.program.context import ControllerContext
from zonewise.runtime.program.program import Program
from zonewise.storage.configuration import (
    TAKEOVER_MEMBER,
    StorageConfiguration,
    parse_configuration,
)
from zonewise.storage.domains import DomainLabels, parse_domain_labels
from zonewise.topology.nodes import ZONE_LABEL, zone_of

DRIVER = "csi.zonewise.io"
CLASS_NAME = "zonal"
POOLS_ANNOTATION = "csi.zonewise.io/pools"
POOL_SIZE = "10Gi"
POLL_SECONDS = 0.1
IMMEDIATE_ANYWHERE = TopologyOptions(immediate=False)
"""As ``zonewise install --csi`` sets it: volumes that bind at once are in the best of all pools,
and can be used from everywhere."""

_KEY: Key = (NAMESPACE, CONFIG_MAP)
_log = logger("csi")


def can_mount(folder: Path) -> bool:
    """Whether images can be created and mounted below a folder; tried, as root may not suffice."""
    if os.geteuid() != 0 or not os.access("/dev/loop-control", os.R_OK | os.W_OK):
        return False
    folder.mkdir(parents=True, exist_ok=True)
    try:
        filesystems.require_mkfs(filesystems.EXT4)
        with tempfile.TemporaryDirectory(dir=folder) as name:
            path = Path(name)
            mounts.bind(path, path, readonly=False)
            mounts.unmount(path)
    except (CsiError, OSError):
        return False
    return True


class EmbeddedDriver:
    """The driver of one cluster, and what it adds to the cluster's parts."""

    def __init__(self, folder: Path, *, worker: CallWorker, privileged: bool | None = None) -> None:
        self._folder = folder.resolve()
        self._worker = worker
        self._labels = parse_domain_labels(ZONE_LABEL, DRIVER)
        data = self._folder / "csi"
        mountable = can_mount(data) if privileged is None else privileged
        self._record = VolumeRecord.claim(self._folder) if mountable else None
        self._data: DataFolder = open_data_folder(data, privileged=mountable)
        self.followed = FollowedConfiguration()
        driver = open_driver(
            DRIVER,
            self._data,
            self._labels,
            lambda: self.followed.current,
            node_id="controller",
            domain=FixedDomain({}),
            worker=worker,
        )
        self._plugin = driver.plugin
        self._controller = InProcessClient(driver.calls)
        self._nodes: dict[str, CsiClient] = {}
        self._mounts: PodMounts | None = None

    @property
    def name(self) -> str:
        """The name of its CSIDriver."""
        return DRIVER

    @property
    def privileged(self) -> bool:
        """Whether volumes are mounted; else they are folders with links to them."""
        return self._data.pools.privileged

    def add_controllers(self, program: Program) -> None:
        """Register the driver on nodes, serve claims and snapshots, keep takeovers."""
        nodes = program.cache.store(Node)
        program.add("csi-configuration", PoolConfiguration, driver=self)
        program.add(
            "csi-registration",
            DriverRegistrar,
            driver=DRIVER,
            clients=partial(self._client, nodes),
        )
        program.add(
            "csi-provisioner", _DriverSetup, client=self._controller, followed=self.followed
        )
        program.add(
            "csi-missing-pools", MissingPoolReporter, source=self.followed, labels=self._labels
        )
        takeover = TakeoverSettings(
            source=self.followed,
            labels=self._labels,
            namespace=NAMESPACE,
            read_states=self._get_states,
        )
        program.add("csi-takeover", TakeoverController, takeover)
        program.add(
            "csi-automatic-takeover",
            AutomaticLoop,
            takeover,
            storage=self._data,
            worker=self._worker,
        )
        program.add(
            "csi-out-of-service",
            OutOfServiceController,
            takeover,
            storage=self._data,
            worker=self._worker,
        )

    def use(self, configuration: StorageConfiguration) -> None:
        """Use the pools of a configuration from now on."""
        self._data.pools.prepare(configuration)
        self.followed.use(configuration)

    async def _get_states(self, configuration: StorageConfiguration) -> StatesByCluster:
        return {NO_CLUSTER: await self._worker(lambda: self._data.pools.pool_states(configuration))}

    @property
    def labels(self) -> DomainLabels:
        """The labels that name domains."""
        return self._labels

    async def unmount(self) -> None:
        """Unmount every volume of every pod."""
        if self._mounts is not None:
            await self._mounts.close()

    def close(self) -> None:
        """Release the folder."""
        self._data.close()
        if self._record is not None:
            self._record.close()

    def pod_volumes(self, context: ControllerContext) -> PodMounts:
        """What mounts volumes for the kubelets."""
        nodes = context.cache.store(Node)

        def is_alive(name: str) -> bool:
            node = nodes.get(("", name))
            return node is None or FAILED_ANNOTATION not in node.metadata.annotations

        self._mounts = PodMounts(
            context,
            folder=self._folder / "nodes",
            driver=DRIVER,
            clients=lambda node: self._client(nodes, node),
            is_alive=is_alive,
        )
        return self._mounts

    def _client(self, nodes: Store[Node], name: str) -> CsiClient:
        """The client of the driver on a node."""
        client = self._nodes.get(name)
        if client is None:
            service = NodeService(
                self._plugin,
                FolderNode(self._data.pools),
                node_id=name,
                domain=StoredDomain(nodes, name, self._labels),
            )
            calls = Calls(service.bindings(), worker=self._worker)
            client = self._nodes[name] = InProcessClient(calls)
        return client


class PoolConfiguration:
    """Follows the ConfigMap with the pools, and adds one for each new zone if that is allowed."""

    def __init__(self, context: ControllerContext, *, driver: EmbeddedDriver) -> None:
        self._context = context
        self._driver = driver
        self._text = ""
        self._controller = context.controller("csi configuration", self._sync)
        self._maps = self._controller.watches(
            ConfigMap,
            lambda _: (_KEY,),
            namespace=NAMESPACE,
            field_selector=f"metadata.name={CONFIG_MAP}",
        )
        self._nodes = self._controller.watches(Node, lambda _: (_KEY,), when=_zone_changed)

    async def run(self) -> None:
        """Follow until cancelled."""
        await ensure_namespace(self._context.client)
        await self._controller.run()

    async def _sync(self, _: Key) -> float | None:
        zones = sorted({zone for node in self._nodes if (zone := zone_of(node))})
        config_map = self._maps.get(_KEY)
        if config_map is None:
            if zones:
                await self._create(zones)
            return None
        text = str(config_map.get("data", CONFIG_KEY, default=""))
        if text != self._text:
            self._apply(config_map, text)
        by_zone = config_map.metadata.annotations.get(POOLS_ANNOTATION) == "by-zone"
        # An invalid configuration is left to its author: a pool added there would not count, and be
        # added again and again.
        if by_zone and self._driver.followed.problem is None:
            await self._add_zones(text, zones, config_map.metadata.resource_version)
        return None

    async def _create(self, zones: list[str]) -> None:
        value: dict[str, Any] = {"version": 2, "pools": [_pool(zone) for zone in zones]}
        if takeovers := self._driver.followed.current.takeover.targets:
            # Deleting the ConfigMap does not mean that a failed zone is back.
            value[TAKEOVER_MEMBER] = {name: list(targets) for name, targets in takeovers.items()}
        body = {
            "metadata": {
                "name": CONFIG_MAP,
                "namespace": NAMESPACE,
                "annotations": {POOLS_ANNOTATION: "by-zone"},
            },
            "data": {CONFIG_KEY: _format(value)},
        }
        with suppress(AlreadyExists):
            await self._context.client.create(ConfigMap(body))

    def _apply(self, config_map: Any, text: str) -> None:
        try:
            configuration = parse_configuration(text, self._driver.labels)
        except ConfigError as error:
            note = f"{CONFIG_KEY} changes nothing, pools and takeover stay as they were: {error}"
            _log.error(note)
            self._context.recorder.event(
                config_map, "InvalidConfiguration", "Read", note, type="Warning"
            )
            self._driver.followed.refuse(str(error))
        else:
            self._driver.use(configuration.inherit_takeover(self._driver.followed.current))
        self._text = text

    async def _add_zones(self, text: str, zones: list[str], version: str) -> None:
        pooled_zones = {
            value
            for pool in self._driver.followed.current.pools
            for value in pool.segments.values()
        }
        new_zones = [zone for zone in zones if zone not in pooled_zones]
        value = json.loads(text)
        if new_zones and isinstance(value, dict):
            value["pools"] = [*value.get("pools", []), *map(_pool, new_zones)]
            body = {"metadata": {"resourceVersion": version}, "data": {CONFIG_KEY: _format(value)}}
            await self._context.client.patch(ConfigMap, CONFIG_MAP, NAMESPACE, body)


class _DriverSetup:
    """Registers the driver in the cluster, then serves claims and snapshots."""

    def __init__(
        self, context: ControllerContext, *, client: CsiClient, followed: FollowedConfiguration
    ) -> None:
        self._client = context.client
        self._followed = followed
        self._sidecars = DriverSidecars(
            context, IMMEDIATE_ANYWHERE, client=client, namespace=NAMESPACE, snapshots=True
        )

    async def run(self) -> None:
        """Work until cancelled."""
        unsubscribe = self._followed.on_status_change(self._sidecars.capacity_changed)
        try:
            await self._run()
        finally:
            unsubscribe()

    async def _run(self) -> None:
        await ensure_namespace(self._client)
        for definition in definitions():
            name = definition["metadata"]["name"]
            await self._client.apply(CustomResourceDefinition, name, None, definition, force=True)
        await self._wait_until_served()
        for obj in _default_objects():
            with suppress(AlreadyExists):
                await self._client.create(obj)
        await self._sidecars.run()

    async def _wait_until_served(self) -> None:
        """Wait for the kinds of snapshots, served a moment after they were written."""
        while True:
            try:
                await self._client.list(VolumeSnapshotClass)
                await self._client.list(VolumeSnapshot)
            except ApiError:
                await asyncio.sleep(POLL_SECONDS)
            else:
                return


def _default_objects() -> tuple[CSIDriver | StorageClass | VolumeSnapshotClass, ...]:
    return (
        CSIDriver(
            metadata=ObjectMeta(name=DRIVER),
            spec=CSIDriverSpec(
                attach_required=False,
                pod_info_on_mount=False,
                storage_capacity=True,
                fs_group_policy="File",
                volume_lifecycle_modes=("Persistent",),
            ),
        ),
        StorageClass(
            metadata=ObjectMeta(name=CLASS_NAME),
            provisioner=DRIVER,
            reclaim_policy="Delete",
            volume_binding_mode="WaitForFirstConsumer",
            allow_volume_expansion=True,
        ),
        VolumeSnapshotClass(
            metadata=ObjectMeta(name=CLASS_NAME), driver=DRIVER, deletion_policy="Delete"
        ),
    )


def _pool(zone: str) -> dict[str, Any]:
    return {
        "poolName": f"zone-{zone}",
        "capacity": POOL_SIZE,
        "domainSegments": [{"domainLabel": "zone", "value": zone}],
    }


def _format(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"


def _zone_changed(old: Node | None, new: Node | None) -> bool:
    return new is not None and (old is None or zone_of(old) != zone_of(new))
