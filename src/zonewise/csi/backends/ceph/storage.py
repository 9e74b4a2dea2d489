"""One Ceph cluster as a driver uses it: its connection, its journal, its images or subvolumes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from zonewise.csi.backends.ceph.connection import Ceph
from zonewise.csi.backends.ceph.crush import contradictions, failed_domains
from zonewise.csi.backends.ceph.images import RbdImages
from zonewise.csi.backends.ceph.journals.pools import JournalPools, reserved_as
from zonewise.csi.backends.ceph.subvolumes import Subvolumes
from zonewise.storage.domains import DomainLabels
from zonewise.storage.identifiers import Stored
from zonewise.storage.pools import PoolSpec

B = TypeVar("B", bound=RbdImages | Subvolumes)


@dataclass(frozen=True, slots=True)
class CephStorage(Generic[B]):
    """Journal, and images or subvolumes, of one cluster."""

    ceph: Ceph
    journal: JournalPools
    backend: B

    def findings(self, declared: Iterable[PoolSpec]) -> dict[str, list[dict[str, str]]]:
        """What ``check`` also reports: the trash, and pools that are not where they should be."""
        found = {
            "affinity": contradictions(declared, self.backend.pools()),
            "pools": self._moved_pools(),
        }
        if isinstance(self.backend, RbdImages):
            found["trash"] = self.backend.trash()
        return found

    def _moved_pools(self) -> list[dict[str, str]]:
        """Pools of entries that were renamed or deleted."""
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
        """Close everything."""
        self.backend.close()
        self.journal.close()
        self.ceph.close()
