"""What some Services need to know of all nodes, followed from the first such Service on.

Topology keys need the labels of nodes, which are watched as metadata only. External IPs need their
addresses, which only whole Nodes have. A Service that needs one of them waits until that list is
complete: a node that is not known yet looks like one without a matching label, or like an address
that no node has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

from zonewise.proxy.objects import NodeMetadata, NodeWithAddresses
from zonewise.runtime.cache.cache import Cache
from zonewise.traffic.routes.addresses import parse_address


class OtherNodes:
    """Labels and addresses of all nodes, as far as they are needed.

    ``relabelled`` is called when labels changed, ``readdressed`` with addresses that a node
    gained or lost; both also when their list has become complete, the latter with None.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        relabelled: Callable[[], None],
        readdressed: Callable[[Collection[str] | None], None],
    ) -> None:
        self.labels: dict[str, Mapping[str, str]] = {}
        self.addresses: dict[str, str] = {}
        """The addresses of all nodes, canonical, and the node that has each."""
        self._cache = cache
        self._relabelled = relabelled
        self._readdressed = readdressed
        self._labels_listed: asyncio.Event | None = None
        self._addresses_listed: asyncio.Event | None = None
        self._names: dict[str, set[str]] = {}
        """For each address, the nodes that have it."""
        self._tasks: list[asyncio.Task[None]] = []
        self._listening: list[Callable[[], None]] = []

    def need_labels(self) -> None:
        """Follow labels from now on."""
        if self._labels_listed is None:
            reflector = self._cache.reflector(NodeMetadata)
            self._labels_listed = reflector.synced
            self._listening.append(reflector.store.on_change(self._labels_changed))
            self._call_when_listed(reflector.synced, self._relabelled)

    def need_addresses(self) -> None:
        """Follow addresses from now on."""
        if self._addresses_listed is None:
            reflector = self._cache.reflector(NodeWithAddresses)
            self._addresses_listed = reflector.synced
            self._listening.append(reflector.store.on_change(self._addresses_changed))
            self._call_when_listed(reflector.synced, lambda: self._readdressed(None))

    @property
    def labels_missing(self) -> bool:
        """Whether labels are needed and not all known."""
        return self._labels_listed is not None and not self._labels_listed.is_set()

    @property
    def addresses_missing(self) -> bool:
        """Whether addresses are needed and not all known."""
        return self._addresses_listed is not None and not self._addresses_listed.is_set()

    async def listed(self) -> None:
        """Wait until everything that is needed so far is known."""
        for listed in (self._labels_listed, self._addresses_listed):
            if listed is not None:
                await listed.wait()

    async def close(self) -> None:
        """Follow nothing any more."""
        for end in self._listening:
            end()
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def _call_when_listed(self, listed: asyncio.Event, call: Callable[[], None]) -> None:
        async def wait() -> None:
            await listed.wait()
            call()

        self._tasks.append(asyncio.create_task(wait()))

    def _labels_changed(self, old: NodeMetadata | None, new: NodeMetadata | None) -> None:
        node = new or old
        assert node is not None
        name = node.metadata.name
        labels = new.metadata.labels if new is not None else None
        if self.labels.get(name) == labels:
            return
        if labels is None:
            del self.labels[name]
        else:
            self.labels[name] = labels
        self._relabelled()

    def _addresses_changed(
        self, old: NodeWithAddresses | None, new: NodeWithAddresses | None
    ) -> None:
        node = new or old
        assert node is not None
        name = node.metadata.name
        before, after = _addresses(old), _addresses(new)
        for address in before - after:
            names = self._names[address]
            names.discard(name)
            if not names:
                del self._names[address]
        for address in after - before:
            self._names.setdefault(address, set()).add(name)
        changed = before ^ after
        self._assign_addresses(changed)
        if changed:
            self._readdressed(changed)

    def _assign_addresses(self, addresses: Iterable[str]) -> None:
        for address in addresses:
            names = self._names.get(address)
            if names:
                self.addresses[address] = min(names)
            else:
                del self.addresses[address]


def _addresses(node: NodeWithAddresses | None) -> set[str]:
    if node is None:
        return set()
    parsed = (parse_address(entry.address) for entry in node.status.addresses)
    return {address.text for address in parsed if address is not None}
