"""A kernel in memory: it stores what is written, and refuses what a test tells it to."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable, Mapping
from typing import Any

from zonewise.api.objects.core import Service
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.proxy.netlink.notices import Touched
from zonewise.proxy.netlink.socket import NetlinkError
from zonewise.proxy.tables.choices import OwnChain
from zonewise.proxy.tables.desired import Changes
from zonewise.proxy.tables.kernel import Kernel, KernelRefused, Networks
from zonewise.proxy.tables.layout import decode
from zonewise.proxy.tables.ruleset import FamilyName

SERVICE = unstructured(Service.resource)
NODE = unstructured(Resource("", "v1", "Node", "nodes", namespaced=False))


class _Notices:
    def __init__(self) -> None:
        self.socket, self.other = socket.socketpair()
        self.what = Touched.NOTHING

    def touched(self) -> Touched:
        self.socket.recv(100)
        return self.what

    def close(self) -> None:
        self.socket.close()
        self.other.close()


class Remembering(Kernel):
    """A kernel that stores elements, and refuses ``refusals`` writes and what is ``forbidden``."""

    def __init__(self) -> None:
        self.elements: dict[bytes, bytes] = {}
        self.writes: list[Changes] = []
        self.reads: list[bool] = []
        self.refusals = 0
        self.forbidden = ""
        """A text that is in no target of an element and in no network, or the write is refused."""
        self.refused = 0
        self.heard = _Notices()
        self.networks: Networks = {}

    def read(self, *, rules_touched: bool = False) -> dict[bytes, bytes]:
        self.reads.append(rules_touched)
        return dict(self.elements)

    async def prepare(self) -> None:
        return

    async def write(self, changes: Changes, networks: Networks) -> None:
        if self.refusals:
            self.refusals -= 1
            raise NetlinkError(errno.ENOBUFS)
        if any(self.forbidden and self.forbidden in decode(*element)[3] for element in changes.put):
            self.refused += 1
            raise NetlinkError(errno.EINVAL)
        for key in changes.remove:
            del self.elements[key]
        self.elements.update(changes.put)
        self.writes.append(changes)

    async def write_networks(self, networks: Networks) -> None:
        if self.forbidden and self.forbidden in str(networks):
            self.refused += 1
            raise KernelRefused("nft failed")
        self.networks = networks

    def sweep(
        self, elements: Mapping[bytes, bytes], own: Iterable[tuple[FamilyName, OwnChain]]
    ) -> None:
        return

    def remove(
        self,
        unused: Iterable[tuple[FamilyName, OwnChain]],
        used: Iterable[tuple[FamilyName, OwnChain]],
    ) -> None:
        return

    def notices(self) -> Any:
        return self.heard

    def chosen(self, address: str) -> set[str]:
        """The endpoints of a ClusterIP."""
        addresses = set()
        for key, data in self.elements.items():
            _, kind, found_by, leads_to = decode(key, data)
            if kind.name == "endpoints" and f" {address} " in found_by:
                addresses.add(leads_to.partition(" ")[0])
        return addresses
