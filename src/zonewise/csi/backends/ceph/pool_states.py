"""What Ceph says about its pools, at most two seconds old: the same for images and subvolumes."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace

from zonewise.csi.backends.ceph.connection import Ceph
from zonewise.csi.backends.ceph.crush import CephPool, read_pools
from zonewise.csi.backends.ceph.journals.pools import JournalPools
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.pools import PoolState

FRESH_SECONDS = 2.0


class PoolStates:
    """The pools of a cluster; who asks while another does waits for the same answer."""

    def __init__(self, ceph: Ceph, journals: JournalPools) -> None:
        self._ceph = ceph
        self._journals = journals
        self._lock = threading.Lock()
        self._known: tuple[float, dict[str, CephPool]] = (0.0, {})

    def pools(self) -> Mapping[str, CephPool]:
        """By name."""
        with self._lock:
            when, known = self._known
            if time.monotonic() - when > FRESH_SECONDS:
                ask = self._ceph.ask
                known = read_pools(
                    ask("df", detail="detail"), ask("osd dump"), ask("osd crush dump")
                )
                self._known = (time.monotonic(), known)
            return known

    def forget(self) -> None:
        """Ask anew next time."""
        with self._lock:
            self._known = (0.0, {})

    def states(self, configuration: StorageConfiguration) -> Mapping[str, PoolState]:
        """Space and health from Ceph; a declared capacity is a limit besides."""
        found = {name: pool.state for name, pool in self.pools().items()}
        if configuration.states:
            promised = self._journals.promised()
            for name, declared in configuration.states.items():
                if name in found:
                    found[name] = replace(
                        declared,
                        promised=promised.get(name, 0),
                        health=declared.health * found[name].health,
                        alive=found[name].alive and found[name].capacity > 0,
                    )
        return found
