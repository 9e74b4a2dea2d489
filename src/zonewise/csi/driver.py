"""A driver put together: journal, backend, services, one table of calls for both transports.

::

    data folder -> journal + locks + pools -> services -> Calls -> SocketServer | InProcessClient

``open_driver`` is all that ``zonewise csi``, the embedded cluster and the tests need.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from zonewise.api.errors import ConfigError
from zonewise.csi.backends.contract import HeldVolume, NodeBackend
from zonewise.csi.backends.folders.node import FolderNode
from zonewise.csi.backends.folders.pools import POOLS_FOLDER, FolderPools
from zonewise.csi.errors import CsiError
from zonewise.csi.locks import Locks
from zonewise.csi.private_folder import make_data_folder
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.services.identity import IdentityService
from zonewise.csi.services.node import NodeService
from zonewise.csi.services.plugin import (
    NO_CLUSTER,
    NodeDomain,
    Plugin,
    VolumeStorage,
    add_cluster_name,
)
from zonewise.csi.services.snapshots import SnapshotService
from zonewise.csi.services.steps import mount_lock
from zonewise.csi.services.volumes import VolumeService
from zonewise.csi.sqlite_journal import SqliteJournal
from zonewise.csi.transport.calls import Calls, CallWorker
from zonewise.csi.transport.methods import ServedMethod
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.domains import DomainLabels
from zonewise.storage.identifiers import ID_LIMIT, StoredKind
from zonewise.storage.journal import JournalEntry

T = TypeVar("T")

JOURNAL_FILE = "journal.db"
LOCK_FILE = "calls.lock"
DATA_FILES = frozenset(
    {
        JOURNAL_FILE,
        f"{JOURNAL_FILE}-wal",
        f"{JOURNAL_FILE}-shm",
        "journal.lock",
        LOCK_FILE,
        POOLS_FOLDER,
    }
)
"""All that is in a data folder."""
LANE_WORKERS = 16
"""What a lane does at once; more would only wait for the same disk."""
IDENTITY_LANE = "/identity"
COPIES_LANE = "/copies"
IDENTITY_REQUESTS = (csi.ProbeRequest, csi.GetPluginInfoRequest, csi.GetPluginCapabilitiesRequest)


class Threads:
    """A worker of its own threads; what the loop's default executor does stays undisturbed.

    Each lane has its own, so that work which waits in one keeps no other waiting.
    """

    def __init__(self, limit: int = LANE_WORKERS) -> None:
        self._limit = limit
        self._lanes: dict[str, ThreadPoolExecutor] = {}

    async def __call__(self, work: Callable[[], T], lane: str = "") -> T:
        if lane not in self._lanes:
            self._lanes[lane] = ThreadPoolExecutor(self._limit, thread_name_prefix="csi")
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._lanes[lane], context.run, work)

    def close(self) -> None:
        """Wait for what runs, take no more."""
        for lane in self._lanes.values():
            lane.shutdown()


class DriverStorage(Protocol):
    """What a driver keeps its volumes in, opened."""

    @property
    def locks(self) -> Locks: ...

    def clusters(self) -> Mapping[str, VolumeStorage]:
        """Those of the configuration, by their ids; what has no clusters is ``NO_CLUSTER``."""

    def start(self, configuration: StorageConfiguration) -> None:
        """Make ready what a driver needs before its first call."""

    def apply_configuration(self, configuration: StorageConfiguration) -> None:
        """Apply a changed configuration."""

    def in_call(self) -> AbstractContextManager[None]:
        """While a call lasts, nothing is closed that it may use."""

    def node_backend(self) -> NodeBackend:
        """The node half."""

    def check_cluster(
        self, configuration: StorageConfiguration, cluster: str
    ) -> dict[str, list[dict[str, str]]]:
        """What ``check`` reports of a cluster besides journal and images."""

    def close(self) -> None:
        """Close it."""


@dataclass(frozen=True, slots=True)
class DataFolder:
    """The data folder of the embedded backend, opened."""

    journal: SqliteJournal
    pools: FolderPools
    locks: Locks

    @property
    def backend(self) -> FolderPools:
        """The pools are the backend."""
        return self.pools

    def clusters(self) -> Mapping[str, DataFolder]:
        """It is all there is."""
        return {NO_CLUSTER: self}

    def start(self, configuration: StorageConfiguration) -> None:
        """Make the pools, release what a killed driver held, and protect marks of old volumes."""
        self.pools.prepare(configuration)
        self.pools.thaw_all()
        self.pools.upgrade_marks()

    def apply_configuration(self, configuration: StorageConfiguration) -> None:
        """Make the pools that are new."""
        self.pools.prepare(configuration)

    def in_call(self) -> AbstractContextManager[None]:
        """Nothing is ever removed."""
        return nullcontext()

    def node_backend(self) -> FolderNode:
        """The node half."""
        return FolderNode(self.pools)

    def check_cluster(
        self, configuration: StorageConfiguration, cluster: str
    ) -> dict[str, list[dict[str, str]]]:
        """Journal and images are all there is."""
        return {}

    def find_held(self, node: str) -> tuple[list[HeldVolume], list[str]]:
        """Images of this machine that a node has."""
        entries = self.journal.list_page(StoredKind.VOLUME).entries
        entries_of_node = (entry for entry in entries if self._is_held(entry, node))
        return [HeldVolume(NO_CLUSTER, entry.uuid) for entry in entries_of_node], []

    def fence_held(self, node: str, volume: HeldVolume) -> None:
        """Take the image from the node, unless that has let go of it."""
        entry = self.journal.get(StoredKind.VOLUME, volume.uuid)
        if entry is not None:
            with self.locks.hold(mount_lock(entry)):
                if self._is_held(entry, node):
                    self.node_backend().fence(entry)
                    self.node_backend().clear_holder(entry, node)

    def unfence_held(self, node: str, volume: HeldVolume, *, rebooted: bool) -> bool:
        """What was taken has no trace."""
        return True

    def _is_held(self, entry: JournalEntry, node: str) -> bool:
        holder = self.node_backend().find_holder(entry, Path())
        return holder is not None and holder.node == node

    def close(self) -> None:
        """Close it."""
        self.journal.close()


def open_data_folder(folder: Path, *, privileged: bool | None = None) -> DataFolder:
    """The data folder, made if it does not exist; raises ConfigError if it cannot be used.

    Without root, or with ``privileged`` False, volumes are folders.
    """
    try:
        make_data_folder(folder, DATA_FILES)
        locks = Locks(folder / LOCK_FILE)
    except OSError as error:
        raise ConfigError(f"--data {folder} cannot be used: {error.strerror}") from None
    journal = SqliteJournal(folder / JOURNAL_FILE)
    root = os.geteuid() == 0 if privileged is None else privileged
    return DataFolder(journal, FolderPools(folder, journal, privileged=root), locks)


@dataclass(frozen=True, slots=True)
class Driver:
    """A driver that can be called."""

    plugin: Plugin
    calls: Calls
    storage: DriverStorage


def open_driver(
    name: str,
    storage: DriverStorage,
    labels: DomainLabels,
    configuration: Callable[[], StorageConfiguration],
    *,
    node_id: str,
    domain: NodeDomain,
    worker: CallWorker,
    advertise_takeover: bool = False,
) -> Driver:
    """All three services of a driver on what it keeps its volumes in."""
    if len(node_id.encode()) > ID_LIMIT or not node_id:
        raise ConfigError(f"--node-id must have 1 to {ID_LIMIT} bytes")
    storage.start(configuration())
    plugin = Plugin(
        name=name,
        version=version("zonewise"),
        labels=labels,
        configuration=configuration,
        clusters=storage.clusters,
        locks=storage.locks,
    )
    node = NodeService(
        plugin, storage.node_backend(), node_id=node_id, domain=domain, advertise=advertise_takeover
    )
    bindings = [
        *IdentityService(plugin, domain.problem).bindings(),
        *VolumeService(plugin).bindings(),
        *SnapshotService(plugin).bindings(),
        *node.bindings(),
    ]
    served = [_bind_to_cluster(binding, plugin, storage) for binding in bindings]
    lane = partial(_choose_lane, plugin)
    return Driver(plugin, Calls(served, worker=worker, lane=lane), storage)


def _choose_lane(plugin: Plugin, request: Message) -> str:
    """Quick calls never wait for copies, however many a tenant asks for; nor do probes for any."""
    if isinstance(request, IDENTITY_REQUESTS):
        return IDENTITY_LANE
    copies = isinstance(request, csi.CreateSnapshotRequest) or (
        isinstance(request, csi.CreateVolumeRequest) and request.HasField("volume_content_source")
    )
    return plugin.cluster_of(request) + (COPIES_LANE if copies else "")


def _bind_to_cluster(binding: ServedMethod, plugin: Plugin, storage: DriverStorage) -> ServedMethod:
    """The same, with its cluster kept open meanwhile, and named if it does not answer.

    In this order: ``in_call`` must see the error as it was raised.
    """

    def serve(request: Message) -> Message:
        try:
            with storage.in_call():
                return binding.serve(request)
        except CsiError as error:
            raise add_cluster_name(plugin.cluster_of(request), error) from error

    return ServedMethod(binding.method, serve)
