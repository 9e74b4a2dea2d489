"""One Ceph cluster as a driver uses it: its connection, its journal, its images or subvolumes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from zonewise.csi.backends.ceph.cephfs.subvolumes import Subvolumes
from zonewise.csi.backends.ceph.connection import CephConnection
from zonewise.csi.backends.ceph.crush import find_contradictions, find_failed_domains
from zonewise.csi.backends.ceph.journals.cluster_journal import ClusterJournal, reserved_pool_name
from zonewise.csi.backends.ceph.rbd.images import RbdImages
from zonewise.storage.domains import DomainLabels
from zonewise.storage.identifiers import StoredKind
from zonewise.storage.pools import PoolSpec

B = TypeVar("B", bound=RbdImages | Subvolumes)


@dataclass(frozen=True, slots=True)
class CephStorage(Generic[B]):
    """Journal, and images or subvolumes, of one cluster."""

    ceph: CephConnection
    journal: ClusterJournal
    backend: B

    def check_pools(self, declared: Iterable[PoolSpec]) -> dict[str, list[dict[str, str]]]:
        """What ``check`` also reports: the trash, and pools that are not where they should be."""
        findings = {
            "affinity": find_contradictions(declared, self.backend.pools()),
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
