"""What is followed of other nodes: labels for topology keys, addresses for external IPs.

*Labels* are needed where slices do not state them. Slices that our EndpointSlice controller writes
or adopts state everything that keys need, and then nothing is followed here. Otherwise labels come
from PodLocators, if the server has them and we may read them, and only then from all Nodes, as
metadata: for nodes without a locator, and for labels that limited locators leave out. Both are
expensive: every proxy of the cluster receives every change. So

* a source is followed only while a Service needs it, and no longer ``LINGER`` seconds after that;
* it is asked for only after a Service has needed it for ``SETTLE`` seconds. A Service gets keys a
  moment before its slices get their values, and a pod its locator a moment after its address; no
  proxy should list the nodes for that moment. At the start nothing is waited for, and all Services
  wait for what is needed, but no longer than ``START``: a server that serves everything but
  PodLocators must not leave a node without rules.

A Service of which some labels are not known *waits*, with the rules that it has, until they are
known or all Nodes are: a node that is not known yet looks like one without a matching label.

*Addresses* are in whole Nodes only, which are followed from the first Service with external IPs on.
Such a Service waits until the list is complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import TypeVar

from zonewise.api.errors import ZonewiseError
from zonewise.api.meta import Key
from zonewise.api.objects.locator import PodLocator
from zonewise.proxy.objects import NodeMetadata, NodeWithAddresses
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.cache.reflector import Reflector
from zonewise.runtime.client.pace import Pace
from zonewise.runtime.process.logs import logger
from zonewise.topology.locator_index import LocatedLabels, Locator, LocatorIndex
from zonewise.traffic.routes.addresses import parse_address
from zonewise.traffic.routes.service import are_located
from zonewise.traffic.slices.topology import KeysByNode

START = 10.0
SETTLE = 2.0
LINGER = 300.0

LabelsT = TypeVar("LabelsT")

_log = logger("proxy")


class UnstatedLabels:
    """Labels by node, of PodLocators and of Nodes; ``relabelled`` is called with Services."""

    def __init__(self, cache: Cache, *, relabelled: Callable[[Iterable[Key]], None]) -> None:
        self.located: dict[str, LocatedLabels] = {}
        """By PodLocators."""
        self.of_nodes: dict[str, Mapping[str, str]] = {}
        self._cache = cache
        self._relabelled = relabelled
        self._needed: dict[Key, KeysByNode] = {}
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._locators_tried = False
        self._index = LocatorIndex()
        self._locators: Reflector[PodLocator] | None = None
        self._nodes: Reflector[NodeMetadata] | None = None
        self._listening: list[Callable[[], None]] = []

    def need(self, service: Key, labels: KeysByNode) -> None:
        """These are the labels that a Service's slices leave out, by their nodes."""
        if labels == self._needed.get(service, {}):
            return
        if labels:
            self._needed[service] = labels
        else:
            del self._needed[service]
        self._wake.set()

    def waiting(self) -> set[Key]:
        """The Services that cannot be decided yet."""
        if self._nodes is not None and self._nodes.synced.is_set():
            return set()
        if not self._locators_tried:
            return set(self._needed)
        return {
            key for key, labels in self._needed.items() if not are_located(labels, self.located)
        }

    async def settle(self) -> None:
        """Wait until everything that was needed at the start is known, for some seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(START):
                await self._settled.wait()
                return
        _log.warning(
            "labels of other nodes are not known yet; Services that need them wait",
            services=len(self.waiting()),
        )

    async def run(self) -> None:
        """Follow what is needed until cancelled."""
        try:
            await self._step(0.0)
            self._settled.set()
            while True:
                with suppress(TimeoutError):
                    following = self._locators_tried and not self._needed
                    async with asyncio.timeout(LINGER if following else None):
                        await self._wake.wait()
                if not self._wake.is_set() and not self._needed:
                    self._unfollow()
                self._wake.clear()
                await self._step(SETTLE)
        finally:
            self._unfollow()

    async def _step(self, settle: float) -> None:
        """Follow the next source if it is still needed after some seconds; wait for its list."""
        if self._needed and not self._locators_tried:
            await asyncio.sleep(settle)
            if self._needed:
                await self._follow_locators()
        if self._locators_tried and self._nodes is None and self.waiting():
            await asyncio.sleep(settle)
            if self.waiting():
                await self._follow_nodes()

    async def _follow_locators(self) -> None:
        pace = Pace(base=0.5)
        while True:
            try:
                readable = await self._cache.is_readable(PodLocator)
            except (ZonewiseError, OSError) as error:
                _log.warning("cannot ask for PodLocators; trying again", error=str(error))
                await pace.rest()
            else:
                break
        if readable:
            _log.info("labels of nodes are read from PodLocators", services=len(self._needed))
            self._locators = self._cache.reflector(PodLocator)
            self._listening.append(self._locators.store.on_change(self._locator_changed))
            await self._locators.synced.wait()
        self._locators_tried = True
        self._relabelled(tuple(self._needed))

    async def _follow_nodes(self) -> None:
        _log.info("labels of nodes are read from Nodes", services=len(self.waiting()))
        self._nodes = self._cache.reflector(NodeMetadata)
        self._listening.append(self._nodes.store.on_change(self._node_changed))
        await self._nodes.synced.wait()
        self._relabelled(tuple(self._needed))

    def _unfollow(self) -> None:
        for end in self._listening:
            end()
        self._listening.clear()
        if self._locators is not None:
            self._cache.release(self._locators)
        if self._nodes is not None:
            self._cache.release(self._nodes)
        self._locators = self._nodes = None
        self._index = LocatorIndex()
        self.located.clear()
        self.of_nodes.clear()
        self._locators_tried = False

    def _locator_changed(self, old: PodLocator | None, new: PodLocator | None) -> None:
        if new is not None:
            self._index.put(Locator.from_object(new))
        elif old is not None:
            self._index.remove(old.key)
        names = {locator.node_name for locator in (old, new) if locator is not None} - {""}
        for name in names:
            labels = self._index.located_labels_of(name)
            if self.located.get(name) != labels:
                _put(self.located, name, labels)
                self._concern(name)

    def _node_changed(self, old: NodeMetadata | None, new: NodeMetadata | None) -> None:
        node = new or old
        assert node is not None
        name = node.metadata.name
        labels = new.metadata.labels if new is not None else None
        if self.of_nodes.get(name) != labels:
            _put(self.of_nodes, name, labels)
            self._concern(name)

    def _concern(self, node: str) -> None:
        """Have the Services that need the labels of a node decided again."""
        concerned = [key for key, nodes in self._needed.items() if node in nodes]
        if concerned:
            self._relabelled(concerned)
            self._wake.set()


class FollowedAddresses:
    """Addresses of all nodes, once they are needed.

    ``readdressed`` is called with addresses that a node gained or lost, and with None when their
    list has become complete.
    """

    def __init__(
        self, cache: Cache, *, readdressed: Callable[[Collection[str] | None], None]
    ) -> None:
        self.addresses: dict[str, str] = {}
        """The addresses of all nodes, canonical, and the node that has each."""
        self._cache = cache
        self._readdressed = readdressed
        self._listed: asyncio.Event | None = None
        self._names: dict[str, set[str]] = {}
        """For each address, the nodes that have it."""
        self._task: asyncio.Task[None] | None = None
        self._end_listening: Callable[[], None] | None = None

    def need(self) -> None:
        """Follow addresses from now on."""
        if self._listed is None:
            reflector = self._cache.reflector(NodeWithAddresses)
            self._listed = reflector.synced
            self._end_listening = reflector.store.on_change(self._node_changed)
            self._task = asyncio.create_task(self._tell_when(reflector.synced))

    @property
    def missing(self) -> bool:
        """Whether addresses are needed and not all known."""
        return self._listed is not None and not self._listed.is_set()

    async def listed(self) -> None:
        """Wait until all addresses are known, if they are needed so far."""
        if self._listed is not None:
            await self._listed.wait()

    async def close(self) -> None:
        """Follow nothing any more."""
        if self._end_listening is not None:
            self._end_listening()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _tell_when(self, listed: asyncio.Event) -> None:
        await listed.wait()
        self._readdressed(None)

    def _node_changed(self, old: NodeWithAddresses | None, new: NodeWithAddresses | None) -> None:
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


def _put(labels_by_node: dict[str, LabelsT], name: str, labels: LabelsT | None) -> None:
    if labels is None:
        labels_by_node.pop(name, None)
    else:
        labels_by_node[name] = labels
