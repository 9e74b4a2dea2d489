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
    """The pools of a cluster; concurrent callers share one request."""

    def __init__(self, ceph: Ceph, journals: JournalPools) -> None:
        self._ceph = ceph
        self._journals = journals
        self._lock = threading.Lock()
        self._asked = 0.0
        self._pools: dict[str, CephPool] = {}
        self._states: dict[str, PoolState] = {}

    def pools(self) -> Mapping[str, CephPool]:
        """By name."""
        with self._lock:
            if not self._asked or time.monotonic() - self._asked > FRESH_SECONDS:
                ask = self._ceph.ask
                self._pools = read_pools(
                    ask("df", detail="detail"), ask("osd dump"), ask("osd crush dump")
                )
                self._states = {name: pool.state for name, pool in self._pools.items()}
                self._asked = time.monotonic()
            return self._pools

    def forget(self) -> None:
        """Ask Ceph again next time."""
        with self._lock:
            self._asked = 0.0

    def states(self, configuration: StorageConfiguration) -> Mapping[str, PoolState]:
        """Space and health from Ceph; a declared capacity is a limit besides."""
        self.pools()
        found = self._states
        if configuration.states:
            found = dict(found)
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
