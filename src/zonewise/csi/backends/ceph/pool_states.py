"""What Ceph says about its pools, at most two seconds old: the same for images and subvolumes."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace

from zonewise.csi.backends.ceph.connection import CephConnection
from zonewise.csi.backends.ceph.crush import CephPool, parse_pools
from zonewise.csi.backends.ceph.journals.cluster_journal import ClusterJournal
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.pools import PoolState

CACHE_SECONDS = 2.0


class PoolStates:
    """The pools of a cluster; concurrent callers share one request.

    Labels are those that pools have for ``application``.
    """

    def __init__(self, ceph: CephConnection, journals: ClusterJournal, application: str) -> None:
        self._ceph = ceph
        self._application = application
        self._journals = journals
        self._lock = threading.Lock()
        self._read_at = 0.0
        self._pools: dict[str, CephPool] = {}
        self._states: dict[str, PoolState] = {}

    def pools(self) -> Mapping[str, CephPool]:
        """By name."""
        with self._lock:
            if not self._read_at or time.monotonic() - self._read_at > CACHE_SECONDS:
                command = self._ceph.mon_command
                self._pools = parse_pools(
                    command("df", detail="detail"), command("osd dump"), command("osd crush dump")
                )
                self._states = {
                    name: pool.labelled_state(self._application)
                    for name, pool in self._pools.items()
                }
                self._read_at = time.monotonic()
            return self._pools

    def invalidate(self) -> None:
        """Ask Ceph again next time."""
        with self._lock:
            self._read_at = 0.0

    def pool_states(self, configuration: StorageConfiguration) -> Mapping[str, PoolState]:
        """Space and health from Ceph; a declared capacity is a limit besides."""
        self.pools()
        states = self._states
        if configuration.pool_states:
            states = dict(states)
            promised = self._journals.promised_bytes()
            for name, declared in configuration.pool_states.items():
                if name in states:
                    states[name] = replace(
                        declared,
                        capacity=declared.capacity if states[name].capacity else 0,
                        promised=promised.get(name, 0),
                        health=declared.health * states[name].health,
                        alive=states[name].alive,
                        labels=states[name].labels,
                        file_system=states[name].file_system,
                    )
        return states
