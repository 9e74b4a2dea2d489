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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from zonewise.api.errors import ConfigError
from zonewise.csi.answering import answered
from zonewise.csi.backends.ceph.connection import Ceph, ShutOut
from zonewise.csi.backends.ceph.fs_node import CephFsNode
from zonewise.csi.backends.ceph.images import RbdImages
from zonewise.csi.backends.ceph.journals.omap import LEASE
from zonewise.csi.backends.ceph.journals.pools import CLUSTER, JournalPools
from zonewise.csi.backends.ceph.node import RbdNode
from zonewise.csi.backends.ceph.revival import RevivingRbdNode
from zonewise.csi.backends.ceph.storage import CephStorage
from zonewise.csi.backends.ceph.subvolumes import Subvolumes
from zonewise.csi.locks import Locks
from zonewise.csi.private_folder import make_folder
from zonewise.csi.status import CsiError, precondition
from zonewise.runtime.process.logs import logger
from zonewise.storage.configuration import CephCluster, StorageConfiguration
from zonewise.storage.domains import DomainLabels
from zonewise.storage.journal import JournalEntry

LOCKS = "calls.lock"
FILES_NAMESPACE = "zonewise-fs"

B = TypeVar("B", bound=RbdImages | Subvolumes)

_log = logger("csi")


class CephClusters(Generic[B]):
    """What a driver on Ceph keeps its volumes in; ``opened`` makes one cluster ready."""

    def __init__(
        self,
        folder: Path,
        configuration: StorageConfiguration,
        opened: Callable[[CephCluster], CephStorage[B]],
        node: Callable[[CephClusters[B]], RbdNode | CephFsNode],
    ) -> None:
        self.locks = Locks(folder / LOCKS)
        self._opened = opened
        self._node = node
        self._lock = threading.Lock()
        self._turn = 0
        self._calls: Counter[int] = Counter()
        self._retired: list[tuple[int, CephStorage[B]]] = []
        self._closing: list[threading.Thread] = []
        self._clusters = {one.cluster_id: opened(one) for one in configuration.clusters}

    def clusters(self) -> Mapping[str, CephStorage[B]]:
        """Those of the configuration now, by their ids."""
        return self._clusters

    @property
    def only(self) -> CephStorage[B]:
        """The one that there is, where there is one."""
        (found,) = self._clusters.values()
        return found

    def start(self, configuration: StorageConfiguration) -> None:
        """Ceph is not called: an unreachable cluster must not keep a driver from starting."""
        for one in self._clusters.values():
            one.backend.prepare(configuration)

    def prepare(self, configuration: StorageConfiguration) -> None:
        """Apply what a changed file says about clusters, without waiting."""
        with self._lock:
            before = self._clusters
            now = {
                one.cluster_id: known
                if (known := before.get(one.cluster_id)) is not None and _same(known, one)
                else self._opened(one)
                for one in configuration.clusters
            }
            self._clusters = now
            for name, storage in before.items():
                if now.get(name) is not storage:
                    _log.info("a Ceph cluster is not used any more", cluster=name)
                    self._retired.append((self._turn, storage))
            self._turn += 1
        self._close_unused()
        self.start(configuration)

    @contextmanager
    def in_call(self) -> Iterator[None]:
        """While a call lasts, no cluster is closed that it may work with."""
        with self._lock:
            turn = self._turn
            self._calls[turn] += 1
        try:
            yield
        except ShutOut:
            self._renew()
            raise
        finally:
            with self._lock:
                self._calls -= Counter([turn])
            if self._retired:
                self._close_unused()

    def _renew(self) -> None:
        """Reconnect where we were blocklisted, as a takeover may do while we have an image open."""
        for name, one in self._clusters.items():
            with suppress(CsiError):
                if one.ceph.shut_out():
                    with self._lock:
                        if self._clusters.get(name) is one:
                            fresh = self._opened(one.ceph.cluster)
                            self._clusters = {**self._clusters, name: fresh}
                            self._retired.append((self._turn, one))
                            self._turn += 1
                            _log.warning("blocklisted, and connected anew", cluster=name)

    def storage(self, entry: JournalEntry) -> CephStorage[B]:
        """Where an entry is, though its cluster may be called otherwise now."""
        clusters, name = self._clusters, entry.attributes[CLUSTER]
        if name in clusters:
            return clusters[name]
        for one in clusters.values():
            if len(clusters) == 1 or one.journal.get(entry.stored, entry.uuid) is not None:
                return one
        raise precondition(f"cluster {name} of {entry.name} is not in the configuration any more")

    def of(self, entry: JournalEntry) -> Ceph:
        """The connection to that cluster."""
        return self.storage(entry).ceph

    def any(self) -> Ceph:
        """One of them."""
        return next(iter(self._clusters.values())).ceph

    def node(self) -> RbdNode | CephFsNode:
        """The node half, for volumes of all clusters."""
        return self._node(self)

    def findings(
        self, configuration: StorageConfiguration, cluster: str
    ) -> dict[str, list[dict[str, str]]]:
        """What ``check`` reports of a cluster besides journal and images.

        Pools are declared by their names for all clusters: one must have them.
        """
        declared = {one.name: one for one in configuration.pools}
        for pools in configuration.pool_sets.values():
            declared |= {one.name: one for one in pools}
        others: set[str] = set()
        for name, one in self._clusters.items():
            if name != cluster:
                try:
                    others |= {*one.backend.pools()}
                except CsiError:
                    others |= {*declared}
        storage = self._clusters[cluster]
        own = storage.backend.pools()
        return storage.findings(
            one for name, one in declared.items() if name in own or name not in others
        )

    def domains(self, labels: DomainLabels) -> tuple[frozenset[str], frozenset[str]]:
        """All domains of those that answer, and those that have failed in all that have them."""
        with self.in_call():
            told = answered(
                {name: partial(one.domains, labels) for name, one in self._clusters.items()}
            ).values()
        known = frozenset(name for all, _ in told for name in all)
        alive = {name for all, failed in told for name in all - failed}
        return known, known - alive

    def close(self) -> None:
        """Close everything."""
        with self._lock:
            self._retired += [(self._turn, one) for one in self._clusters.values()]
            self._clusters = {}
            self._calls.clear()
        self._close_unused()
        for thread in self._closing:
            thread.join()

    def _close_unused(self) -> None:
        """Close what no call that is under way can have; in a thread, because Ceph takes time."""
        with self._lock:
            oldest = min(self._calls, default=self._turn + 1)
            ready = [one for turn, one in self._retired if turn < oldest]
            self._retired = [(turn, one) for turn, one in self._retired if turn >= oldest]
            for one in ready:
                thread = threading.Thread(target=one.close, name="closing", daemon=True)
                self._closing = [it for it in self._closing if it.is_alive()] + [thread]
                thread.start()


def open_ceph(
    folder: Path, configuration: StorageConfiguration, *, lease: int = LEASE
) -> CephClusters[RbdImages]:
    """RBD on the clusters of a configuration; raises ConfigError if the folder cannot be used."""

    def opened(cluster: CephCluster) -> CephStorage[RbdImages]:
        ceph = Ceph(cluster)
        journal = JournalPools(ceph, lease=lease)
        return CephStorage(ceph, journal, RbdImages(ceph, journal))

    _make(folder / "rbd")
    return CephClusters(folder, configuration, opened, lambda all: RevivingRbdNode(all, folder))


def open_ceph_files(
    folder: Path, configuration: StorageConfiguration, *, lease: int = LEASE
) -> CephClusters[Subvolumes]:
    """CephFS on the same."""

    def opened(cluster: CephCluster) -> CephStorage[Subvolumes]:
        ceph = Ceph(cluster)
        journal = JournalPools(ceph, namespace=FILES_NAMESPACE, lease=lease)
        return CephStorage(ceph, journal, Subvolumes(ceph, journal, folder / "fs"))

    def node(all: CephClusters[Subvolumes]) -> CephFsNode:
        return CephFsNode(
            lambda entry: all.of(entry).cluster,
            folder,
            lambda entry: all.storage(entry).backend.path(entry),
        )

    _make(folder / "fs")
    return CephClusters(folder, configuration, opened, node)


def _same(storage: CephStorage[B], cluster: CephCluster) -> bool:
    """Whether a connection fits what the file says now; readAffinity does not matter."""
    return replace(storage.ceph.cluster, read_affinity=cluster.read_affinity) == cluster


def _make(folder: Path) -> None:
    try:
        make_folder(folder)
    except OSError as error:
        raise ConfigError(f"--data {folder.parent} cannot be used: {error.strerror}") from None
