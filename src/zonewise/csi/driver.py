"""A driver put together: journal, backend, services, one table of calls for both transports.

::

    data folder -> journal + locks + pools -> services -> Calls -> SocketServer | InProcessClient

``open_driver`` is all that ``zonewise csi``, the embedded cluster and the tests need.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, TypeVar

from zonewise.api.errors import ConfigError
from zonewise.csi.backends.contract import ControllerBackend, NodeBackend
from zonewise.csi.backends.embedded.node import FolderNode
from zonewise.csi.backends.embedded.pools import FolderPools
from zonewise.csi.journal import SqliteJournal
from zonewise.csi.locks import Locks
from zonewise.csi.services.identity import IdentityService
from zonewise.csi.services.node import NodeService
from zonewise.csi.services.plugin import NodeDomain, Plugin
from zonewise.csi.services.snapshots import SnapshotService
from zonewise.csi.services.volumes import VolumeService
from zonewise.csi.transport.calls import Calls, CallWorker
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.domains import DomainLabels
from zonewise.storage.identifiers import ID_LIMIT
from zonewise.storage.journal import Journal

T = TypeVar("T")

JOURNAL = "journal.db"
LOCKS = "calls.lock"
WORKERS = 16
"""What is done at once; more would only wait for the same disk."""


class Threads:
    """A worker of its own threads; what the loop's default executor does stays undisturbed."""

    def __init__(self, most: int = WORKERS) -> None:
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="csi")

    async def __call__(self, work: Callable[[], T]) -> T:
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._pool, context.run, work)

    def close(self) -> None:
        """Wait for what runs, take no more."""
        self._pool.shutdown()


class DriverStorage(Protocol):
    """What a driver keeps its volumes in, opened."""

    @property
    def journal(self) -> Journal: ...
    @property
    def backend(self) -> ControllerBackend: ...
    @property
    def locks(self) -> Locks: ...

    def start(self, configuration: StorageConfiguration) -> None:
        """Make ready what a driver needs before its first call."""

    def node(self) -> NodeBackend:
        """The node half."""

    def findings(self, configuration: StorageConfiguration) -> dict[str, list[dict[str, str]]]:
        """What ``check`` tells besides journal and images."""

    def close(self) -> None:
        """Let go of it."""


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

    def start(self, configuration: StorageConfiguration) -> None:
        """Make the pools, and let go of what a killed driver held."""
        self.pools.prepare(configuration)
        self.pools.thaw()

    def node(self) -> FolderNode:
        """The node half."""
        return FolderNode(self.pools)

    def findings(self, configuration: StorageConfiguration) -> dict[str, list[dict[str, str]]]:
        """Journal and images are all there is."""
        return {}

    def close(self) -> None:
        """Let go of it."""
        self.journal.close()


def open_data(folder: Path, *, privileged: bool | None = None) -> DataFolder:
    """The data folder, made if it is not there; raises ConfigError if it cannot be used.

    Who is not root, or does not want to be, has volumes that are folders.
    """
    try:
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        locks = Locks(folder / LOCKS)
    except OSError as error:
        raise ConfigError(f"--data {folder} cannot be used: {error.strerror}") from None
    journal = SqliteJournal(folder / JOURNAL)
    root = os.geteuid() == 0 if privileged is None else privileged
    return DataFolder(journal, FolderPools(folder, journal, privileged=root), locks)


@dataclass(frozen=True, slots=True)
class Driver:
    """A driver that can be called."""

    plugin: Plugin
    calls: Calls
    data: DriverStorage


def open_driver(
    name: str,
    data: DriverStorage,
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
    data.start(configuration())
    plugin = Plugin(
        name=name,
        version=version("zonewise"),
        labels=labels,
        configuration=configuration,
        journal=data.journal,
        backend=data.backend,
        locks=data.locks,
    )
    node = NodeService(
        plugin, data.node(), node_id=node_id, domain=domain, advertise=advertise_takeover
    )
    bindings = [
        *IdentityService(plugin, domain.problem).bindings(),
        *VolumeService(plugin).bindings(),
        *SnapshotService(plugin).bindings(),
        *node.bindings(),
    ]
    return Driver(plugin, Calls(bindings, worker=worker), data)
