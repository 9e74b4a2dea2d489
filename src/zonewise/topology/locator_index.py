"""Where pods are: from an address to a node and its labels, in one step.

``LocatorIndex`` is changed object by object and read for every query of a client. It is filled from
locators, and from nodes where the reader has access to them. A look-up by address or by node is one
or two dictionary reads, however many pods there are; relabelling a node touches that node alone.
Equal maps of labels are stored once: fifty thousand pods on five thousand nodes have five thousand
maps.

*Which pod has an address.* A pod that has finished claims none. If several live pods claim one (an
old pod has not been reported as finished, and its address was reused) the newest wins: the later
creation, in the same second the later claim. Pods in the network of their node all claim its
address and all are on it, so any of them gives the node; where no such pod runs, the node's
``status.addresses`` give it if nodes are followed.

*Which labels a node has.* Those of the locator on it that was written last: while a controller
rewrites the locators of a relabelled node one by one, the newest is right. Where nodes are followed
they have what locators leave out: nodes without a locator, and labels other than the chosen ones of
locators that are limited to some. A pod that is not read from a locator says nothing of labels, and
is on no node if that does not exist, as locators say once their controller has seen it.

A ``NodeLocation`` is a node with its labels, numbered. Answers that depend on the client's location
are cached under that number, and a node that is relabelled gets a new one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from weakref import WeakValueDictionary

from zonewise.api.meta import Key
from zonewise.api.objects.core import Node
from zonewise.api.objects.locator import LocatedPod, PodLocator
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import FINISHED_PHASES

Labels = Mapping[str, str]

NO_LABELS: Labels = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NodeLocation:
    """Where a client is: a node and its labels; number 0 is an unknown location."""

    number: int
    node: str = ""
    labels: Labels = field(default_factory=lambda: NO_LABELS, hash=False, compare=False)


UNKNOWN_LOCATION = NodeLocation(0)


class InternedLabels(dict[str, str]):
    """Labels that several locators share; never changed."""


class LabelInterner:
    """Stores equal maps of labels once, and drops unused ones."""

    def __init__(self) -> None:
        self._interned: WeakValueDictionary[tuple[str, ...], InternedLabels] = WeakValueDictionary()
        self._keys: dict[tuple[str, ...], tuple[str, ...]] = {}

    def __len__(self) -> int:
        return len(self._interned)

    def intern_keys(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        """The one list of keys that all equal lists share; there are one or two in a cluster."""
        return self._keys.setdefault(keys, keys)

    def intern(self, labels: Labels) -> Labels:
        """The one map that all equal maps share."""
        if not labels:
            return NO_LABELS
        if type(labels) is InternedLabels:
            return labels
        key = tuple(word for pair in sorted(labels.items()) for word in pair)
        interned = self._interned.get(key)
        if interned is None:
            interned = self._interned[key] = InternedLabels(labels)
        return interned


@dataclass(frozen=True, slots=True)
class Locator:
    """Where one pod is, by its namespace and name.

    ``addresses`` are canonical text, none if it has finished. ``version`` is that of the object,
    ``claimed_version`` the one at which it was first seen with these addresses. ``resolvable``:
    whether DNS has names for the addresses; those of a pod that is being deleted have none.
    ``keys``: which labels of the node are known here, None for all.
    """

    key: Key
    uid: str = ""
    created: str = ""
    version: int = 0
    addresses: tuple[str, ...] = ()
    node: str = ""
    labels: Labels = field(default_factory=lambda: NO_LABELS, hash=False)
    claimed_version: int = 0
    resolvable: bool = True
    keys: tuple[str, ...] | None = None

    @classmethod
    def from_object(cls, locator: PodLocator) -> Locator:
        """The location that a PodLocator states."""
        meta = locator.metadata
        return cls(
            meta.key,
            meta.uid,
            meta.creation_timestamp or "",
            _parse_version(meta.resource_version),
            tuple(canonical_address(pod_ip.ip) for pod_ip in locator.ips or ()),
            locator.node_name,
            locator.node_labels or NO_LABELS,
            keys=locator.node_label_keys,
        )

    @classmethod
    def from_pod(cls, pod: LocatedPod | Pod) -> Locator:
        """The location that a pod states; its node's labels come from the node."""
        meta, status = pod.metadata, pod.status
        pod_ips = () if status.phase in FINISHED_PHASES else status.pod_ips
        return cls(
            meta.key,
            meta.uid,
            meta.creation_timestamp or "",
            _parse_version(meta.resource_version),
            tuple(canonical_address(pod_ip.ip) for pod_ip in pod_ips),
            pod.spec.node_name,
            resolvable=meta.deletion_timestamp is None and status.phase != "Unknown",
            keys=(),
        )


@dataclass(frozen=True, slots=True)
class LocatedLabels:
    """The labels of a node as its locators state them; ``keys`` are those they know, None: all."""

    labels: Labels
    keys: tuple[str, ...] | None = None

    def know(self, keys: Iterable[str]) -> bool:
        """Whether these labels, or that the node does not have them, are stated."""
        return self.keys is None or all(key in self.keys for key in keys)

    def completed(self, others: Labels | None) -> Labels:
        """The labels, with those of another source for what is not stated here."""
        if self.keys is None or not others:
            return self.labels
        if not self.keys:
            return others
        added = {key: value for key, value in others.items() if key not in self.keys}
        return {**added, **self.labels} if self.labels else added


@dataclass(frozen=True, slots=True)
class LocationChange:
    """What changed: addresses that other pods claim now, nodes that have other labels."""

    addresses: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()


class LocatorIndex:
    """All locators, and all nodes if they are followed; the module says which of several counts."""

    def __init__(
        self, *, follow_nodes: bool = False, interner: LabelInterner | None = None
    ) -> None:
        self.interner = LabelInterner() if interner is None else interner
        self._follows_nodes = follow_nodes
        self._by_key: dict[Key, Locator] = {}
        self._pods_by_address: dict[str, Key | list[Key]] = {}
        self._pods_by_node: dict[str, dict[Key, None]] = {}
        self._labels_by_node: dict[str, Labels] = {}
        self._node_by_address: dict[str, str] = {}
        self._addresses_by_node: dict[str, tuple[str, ...]] = {}
        self._locations: dict[str, NodeLocation] = {}
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: Key) -> Locator | None:
        """The locator of a pod."""
        return self._by_key.get(key)

    def pods_at(self, address: str) -> list[Key]:
        """The pods that claim an address, given as canonical text; the newest first."""
        pods = self._pods_by_address.get(address)
        if pods is None:
            return []
        return list(pods) if isinstance(pods, list) else [pods]

    def resolvable_pods_at(self, address: str) -> list[Key]:
        """The pods that DNS has a name for by this address, given as canonical text."""
        return [key for key in self.pods_at(address) if self._by_key[key].resolvable]

    def locate(self, address: str) -> NodeLocation:
        """Where the client with an address is, given as canonical text."""
        pods = self._pods_by_address.get(address)
        if pods is None:
            node = self._node_by_address.get(address, "")
        else:
            node = self._by_key[pods[0] if isinstance(pods, list) else pods].node
        if not node or (self._follows_nodes and not self._exists(node)):
            return UNKNOWN_LOCATION
        return self._locations.get(node) or self._new_location(node)

    def labels_of(self, node: str) -> Labels:
        """The labels of a node; none if it is not known."""
        return (self._locations.get(node) or self._new_location(node)).labels if node else NO_LABELS

    def located_labels_of(self, node: str) -> LocatedLabels | None:
        """The labels of a node as the locator that was written last has them; None without one."""
        pods = self._pods_by_node.get(node) if node else None
        if not pods:
            return None
        locators = (self._by_key[key] for key in pods)
        newest = max(locators, key=lambda locator: (locator.version, locator.key))
        return LocatedLabels(newest.labels, newest.keys)

    def takes_from_node(self, node: str, keys: Iterable[str]) -> bool:
        """Whether labels are those of the Node itself, because no locator knows all of them."""
        return node in self._labels_by_node and not self._is_located(node, keys)

    def knows(self, node: str, keys: Iterable[str]) -> bool:
        """Whether it is known which of these labels a node has."""
        return node in self._labels_by_node or self._is_located(node, keys)

    def put(self, locator: Locator) -> LocationChange:
        """Add a locator, or replace the one of the same pod."""
        old = self._by_key.get(locator.key)
        if old is not None and old.uid != locator.uid:
            removal, addition = self.remove(locator.key), self.put(locator)
            nodes = removal.nodes | addition.nodes
            return LocationChange(removal.addresses | addition.addresses, nodes)
        same_addresses = old is not None and old.addresses == locator.addresses
        claimed = old.claimed_version if old is not None and same_addresses else locator.version
        labels = self.interner.intern(locator.labels)
        stored = replace(locator, labels=labels, claimed_version=claimed)
        labels_before = {
            node: self.labels_of(node) for node in (stored.node, old.node if old else "") if node
        }
        if old is not None and not same_addresses:
            self._remove_claims(old)
        self._by_key[stored.key] = stored
        if not same_addresses:
            self._add_claims(stored)
        if old is None or old.node != stored.node:
            if old is not None:
                self._remove_from_node(old)
            self._pods_by_node.setdefault(stored.node, {})[stored.key] = None
        addresses = set(stored.addresses) ^ set(old.addresses if old else ())
        if old is not None and old.resolvable != stored.resolvable:
            addresses.update(stored.addresses)
        return LocationChange(frozenset(addresses), self._drop_relabelled(labels_before))

    def remove(self, key: Key) -> LocationChange:
        """Remove a locator."""
        old = self._by_key.get(key)
        if old is None:
            return LocationChange()
        labels_before = {old.node: self.labels_of(old.node)}
        self._remove_claims(old)
        self._remove_from_node(old)
        del self._by_key[key]
        return LocationChange(frozenset(old.addresses), self._drop_relabelled(labels_before))

    def put_node(self, node: Node) -> LocationChange:
        """Add a node, or replace the one of the same name."""
        name = node.metadata.name
        addresses = tuple(
            canonical_address(entry.address)
            for entry in node.status.addresses
            if entry.type in ("InternalIP", "ExternalIP")
        )
        if (
            self._labels_by_node.get(name) == node.metadata.labels
            and self._addresses_by_node[name] == addresses
        ):
            return LocationChange()
        labels_before = {name: self.labels_of(name)}
        self._labels_by_node[name] = node.metadata.labels
        self._set_node_addresses(name, addresses)
        return LocationChange(nodes=self._drop_relabelled(labels_before))

    def remove_node(self, name: str) -> LocationChange:
        """Remove a node."""
        labels_before = {name: self.labels_of(name)}
        self._labels_by_node.pop(name, None)
        self._set_node_addresses(name, ())
        return LocationChange(nodes=self._drop_relabelled(labels_before))

    def _set_node_addresses(self, name: str, addresses: tuple[str, ...]) -> None:
        for address in self._addresses_by_node.pop(name, ()):
            if self._node_by_address.get(address) == name:
                del self._node_by_address[address]
        if name in self._labels_by_node:
            self._addresses_by_node[name] = addresses
            for address in addresses:
                self._node_by_address[address] = name

    def _add_claims(self, locator: Locator) -> None:
        for address in dict.fromkeys(locator.addresses):
            others = self.pods_at(address)
            self._pods_by_address[address] = (
                sorted((*others, locator.key), key=self._rank, reverse=True)
                if others
                else locator.key
            )

    def _remove_claims(self, locator: Locator) -> None:
        for address in dict.fromkeys(locator.addresses):
            remaining = [key for key in self.pods_at(address) if key != locator.key]
            if remaining:
                self._pods_by_address[address] = remaining if len(remaining) > 1 else remaining[0]
            else:
                del self._pods_by_address[address]

    def _rank(self, key: Key) -> tuple[str, int, str]:
        locator = self._by_key[key]
        return locator.created, locator.claimed_version, locator.uid

    def _remove_from_node(self, locator: Locator) -> None:
        pods = self._pods_by_node[locator.node]
        del pods[locator.key]
        if not pods:
            del self._pods_by_node[locator.node]

    def _drop_relabelled(self, labels_before: Mapping[str, Labels]) -> frozenset[str]:
        """Drop the locations of nodes whose labels changed, and return these nodes."""
        changed = set()
        for node, labels in labels_before.items():
            if self._find_labels(node) != labels:
                changed.add(node)
                self._locations.pop(node, None)
            elif not self._is_known(node):
                self._locations.pop(node, None)
        return frozenset(changed)

    def _exists(self, node: str) -> bool:
        """Whether a node is known from itself or from a locator, not just named by a pod."""
        if node in self._labels_by_node:
            return True
        located = self.located_labels_of(node)
        return located is not None and located.keys != ()

    def _is_located(self, node: str, keys: Iterable[str]) -> bool:
        located = self.located_labels_of(node)
        return located is not None and located.know(keys)

    def _is_known(self, node: str) -> bool:
        return node in self._labels_by_node or node in self._pods_by_node

    def _find_labels(self, node: str) -> Labels:
        located = self.located_labels_of(node)
        if located is None:
            return self._labels_by_node.get(node, NO_LABELS)
        return located.completed(self._labels_by_node.get(node))

    def _new_location(self, node: str) -> NodeLocation:
        labels = self._find_labels(node)
        if not self._is_known(node):
            return NodeLocation(0, node, labels)
        self._last_number += 1
        location = self._locations[node] = NodeLocation(self._last_number, node, labels)
        return location


def labels_by_node(locators: Iterable[PodLocator]) -> dict[str, LocatedLabels]:
    """The labels of each node that has a locator, as the one that was written last has them."""
    index, names = LocatorIndex(), set()
    for locator in locators:
        index.put(Locator.from_object(locator))
        names.add(locator.node_name)
    located = ((name, index.located_labels_of(name)) for name in names)
    return {name: labels for name, labels in located if labels is not None}


def canonical_address(address: str) -> str:
    """An address as it is compared: the shortest text, an IPv4 address inside of IPv6 as IPv4.

    Text that is not an address stays as it is and matches none.
    """
    text = address.partition("%")[0]
    try:
        if ":" not in text:
            return str(ipaddress.IPv4Address(text))
        parsed = ipaddress.IPv6Address(text)
    except ValueError:
        return address
    return str(parsed.ipv4_mapped or parsed)


def _parse_version(version: str) -> int:
    return int(version) if version.isdecimal() else 0
