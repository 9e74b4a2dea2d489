"""What the kernel is to hold, kept Service by Service; pure.

``change`` takes the new layouts of some Services and gives the changes: keys
to be taken out and elements to be put in. It costs what these Services cost, however many others
there are. ``replan`` gives the changes from what the kernel really holds.

*Ways* that several Services want belong to the one whose ClusterIP it is, so that nobody takes
another's packets by naming its address as an external one; else to the first by namespace and name.
When that changes, the layouts of others change with it: ``claim`` says whose, and the caller lays
them out again, with the ways that they have ``lost`` now.

*Shared* elements (an address that is an endpoint of two Services) are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from zonewise.api.meta import Key
from zonewise.proxy.tables.choices import Choice
from zonewise.proxy.tables.layout import SHARED, Layout, lay_out
from zonewise.proxy.tables.ruleset import FamilyName
from zonewise.traffic.routes import ServiceRoutes


@dataclass(slots=True)
class Changes:
    """What one transaction does: an element that changes is in both."""

    remove: list[bytes] = field(default_factory=list)
    put: list[tuple[bytes, bytes]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.remove or self.put)


class Desired:
    """Every element that is wanted, and by whom."""

    def __init__(self) -> None:
        self.elements: dict[bytes, bytes] = {}
        self._keys: dict[Key, tuple[bytes, ...]] = {}
        self._ways: dict[Key, Mapping[bytes, bool]] = {}
        self._claims: dict[bytes, tuple[tuple[bool, Key], ...]] = {}
        """Who wants a way, who has it first; False for whom it is a ClusterIP."""
        self._shared: dict[bytes, int] = {}
        self._choices: dict[Key, tuple[tuple[FamilyName, Choice], ...]] = {}

    def claim(self, key: Key, ways: Mapping[bytes, bool]) -> set[Key]:
        """A Service wants these ways and no others; gives the Services to which that matters."""
        woken: set[Key] = set()
        before = self._ways.get(key, {})
        for way, own in before.items():
            if ways.get(way) is not own:
                woken |= self._leave(key, way)
        for way, own in ways.items():
            if before.get(way) is not own:
                woken |= self._join(key, way, own)
        if ways:
            self._ways[key] = ways
        else:
            self._ways.pop(key, None)
        woken.discard(key)
        return woken

    def lost(self, key: Key) -> frozenset[bytes]:
        """The ways that a Service wants and another one has."""
        ways = self._ways.get(key, ())
        return frozenset(way for way in ways if self._claims[way][0][1] != key)

    def change(self, layouts: Mapping[Key, Layout]) -> Changes:
        """Take in new layouts; one without elements is a Service that is gone."""
        wanted: dict[bytes, bytes] = {}
        gone: dict[bytes, None] = {}
        for key, layout in layouts.items():
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
        changes = Changes()
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
        """The changes that lead from what is there to what is wanted."""
        changes = Changes()
        for one, data in actual.items():
            if self.elements.get(one) != data:
                changes.remove.append(one)
        for one, data in self.elements.items():
            if actual.get(one) != data:
                changes.put.append((one, data))
        return changes

    def choices(self) -> list[tuple[FamilyName, Choice]]:
        """Every choice of a Service's own that is wanted."""
        return [one for several in self._choices.values() for one in several]

    def choice_names(self) -> set[tuple[FamilyName, str]]:
        """The same by name."""
        return {(family, one.name) for family, one in self.choices()}

    def _note(self, key: Key, layout: Layout) -> None:
        if layout.elements:
            self._keys[key] = tuple(layout.elements)
        else:
            self._keys.pop(key, None)
        if layout.choices:
            self._choices[key] = layout.choices
        else:
            self._choices.pop(key, None)

    def _release(self, one: bytes) -> bool:
        """Whether nobody wants it any more."""
        if one[0] not in SHARED:
            return True
        left = self._shared[one] - 1
        if left:
            self._shared[one] = left
            return False
        del self._shared[one]
        return True

    def _join(self, key: Key, way: bytes, own: bool) -> set[Key]:
        others = self._claims.get(way, ())
        self._claims[way] = tuple(sorted((*others, (not own, key))))
        return {other for _, other in others}

    def _leave(self, key: Key, way: bytes) -> set[Key]:
        others = tuple(one for one in self._claims[way] if one[1] != key)
        if others:
            self._claims[way] = others
        else:
            del self._claims[way]
        return {other for _, other in others}


def desire(services: Iterable[ServiceRoutes], node: str) -> Desired:
    """What all these Services together want, from nothing."""
    desired = Desired()
    known = {service.key: service for service in services}
    for key, service in known.items():
        desired.claim(key, lay_out(service, node).ways)
    desired.change(
        {key: lay_out(service, node, desired.lost(key)) for key, service in known.items()}
    )
    return desired
