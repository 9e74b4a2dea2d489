"""A Ceph cluster as a driver uses it, opened from the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from zonewise.api.errors import ConfigError
from zonewise.csi.backends.ceph.connection import Ceph
from zonewise.csi.backends.ceph.crush import contradictions, failed_domains
from zonewise.csi.backends.ceph.fs_node import CephFsNode
from zonewise.csi.backends.ceph.images import RbdImages
from zonewise.csi.backends.ceph.journals.pools import JournalPools, reserved_as
from zonewise.csi.backends.ceph.node import RbdNode
from zonewise.csi.backends.ceph.revival import RevivingRbdNode
from zonewise.csi.backends.ceph.subvolumes import Subvolumes
from zonewise.csi.locks import Locks
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.domains import DomainLabels
from zonewise.storage.identifiers import Stored

LOCKS = "calls.lock"
FILES_NAMESPACE = "zonewise-fs"

B = TypeVar("B", RbdImages, Subvolumes)


@dataclass(frozen=True, slots=True)
class CephStorage(Generic[B]):
    """Journal, images or subvolumes, and locks of a driver on Ceph."""

    ceph: Ceph
    journal: JournalPools
    backend: B
    locks: Locks
    folder: Path

    def start(self, configuration: StorageConfiguration) -> None:
        """Nothing is asked of Ceph: a cluster that is away must not keep a driver from starting."""
        self.backend.prepare(configuration)

    def node(self) -> RbdNode | CephFsNode:
        """The node half."""
        if isinstance(self.backend, RbdImages):
            return RevivingRbdNode(self.ceph, self.folder)
        return CephFsNode(self.ceph, self.folder, self.backend.path)

    def findings(self, configuration: StorageConfiguration) -> dict[str, list[dict[str, str]]]:
        """What ``check`` tells besides: the trash, and pools that are not where they should be."""
        declared = {one.name: one for one in configuration.pools}
        for pools in configuration.pool_sets.values():
            declared |= {one.name: one for one in pools}
        found = {
            "affinity": contradictions(declared.values(), self.backend.pools()),
            "pools": self._moved_pools(),
        }
        if isinstance(self.backend, RbdImages):
            found["trash"] = self.backend.trash()
        return found

    def _moved_pools(self) -> list[dict[str, str]]:
        """Pools of entries that are called otherwise now, or are gone."""
        known, found = self.backend.pools(), set()
        for stored in Stored:
            for entry in self.journal.page(stored).entries:
                before = reserved_as(entry)
                if before != entry.pool:
                    found.add((before, f"called {entry.pool} now"))
                elif entry.pool not in known:
                    found.add((before, "gone"))
        return [{"pool": pool, "is": now} for pool, now in sorted(found)]

    def domains(self, labels: DomainLabels) -> tuple[frozenset[str], frozenset[str]]:
        """All domains that CRUSH has, and those in which no OSD is up."""
        return failed_domains(
            self.ceph.ask("osd dump"), self.ceph.ask("osd crush dump"), labels.names
        )

    def close(self) -> None:
        """Let go of everything."""
        self.backend.close()
        self.journal.close()
        self.ceph.close()


def open_ceph(
    folder: Path, configuration: StorageConfiguration, **more: Any
) -> CephStorage[RbdImages]:
    """RBD on the one cluster that a configuration names; raises ConfigError with one sentence."""
    ceph, locks = _opened(folder, "rbd", configuration)
    journal = JournalPools(ceph, **more)
    return CephStorage(ceph, journal, RbdImages(ceph, journal), locks, folder)


def open_ceph_files(
    folder: Path, configuration: StorageConfiguration, **more: Any
) -> CephStorage[Subvolumes]:
    """CephFS on the same."""
    ceph, locks = _opened(folder, "fs", configuration)
    journal = JournalPools(ceph, namespace=FILES_NAMESPACE, **more)
    return CephStorage(ceph, journal, Subvolumes(ceph, journal, folder / "fs"), locks, folder)


def _opened(folder: Path, kind: str, configuration: StorageConfiguration) -> tuple[Ceph, Locks]:
    (cluster,) = configuration.clusters
    for key, value in (
        ("monitors", cluster.monitors),
        ("user", cluster.user),
        ("keyFile", cluster.key_file),
    ):
        if not value:
            raise ConfigError(f"cluster {cluster.cluster_id} of the configuration has no {key}")
    if not Path(cluster.key_file).is_file():
        raise ConfigError(f"keyFile {cluster.key_file} of {cluster.cluster_id} is not there")
    try:
        (folder / kind).mkdir(mode=0o711, parents=True, exist_ok=True)
        return Ceph(cluster), Locks(folder / LOCKS)
    except OSError as error:
        raise ConfigError(f"--data {folder} cannot be used: {error.strerror}") from None
