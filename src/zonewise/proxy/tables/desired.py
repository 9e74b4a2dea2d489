"""What the kernel is to hold, kept Service by Service; pure.

``change`` takes the new layouts of some Services and gives the changes: keys
to be taken out and elements to be put in. It costs what these Services cost, however many others
there are. ``replan`` gives the changes from what the kernel really holds.

*Shared* elements (an address that is an endpoint of two Services) are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from zonewise.api.meta import Key
from zonewise.proxy.tables.choices import OwnChain
from zonewise.proxy.tables.layout import SHARED, Layout, lay_out
from zonewise.proxy.tables.ruleset import FamilyName
from zonewise.traffic.routes.table import ServiceRoutes


@dataclass(slots=True)
class Changes:
    """What one transaction does: an element that changes is in both."""

    remove: list[bytes] = field(default_factory=list)
    put: list[tuple[bytes, bytes]] = field(default_factory=list)
    chains: list[tuple[FamilyName, OwnChain]] = field(default_factory=list)
    """Chains of Services' own that have to be there, whether they are or not."""
    unused: list[tuple[FamilyName, OwnChain]] = field(default_factory=list)
    """Chains of Services' own that nothing leads to any more, once this is done."""

    def __bool__(self) -> bool:
        return bool(self.remove or self.put)


class Desired:
    """Every wanted element, and the Services that want it."""

    def __init__(self) -> None:
        self.elements: dict[bytes, bytes] = {}
        self._keys: dict[Key, tuple[bytes, ...]] = {}
        self._shared: dict[bytes, int] = {}
        self._chains: dict[Key, tuple[tuple[FamilyName, OwnChain], ...]] = {}

    def change(self, layouts: Mapping[Key, Layout]) -> Changes:
        """Apply new layouts; one without elements is a deleted Service.

        If an element passes from one Service to another, both have to be among them.
        """
        desired: dict[bytes, bytes] = {}
        gone: dict[bytes, None] = {}
        changes = Changes()
        for key, layout in layouts.items():
            changes.chains += layout.chains
            chains = self._chains.get(key, ())
            changes.unused += (chain for chain in chains if chain not in layout.chains)
            before = self._keys.get(key, ())
            for element in before:
                if element not in layout.elements and self._release(element):
                    gone[element] = None
            desired |= layout.elements
            known = frozenset(before)
            for element in layout.elements:
                if element[0] in SHARED and element not in known:
                    self._shared[element] = self._shared.get(element, 0) + 1
            self._note(key, layout)
        elements = self.elements
        for element in gone:
            if element not in desired and elements.pop(element, None) is not None:
                changes.remove.append(element)
        for element, data in desired.items():
            present = elements.get(element)
            if present == data:
                continue
            if present is not None:
                changes.remove.append(element)
            elements[element] = data
            changes.put.append((element, data))
        return changes

    def replan(self, actual: Mapping[bytes, bytes]) -> Changes:
        """The changes from the actual elements to the wanted ones."""
        changes = Changes(chains=self.chains())
        for element, data in actual.items():
            if self.elements.get(element) != data:
                changes.remove.append(element)
        for element, data in self.elements.items():
            if actual.get(element) != data:
                changes.put.append((element, data))
        return changes

    def chains(self) -> list[tuple[FamilyName, OwnChain]]:
        """Every chain of a Service's own that is wanted."""
        return [chain for several in self._chains.values() for chain in several]

    def layout(self, key: Key) -> Layout:
        """What a Service wants now."""
        elements = {element: self.elements[element] for element in self._keys.get(key, ())}
        return Layout(elements, self._chains.get(key, ()))

    def keys(self) -> list[Key]:
        """The Services that want anything."""
        return list(self._keys)

    def _note(self, key: Key, layout: Layout) -> None:
        if layout.elements:
            self._keys[key] = tuple(layout.elements)
        else:
            self._keys.pop(key, None)
        if layout.chains:
            self._chains[key] = layout.chains
        else:
            self._chains.pop(key, None)

    def _release(self, element: bytes) -> bool:
        """Whether no Service wants it any more."""
        if element[0] not in SHARED:
            return True
        left = self._shared[element] - 1
        if left:
            self._shared[element] = left
            return False
        del self._shared[element]
        return True


def compute_desired(services: Iterable[ServiceRoutes], node: str) -> Desired:
    """The elements of all these Services, from nothing."""
    desired = Desired()
    desired.change({service.key: lay_out(service, node) for service in services})
    return desired
