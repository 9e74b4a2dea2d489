"""Where pods are: from an address to a node and its labels, in one step.

``Locators`` is an index that is changed object by object and read for every question of a client.
It is fed with locators, and with nodes where the reader may see them. A look-up by address or by
node is one or two dictionary reads, however many pods there are; relabelling a node touches that
node alone. Equal maps of labels are held once: fifty thousand pods on five thousand nodes have five
thousand maps.

*Which pod has an address.* A pod that has finished claims none. If several live pods claim one (an
old pod has not been reported as finished, and its address was reused) the newest wins: the later
creation, in the same second the later claim. Pods in the network of their node all claim its
address and all are on it, so any of them gives the node; with nodes readable ``status.addresses``
give it where no such pod runs.

*Which labels a node has.* Those of the Node, where nodes are followed; a node that does not exist
has none, and no pod is on it, as locators say once their controller has seen that. Else those of
the locator on it that was written last: while a controller rewrites the locators of a relabelled
node one by one, the newest is right.

A ``PodLocation`` is a node with its labels, numbered: answers that depend on the client's place are
kept under that number, and a node that is relabelled gets a new one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from weakref import WeakValueDictionary

from zonewise.api.meta import Key
from zonewise.api.objects.core import Node
from zonewise.api.objects.locator import LocatedPod, PodLocator
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import FINISHED

Labels = Mapping[str, str]

NO_LABELS: Labels = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PodLocation:
    """A place a client can be in; number 0 is an unknown one."""

    number: int
    node: str = ""
    labels: Labels = field(default_factory=lambda: NO_LABELS, hash=False, compare=False)


NOWHERE = PodLocation(0)


class SharedLabels(dict[str, str]):
    """Labels that several locators have; never changed."""


class LabelMaps:
    """Holds equal maps of labels once, and drops unused ones."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[tuple[str, ...], SharedLabels] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._known)

    def share(self, labels: Labels) -> Labels:
        """The shared map of all equal ones."""
        if not labels:
            return NO_LABELS
        if type(labels) is SharedLabels:
            return labels
        key = tuple(word for pair in sorted(labels.items()) for word in pair)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = SharedLabels(labels)
        return found


@dataclass(frozen=True, slots=True)
class Locator:
    """Where one pod is, by its namespace and name.

    ``addresses`` are canonical text, none if it has finished. ``version`` is that of the object,
    ``claimed`` the one at which it was first seen with these addresses. ``named``: whether its
    addresses are names, too; those of a pod that is being deleted lead nowhere for long.
    """

    key: Key
    uid: str = ""
    created: str = ""
    version: int = 0
    addresses: tuple[str, ...] = ()
    node: str = ""
    labels: Labels = field(default_factory=lambda: NO_LABELS, hash=False)
    claimed: int = 0
    named: bool = True

    @classmethod
    def of(cls, item: PodLocator) -> Locator:
        """What a PodLocator says."""
        meta = item.metadata
        return cls(
            meta.key,
            meta.uid,
            meta.creation_timestamp or "",
            _number(meta.resource_version),
            tuple(canonical(one.ip) for one in item.ips or ()),
            item.node_name,
            item.node_labels or NO_LABELS,
        )

    @classmethod
    def of_pod(cls, pod: LocatedPod | Pod) -> Locator:
        """What a pod says; its node's labels come from the node."""
        meta, status = pod.metadata, pod.status
        gone = status.phase in FINISHED
        return cls(
            meta.key,
            meta.uid,
            meta.creation_timestamp or "",
            _number(meta.resource_version),
            () if gone else tuple(canonical(one.ip) for one in status.pod_ips),
            pod.spec.node_name,
            named=meta.deletion_timestamp is None and status.phase != "Unknown",
        )


@dataclass(frozen=True, slots=True)
class Moved:
    """What a change was about: addresses with other claims, nodes with other labels."""

    addresses: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()


class Locators:
    """All locators and nodes; see the module for what wins. ``nodes``: whether nodes are fed."""

    def __init__(self, *, nodes: bool = False, maps: LabelMaps | None = None) -> None:
        self.maps = LabelMaps() if maps is None else maps
        self._follows_nodes = nodes
        self._by_key: dict[Key, Locator] = {}
        self._claims: dict[str, Key | list[Key]] = {}
        self._on_node: dict[str, dict[Key, None]] = {}
        self._nodes: dict[str, Labels] = {}
        self._node_addresses: dict[str, str] = {}
        self._addresses_of: dict[str, tuple[str, ...]] = {}
        self._spots: dict[str, PodLocation] = {}
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: Key) -> Locator | None:
        """The locator of a pod."""
        return self._by_key.get(key)

    def owners(self, address: str) -> list[Key]:
        """The pods that claim an address, in canonical text; the newest first."""
        found = self._claims.get(address)
        if found is None:
            return []
        return list(found) if isinstance(found, list) else [found]

    def named(self, address: str) -> list[Key]:
        """The pods that can be found by the name of an address, in canonical text."""
        return [key for key in self.owners(address) if self._by_key[key].named]

    def spot(self, address: str) -> PodLocation:
        """Where the client with an address is, in canonical text."""
        found = self._claims.get(address)
        if found is None:
            node = self._node_addresses.get(address, "")
        else:
            node = self._by_key[found[0] if isinstance(found, list) else found].node
        if not node or (self._follows_nodes and node not in self._nodes):
            return NOWHERE
        return self._spots.get(node) or self._new_spot(node)

    def labels(self, node: str) -> Labels:
        """The labels of a node; none if it is not known."""
        return (self._spots.get(node) or self._new_spot(node)).labels if node else NO_LABELS

    def put(self, locator: Locator) -> Moved:
        """Take in a new or changed locator."""
        old = self._by_key.get(locator.key)
        if old is not None and old.uid != locator.uid:
            gone, come = self.remove(locator.key), self.put(locator)
            return Moved(gone.addresses | come.addresses, gone.nodes | come.nodes)
        same = old is not None and old.addresses == locator.addresses
        held = replace(
            locator,
            labels=self.maps.share(locator.labels),
            claimed=old.claimed if old is not None and same else locator.version,
        )
        nodes = {node: self.labels(node) for node in (held.node, old.node if old else "") if node}
        if old is not None and not same:
            self._disclaim(old)
        self._by_key[held.key] = held
        if not same:
            self._claim(held)
        if old is None or old.node != held.node:
            if old is not None:
                self._leave(old)
            self._on_node.setdefault(held.node, {})[held.key] = None
        addresses = set(held.addresses) ^ set(old.addresses if old else ())
        if old is not None and old.named != held.named:
            addresses.update(held.addresses)
        return Moved(frozenset(addresses), self._relabelled(nodes))

    def remove(self, key: Key) -> Moved:
        """Remove a locator."""
        old = self._by_key.get(key)
        if old is None:
            return Moved()
        before = {old.node: self.labels(old.node)}
        self._disclaim(old)
        self._leave(old)
        del self._by_key[key]
        return Moved(frozenset(old.addresses), self._relabelled(before))

    def put_node(self, node: Node) -> Moved:
        """Take in a new or changed node."""
        name = node.metadata.name
        addresses = tuple(
            canonical(entry.address)
            for entry in node.status.addresses
            if entry.type in ("InternalIP", "ExternalIP")
        )
        if self._nodes.get(name) == node.metadata.labels and self._addresses_of[name] == addresses:
            return Moved()
        before = {name: self.labels(name)}
        self._nodes[name] = node.metadata.labels
        self._readdress(name, addresses)
        return Moved(nodes=self._relabelled(before))

    def remove_node(self, name: str) -> Moved:
        """Remove a node."""
        before = {name: self.labels(name)}
        self._nodes.pop(name, None)
        self._readdress(name, ())
        return Moved(nodes=self._relabelled(before))

    def _readdress(self, name: str, addresses: tuple[str, ...]) -> None:
        for address in self._addresses_of.pop(name, ()):
            if self._node_addresses.get(address) == name:
                del self._node_addresses[address]
        if name in self._nodes:
            self._addresses_of[name] = addresses
            for address in addresses:
                self._node_addresses[address] = name

    def _claim(self, new: Locator) -> None:
        for address in dict.fromkeys(new.addresses):
            others = self.owners(address)
            self._claims[address] = (
                sorted((*others, new.key), key=self._rank, reverse=True) if others else new.key
            )

    def _disclaim(self, old: Locator) -> None:
        for address in dict.fromkeys(old.addresses):
            left = [key for key in self.owners(address) if key != old.key]
            if left:
                self._claims[address] = left if len(left) > 1 else left[0]
            else:
                del self._claims[address]

    def _rank(self, key: Key) -> tuple[str, int, str]:
        one = self._by_key[key]
        return one.created, one.claimed, one.uid

    def _leave(self, old: Locator) -> None:
        there = self._on_node[old.node]
        del there[old.key]
        if not there:
            del self._on_node[old.node]

    def _relabelled(self, before: Mapping[str, Labels]) -> frozenset[str]:
        """Those nodes whose labels are no longer what they were; they become new spots."""
        changed = set()
        for node, labels in before.items():
            if self._find_labels(node) != labels:
                changed.add(node)
                self._spots.pop(node, None)
            elif not self._known(node):
                self._spots.pop(node, None)
        return frozenset(changed)

    def _known(self, node: str) -> bool:
        return node in self._nodes or node in self._on_node

    def _find_labels(self, node: str) -> Labels:
        if self._follows_nodes:
            return self._nodes.get(node, NO_LABELS)
        there = self._on_node.get(node)
        if not node or not there:
            return NO_LABELS
        newest = max((self._by_key[key] for key in there), key=lambda one: (one.version, one.key))
        return newest.labels

    def _new_spot(self, node: str) -> PodLocation:
        labels = self._find_labels(node)
        if not self._known(node):
            return PodLocation(0, node, labels)
        self._numbers += 1
        spot = self._spots[node] = PodLocation(self._numbers, node, labels)
        return spot


def canonical(address: str) -> str:
    """An address as it is compared: the shortest text, an IPv4 address inside of IPv6 as IPv4.

    Text that is no address stays as it is; it will match none.
    """
    text = address.partition("%")[0]
    try:
        if ":" not in text:
            return str(ipaddress.IPv4Address(text))
        parsed = ipaddress.IPv6Address(text)
    except ValueError:
        return address
    return str(parsed.ipv4_mapped or parsed)


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
