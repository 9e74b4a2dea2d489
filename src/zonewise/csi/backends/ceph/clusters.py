"""The Ceph clusters of a configuration behind one driver.

Each has a connection, a journal and images of its own; nothing is shared but the folder in which
volumes appear on this machine, where a volume's uuid is its name. Only calls for an unreachable
cluster wait for it.

A changed file adds, replaces and removes clusters. One that was replaced or removed is closed when
the calls that began before are over: librados must not be closed during a call. Its mounted volumes
stay mounted, and can be unstaged.

Zones are those of all clusters: one has failed if all clusters that have it and answer say so.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from zonewise.api.errors import ConfigError
from zonewise.csi.answering import collect_answers
from zonewise.csi.backends.ceph.blocklist import unblock
from zonewise.csi.backends.ceph.cephfs.clients import CephFsClients
from zonewise.csi.backends.ceph.cephfs.node import CephFsNode
from zonewise.csi.backends.ceph.cephfs.subvolumes import Subvolumes
from zonewise.csi.backends.ceph.connection import Blocklisted, CephConnection
from zonewise.csi.backends.ceph.crush import find_contradictions, find_failed_domains
from zonewise.csi.backends.ceph.journals.cluster_journal import (
    CLUSTER,
    ClusterJournal,
    reserved_pool_name,
)
from zonewise.csi.backends.ceph.journals.node_index import NodeIndex
from zonewise.csi.backends.ceph.journals.omap import LEASE_SECONDS
from zonewise.csi.backends.ceph.rbd.fencing import RbdFencing
from zonewise.csi.backends.ceph.rbd.images import RbdImages
from zonewise.csi.backends.ceph.rbd.node import RbdNode
from zonewise.csi.backends.ceph.rbd.recovery import RecoveringRbdNode
from zonewise.csi.backends.contract import HeldVolume
from zonewise.csi.errors import CsiError, precondition
from zonewise.csi.locks import Locks
from zonewise.csi.private_folder import make_private_folder
from zonewise.runtime.process.logs import logger
from zonewise.storage.configuration import CephCluster, StorageConfiguration
from zonewise.storage.domains import DomainLabels
from zonewise.storage.identifiers import StoredKind
from zonewise.storage.journal import JournalEntry
from zonewise.storage.pools import PoolSpec

B = TypeVar("B", bound=RbdImages | Subvolumes)


@dataclass(frozen=True, slots=True)
class CephStorage(Generic[B]):
    """One cluster as a driver uses it: its connection, its journal, its images or subvolumes."""

    ceph: CephConnection
    journal: ClusterJournal
    backend: B

    def check_pools(self, declared: Iterable[PoolSpec]) -> dict[str, list[dict[str, str]]]:
        """What ``check`` also reports: the trash, and pools that are not where they should be.

        Where they should be says the configuration, and what they are labelled with.
        """
        pools, application = self.backend.pools(), self.backend.application
        labelled = [
            PoolSpec(name, segments=labels)
            for name, pool in pools.items()
            if (labels := pool.labelled_state(application).labels)
        ]
        contradictions = find_contradictions([*declared, *labelled], pools)
        findings = {
            "affinity": [
                item
                for index, item in enumerate(contradictions)
                if item not in contradictions[:index]
            ],
            "pools": self._find_moved_pools(),
        }
        if isinstance(self.backend, RbdImages):
            findings["trash"] = self.backend.list_trash()
        return findings

    def _find_moved_pools(self) -> list[dict[str, str]]:
        """Pools of entries that were renamed or deleted."""
        pools, moved = self.backend.pools(), set()
        for kind in StoredKind:
            for entry in self.journal.list_page(kind).entries:
                reserved_name = reserved_pool_name(entry)
                if reserved_name != entry.pool:
                    moved.add((reserved_name, f"called {entry.pool} now"))
                elif entry.pool not in pools:
                    moved.add((reserved_name, "gone"))
        return [{"pool": pool, "is": now} for pool, now in sorted(moved)]

    def read_domain_health(self, labels: DomainLabels) -> tuple[frozenset[str], frozenset[str]]:
        """All domains that CRUSH has, and those in which no OSD is up."""
        return find_failed_domains(
            self.ceph.mon_command("osd dump"), self.ceph.mon_command("osd crush dump"), labels.names
        )

    def close(self) -> None:
        """Close everything."""
        self.backend.close()
        self.journal.close()
        self.ceph.close()


LOCK_FILE = "calls.lock"
CEPHFS_NAMESPACE = "zonewise-fs"

_log = logger("csi")


class CephClusters(Generic[B]):
    """What a driver on Ceph keeps its volumes in; ``opened`` makes one cluster ready."""

    def __init__(
        self,
        folder: Path,
        configuration: StorageConfiguration,
        open_cluster: Callable[[CephCluster], CephStorage[B]],
        make_node: Callable[[CephClusters[B]], RbdNode | CephFsNode],
    ) -> None:
        self.locks = Locks(folder / LOCK_FILE)
        self._open_cluster = open_cluster
        self._make_node = make_node
        self._lock = threading.Lock()
        self._generation = 0
        self._calls_by_generation: Counter[int] = Counter()
        self._retired: list[tuple[int, CephStorage[B]]] = []
        self._closing_threads: list[threading.Thread] = []
        self._clusters = {spec.cluster_id: open_cluster(spec) for spec in configuration.clusters}

    def clusters(self) -> Mapping[str, CephStorage[B]]:
        """Those of the configuration now, by their ids."""
        return self._clusters

    def start(self, configuration: StorageConfiguration) -> None:
        """Ceph is not called: an unreachable cluster must not keep a driver from starting."""
        for storage in self._clusters.values():
            storage.backend.prepare(configuration)

    def apply_configuration(self, configuration: StorageConfiguration) -> None:
        """Apply what a changed file says about clusters, without waiting."""
        with self._lock:
            previous = self._clusters
            current = {
                cluster.cluster_id: known
                if (known := previous.get(cluster.cluster_id)) is not None
                and _is_same_cluster(known, cluster)
                else self._open_cluster(cluster)
                for cluster in configuration.clusters
            }
            self._clusters = current
            for name, storage in previous.items():
                if current.get(name) is not storage:
                    _log.info("a Ceph cluster is not used any more", cluster=name)
                    self._retired.append((self._generation, storage))
            self._generation += 1
        self._close_unused()
        self.start(configuration)

    @contextmanager
    def in_call(self) -> Iterator[None]:
        """While a call lasts, no cluster is closed that it may work with."""
        with self._lock:
            generation = self._generation
            self._calls_by_generation[generation] += 1
        try:
            yield
        except Blocklisted:
            self._reconnect_blocklisted()
            raise
        finally:
            with self._lock:
                self._calls_by_generation -= Counter([generation])
            if self._retired:
                self._close_unused()

    def _reconnect_blocklisted(self) -> None:
        """Reconnect where we were blocklisted, as a takeover may do while we have an image open."""
        for name, storage in self._clusters.items():
            with suppress(CsiError):
                if storage.ceph.is_blocklisted():
                    with self._lock:
                        if self._clusters.get(name) is storage:
                            reconnected = self._open_cluster(storage.ceph.cluster)
                            self._clusters = {**self._clusters, name: reconnected}
                            self._retired.append((self._generation, storage))
                            self._generation += 1
                            _log.warning("blocklisted, and connected again", cluster=name)

    def storage_of(self, entry: JournalEntry) -> CephStorage[B]:
        """Where an entry is, though its cluster may be called otherwise now."""
        clusters, name = self._clusters, entry.attributes[CLUSTER]
        if name in clusters:
            return clusters[name]
        for storage in clusters.values():
            if len(clusters) == 1 or storage.journal.get(entry.kind, entry.uuid) is not None:
                return storage
        raise precondition(f"cluster {name} of {entry.name} is not in the configuration any more")

    def connection_of(self, entry: JournalEntry) -> CephConnection:
        """The connection to that cluster."""
        return self.storage_of(entry).ceph

    def index_of(self, entry: JournalEntry) -> NodeIndex:
        """Which volumes nodes have, in that cluster."""
        return NodeIndex(self.storage_of(entry).journal)

    def any_connection(self) -> CephConnection:
        """One of them."""
        return next(iter(self._clusters.values())).ceph

    def node_backend(self) -> RbdNode | CephFsNode:
        """The node half, for volumes of all clusters."""
        return self._make_node(self)

    def check_cluster(
        self, configuration: StorageConfiguration, cluster: str
    ) -> dict[str, list[dict[str, str]]]:
        """What ``check`` reports of a cluster besides journal and images.

        Pools are declared by their names for all clusters: one must have them.
        """
        declared = {pool.name: pool for pool in configuration.pools}
        for pools in configuration.pool_sets.values():
            declared |= {pool.name: pool for pool in pools}
        pools_elsewhere: set[str] = set()
        for name, other in self._clusters.items():
            if name != cluster:
                try:
                    pools_elsewhere |= {*other.backend.pools()}
                except CsiError:
                    pools_elsewhere |= {*declared}
        storage = self._clusters[cluster]
        own = storage.backend.pools()
        return storage.check_pools(
            pool for name, pool in declared.items() if name in own or name not in pools_elsewhere
        )

    def read_domain_health(self, labels: DomainLabels) -> tuple[frozenset[str], frozenset[str]]:
        """All domains of those that answer, and those that have failed in all that have them."""
        with self.in_call():
            answers = collect_answers(
                {
                    name: partial(storage.read_domain_health, labels)
                    for name, storage in self._clusters.items()
                }
            ).values()
        known = frozenset(name for known_there, _ in answers for name in known_there)
        alive = {name for known_there, failed in answers for name in known_there - failed}
        return known, known - alive

    def find_held(self, node: str) -> tuple[list[HeldVolume], list[str]]:
        """Volumes that a node has and is not fenced from."""
        volumes: list[HeldVolume] = []
        problems: dict[tuple[str, str], str] = {}
        fencing = RbdFencing(self.connection_of)
        with self.in_call():
            for name, storage in self._clusters.items():
                if isinstance(storage.backend, Subvolumes):
                    subvolumes, errors = CephFsClients(storage.ceph, storage.journal).find_held(
                        name, node
                    )
                    volumes += subvolumes
                    problems |= {(name, problem): problem for problem in errors}
                    continue
                index = NodeIndex(storage.journal)
                notes, errors = index.list_volumes(node)
                problems |= {(name, problem): problem for problem in errors}
                for uuid in sorted(notes):
                    pool = ""
                    try:
                        entry = storage.journal.get(StoredKind.VOLUME, uuid)
                        if entry is None:  # it was deleted: looking for it takes long
                            index.remove_note(uuid, node, notes[uuid])
                            continue
                        pool = entry.pool
                        # A pool that does not answer takes its time once, not for each image.
                        if (name, pool) in problems:
                            continue
                        clients = fencing.find_clients_of(entry, node)
                    except CsiError as error:
                        problems[name, pool] = str(error)
                    else:
                        if clients is not None:
                            volumes.append(HeldVolume(name, uuid, clients))
        return volumes, [*problems.values()]

    def fence_held(self, node: str, volume: HeldVolume) -> None:
        """Fence clients of a node; raises unless it is certain that it has none left."""
        with self.in_call():
            clients = self._cephfs_clients(volume)
            if clients is not None:
                clients.fence(node, volume)
            elif (entry := self._find_held_entry(volume)) is not None:
                RbdFencing(self.connection_of).fence_node(entry, node, volume.clients)

    def unfence_held(self, node: str, volume: HeldVolume, *, rebooted: bool) -> bool:
        """Let them in again, unless they might harm another node."""
        with self.in_call():
            clients = self._cephfs_clients(volume)
            if clients is not None:
                return clients.unfence(node, volume, rebooted=rebooted)
            entry = self._find_held_entry(volume)
            if entry is None:
                if volume.cluster in self._clusters:
                    unblock(self._clusters[volume.cluster].ceph, volume.clients)
                return True
            return RbdFencing(self.connection_of).unfence_node(
                entry, node, volume.clients, rebooted=rebooted
            )

    def _cephfs_clients(self, volume: HeldVolume) -> CephFsClients | None:
        """The clients of a volume's cluster; None if it is an image, or its cluster is gone."""
        storage = self._clusters.get(volume.cluster)
        if storage is None or not isinstance(storage.backend, Subvolumes):
            return None
        return CephFsClients(storage.ceph, storage.journal)

    def _find_held_entry(self, volume: HeldVolume) -> JournalEntry | None:
        """The entry of a volume; None if it, or its cluster, is gone."""
        storage = self._clusters.get(volume.cluster)
        return storage.journal.get(StoredKind.VOLUME, volume.uuid) if storage is not None else None

    def close(self) -> None:
        """Close everything."""
        with self._lock:
            self._retired += [(self._generation, storage) for storage in self._clusters.values()]
            self._clusters = {}
            self._calls_by_generation.clear()
        self._close_unused()
        for thread in self._closing_threads:
            thread.join()

    def _close_unused(self) -> None:
        """Close what no call that is under way can have; in a thread, because Ceph takes time."""
        with self._lock:
            oldest = min(self._calls_by_generation, default=self._generation + 1)
            unused = [storage for generation, storage in self._retired if generation < oldest]
            self._retired = [
                (generation, storage)
                for generation, storage in self._retired
                if generation >= oldest
            ]
            for storage in unused:
                thread = threading.Thread(target=storage.close, name="closing", daemon=True)
                self._closing_threads = [
                    other for other in self._closing_threads if other.is_alive()
                ] + [thread]
                thread.start()


def open_rbd(
    folder: Path, configuration: StorageConfiguration, *, lease: int = LEASE_SECONDS
) -> CephClusters[RbdImages]:
    """RBD on the clusters of a configuration; raises ConfigError if the folder cannot be used."""

    def open_cluster(cluster: CephCluster) -> CephStorage[RbdImages]:
        ceph = CephConnection(cluster)
        journal = ClusterJournal(ceph, lease=lease)
        return CephStorage(ceph, journal, RbdImages(ceph, journal))

    _make_folder(folder / "rbd")
    return CephClusters(
        folder, configuration, open_cluster, lambda clusters: RecoveringRbdNode(clusters, folder)
    )


def open_cephfs(
    folder: Path, configuration: StorageConfiguration, *, lease: int = LEASE_SECONDS
) -> CephClusters[Subvolumes]:
    """CephFS on the same."""

    def open_cluster(cluster: CephCluster) -> CephStorage[Subvolumes]:
        ceph = CephConnection(cluster)
        journal = ClusterJournal(ceph, namespace=CEPHFS_NAMESPACE, lease=lease)
        return CephStorage(ceph, journal, Subvolumes(ceph, journal, folder / "fs"))

    def make_node(clusters: CephClusters[Subvolumes]) -> CephFsNode:
        def clients_of(entry: JournalEntry) -> CephFsClients:
            storage = clusters.storage_of(entry)
            return CephFsClients(storage.ceph, storage.journal)

        return CephFsNode(
            lambda entry: clusters.connection_of(entry).cluster,
            folder,
            lambda entry: clusters.storage_of(entry).backend.path(entry),
            clients_of,
        )

    _make_folder(folder / "fs")
    return CephClusters(folder, configuration, open_cluster, make_node)


def _is_same_cluster(storage: CephStorage[B], cluster: CephCluster) -> bool:
    """Whether a connection fits what the file says now; readAffinity does not matter."""
    return replace(storage.ceph.cluster, read_affinity=cluster.read_affinity) == cluster


def _make_folder(folder: Path) -> None:
    try:
        make_private_folder(folder)
    except OSError as error:
        raise ConfigError(f"--data {folder.parent} cannot be used: {error.strerror}") from None
