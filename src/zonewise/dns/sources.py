"""From the API server's objects to the directory and the locators.

Services, EndpointSlices and namespaces are always followed. Where pods are is read from PodLocators
if the cluster serves them and we may read them; then neither pods nor nodes are needed. Else it is
read from pods and nodes. Nodes are followed in addition wherever we may: their addresses give the
node of a client whose pod is not known by its address, and their labels are for nodes without a
locator and for labels that limited locators leave out.

What we may read is found out by trying, before the first list, and again until one of the two can
be read: an account that may read nothing but PodLocators waits for their definition. After that the
stores decide: they never go back, and when the API server is unreachable they stay as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from zonewise.api.errors import ZonewiseError
from zonewise.api.objects.core import Namespace, Node, Service
from zonewise.api.objects.discovery import LeanEndpointSlice
from zonewise.api.objects.locator import LocatedPod, PodLocator
from zonewise.dns.directory import ChangeToken, Directory, address_token, node_token
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.readable import is_readable
from zonewise.runtime.client.watch import WatchOptions
from zonewise.runtime.process.logs import logger
from zonewise.topology.locator_index import LocationChange, Locator, LocatorIndex

RETRY = 2.0
WATCHES = WatchOptions(turn=0.002)
"""The longest that packets wait while objects are processed, however many change at once."""

_log = logger("dns")


@dataclass(frozen=True, slots=True)
class Sources:
    """The objects that locations are read from."""

    locators: bool
    nodes: bool

    @classmethod
    async def find(cls, client: Client) -> Sources:
        """Try what the server has and lets us read; waits until it answers."""
        while True:
            try:
                locators = await is_readable(client, PodLocator)
                if locators or await is_readable(client, LocatedPod):
                    return cls(locators=locators, nodes=await is_readable(client, Node))
                _log.warning("PodLocators are not served, and pods may not be read", again_in=RETRY)
            except (ZonewiseError, OSError) as error:
                _log.warning("cannot ask the API server yet", error=str(error), again_in=RETRY)
            await asyncio.sleep(RETRY)


class Feed:
    """Fills a directory and locators from the stores of a cache.

    ``slices`` is the class under which EndpointSlices are held, so that a store can be shared.
    """

    def __init__(
        self,
        cache: Cache,
        sources: Sources,
        *,
        directory: Directory,
        locators: LocatorIndex,
        changed: Callable[[Iterable[ChangeToken]], None],
        slices: type[LeanEndpointSlice] = LeanEndpointSlice,
    ) -> None:
        self._changed = changed
        self._locators = locators
        cache.store(Namespace).on_change(
            lambda old, new: directory.put_namespace(_name(new or old), present=new is not None)
        )
        cache.store(Service).on_change(directory.put_service)
        cache.store(slices).on_change(directory.put_slice)
        if sources.nodes or not sources.locators:
            cache.store(Node).on_change(self._node)
        if sources.locators:
            cache.store(PodLocator).on_change(self._locator)
        else:
            cache.store(LocatedPod).on_change(self._pod)

    def _locator(self, old: PodLocator | None, new: PodLocator | None) -> None:
        if new is not None:
            self._moved(self._locators.put(Locator.from_object(new)))
        elif old is not None:
            self._moved(self._locators.remove(old.key))

    def _pod(self, old: LocatedPod | None, new: LocatedPod | None) -> None:
        if new is None:
            if old is not None:
                self._moved(self._locators.remove(old.key))
        elif old is None or _located(old) != _located(new):
            self._moved(self._locators.put(Locator.from_pod(new)))

    def _node(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            self._moved(self._locators.put_node(new))
        elif old is not None:
            self._moved(self._locators.remove_node(old.metadata.name))

    def _moved(self, moved: LocationChange) -> None:
        if moved.addresses or moved.nodes:
            self._changed([*map(address_token, moved.addresses), *map(node_token, moved.nodes)])


def _located(pod: LocatedPod) -> tuple[object, ...]:
    return pod.spec, pod.status, pod.metadata.deletion_timestamp


def _name(item: Namespace | None) -> str:
    return "" if item is None else item.metadata.name
