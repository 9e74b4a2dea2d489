"""Services whose topology keys slices state in an annotation, and nodes that were relabelled.

A relabelled node concerns only the Services that have a key it changed, so for a cluster without
such Services a change of labels costs one look at an empty set. Changes are collected; ``take``
gives them all at once, as a label is mostly put on many nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zonewise.api.meta import Key
from zonewise.api.objects.core import Node, Service
from zonewise.traffic.slices.topology import annotated_keys
from zonewise.traffic.topology_keys import topology_keys_of


class KeyedServices:
    """The labels of all nodes by name, and which Services need them."""

    def __init__(self, gates: Mapping[str, bool]) -> None:
        self._gates = gates
        self.labels: dict[str, Mapping[str, str]] = {}
        self._keys: dict[Key, frozenset[str]] = {}
        self._needed: frozenset[str] = frozenset()
        self._relabelled: dict[str, set[str]] = {}

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def keys_of(self, service: Service) -> tuple[str, ...]:
        """The keys whose values slices state in the annotation."""
        return annotated_keys(topology_keys_of(service, self._gates))

    def put(self, service: Service) -> None:
        """The Service is about to be decided with the labels as they are now."""
        keys = frozenset(self.keys_of(service))
        if keys != self._keys.get(service.key, frozenset()):
            self._keys.pop(service.key, None)
            if keys:
                self._keys[service.key] = keys
            self._needed = frozenset().union(*self._keys.values())

    def forget(self, key: Key) -> None:
        """The Service is deleted."""
        if self._keys.pop(key, None) is not None:
            self._needed = frozenset().union(*self._keys.values())

    def note(self, old: Node | None, new: Node | None) -> bool:
        """Take in a change of a node; whether a Service may need it.

        A deletion concerns none. A node that is added concerns all, because slices still have what
        its predecessor of that name was labelled.
        """
        if new is None:
            if old is not None:
                self.labels.pop(old.metadata.name, None)
            return False
        name, labels = new.metadata.name, new.metadata.labels
        before = self.labels.get(name)
        self.labels[name] = labels
        if before is None:
            if self._needed:
                self._relabelled[name] = set(self._needed)
            return bool(self._needed)
        changed = {key for key in self._needed if before.get(key) != labels.get(key)}
        if changed:
            self._relabelled.setdefault(name, set()).update(changed)
        return bool(changed)

    def take(self) -> dict[str, set[str]]:
        """The nodes that were relabelled since the last time, with the keys that changed."""
        relabelled, self._relabelled = self._relabelled, {}
        return relabelled

    def needs(self, key: Key, changed: set[str]) -> bool:
        """Whether a Service has one of these keys."""
        return not changed.isdisjoint(self._keys.get(key, frozenset()))
