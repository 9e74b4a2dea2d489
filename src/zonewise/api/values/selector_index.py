"""Which of many selectors match a pod's labels, without testing them all.

A selector is filed under one label that every match of it has: a key with each of the values it may
have, or a key alone. Only those that require no label (``NotIn``, ``DoesNotExist``, an empty one)
are tested against every pod. So a change of a pod costs a look at its labels and at the selectors
that could match, however many others there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Generic, TypeVar

from zonewise.api.values.selector import Operator, Selector

T = TypeVar("T", bound=Hashable)

ANY_POD = ("", None)
"""Where selectors are filed that require no label."""
_NEEDS_KEY = {Operator.EXISTS, Operator.GREATER, Operator.LESS}


class SelectorIndex(Generic[T]):
    """Items by selector; several may have the same one, which is then tested once."""

    def __init__(self) -> None:
        self._items: dict[Selector, dict[T, None]] = {}
        self._filed: dict[tuple[str, str | None], dict[Selector, None]] = {}

    def add(self, selector: Selector, item: T) -> None:
        """File an item under its selector."""
        if selector not in self._items:
            self._items[selector] = {}
            for label in _labels(selector):
                self._filed.setdefault(label, {})[selector] = None
        self._items[selector][item] = None

    def discard(self, selector: Selector, item: T) -> None:
        """Remove an item, if it is there."""
        items = self._items.get(selector)
        if items is None:
            return
        items.pop(item, None)
        if items:
            return
        del self._items[selector]
        for label in _labels(selector):
            del self._filed[label][selector]
            if not self._filed[label]:
                del self._filed[label]

    def matching(self, labels: Mapping[str, str]) -> Iterator[T]:
        """The items whose selector matches."""
        for selector in self._candidates(labels):
            if selector.matches(labels):
                yield from self._items[selector]

    def _candidates(self, labels: Mapping[str, str]) -> Iterator[Selector]:
        filed = self._filed
        for name, value in labels.items():
            yield from filed.get((name, value), ())
            yield from filed.get((name, None), ())
        yield from filed.get(ANY_POD, ())


def _labels(selector: Selector) -> list[tuple[str, str | None]]:
    """Labels of which every match has exactly one; of several keys that with the fewest values."""
    needed = selector.required
    if needed:
        name = min(needed, key=lambda key: (len(needed[key]), key))
        return [(name, value) for value in needed[name]]
    for requirement in selector.requirements:
        if requirement.operator in _NEEDS_KEY:
            return [(requirement.key, None)]
    return [ANY_POD]
