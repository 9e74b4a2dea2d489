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
from zonewise.traffic.routes import ServiceRoutes


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
        wanted: dict[bytes, bytes] = {}
        gone: dict[bytes, None] = {}
        changes = Changes()
        for key, layout in layouts.items():
            changes.chains += layout.chains
            changes.unused += (one for one in self._chains.get(key, ()) if one not in layout.chains)
            before = self._keys.get(key, ())
            for one in before:
                if one not in layout.elements and self._release(one):
                    gone[one] = None
            wanted |= layout.elements
            known = frozenset(before)
            for one in layout.elements:
                if one[0] in SHARED and one not in known:
                    self._shared[one] = self._shared.get(one, 0) + 1
            self._note(key, layout)
        elements = self.elements
        for one in gone:
            if one not in wanted and elements.pop(one, None) is not None:
                changes.remove.append(one)
        for one, data in wanted.items():
            held = elements.get(one)
            if held == data:
                continue
            if held is not None:
                changes.remove.append(one)
            elements[one] = data
            changes.put.append((one, data))
        return changes

    def replan(self, actual: Mapping[bytes, bytes]) -> Changes:
        """The changes from the actual elements to the wanted ones."""
        changes = Changes(chains=self.chains())
        for one, data in actual.items():
            if self.elements.get(one) != data:
                changes.remove.append(one)
        for one, data in self.elements.items():
            if actual.get(one) != data:
                changes.put.append((one, data))
        return changes

    def chains(self) -> list[tuple[FamilyName, OwnChain]]:
        """Every chain of a Service's own that is wanted."""
        return [one for several in self._chains.values() for one in several]

    def layout(self, key: Key) -> Layout:
        """What a Service wants now."""
        elements = {one: self.elements[one] for one in self._keys.get(key, ())}
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

    def _release(self, one: bytes) -> bool:
        """Whether no Service wants it any more."""
        if one[0] not in SHARED:
            return True
        left = self._shared[one] - 1
        if left:
            self._shared[one] = left
            return False
        del self._shared[one]
        return True


def desire(services: Iterable[ServiceRoutes], node: str) -> Desired:
    """The elements of all these Services, from nothing."""
    desired = Desired()
    desired.change({service.key: lay_out(service, node) for service in services})
    return desired
