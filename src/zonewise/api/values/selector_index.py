"""Which of many selectors match a pod's labels, without testing them all.

A selector is indexed by one label that every match of it has: a key with each of the values it may
have, or a key alone. Only selectors that require no label (``NotIn``, ``DoesNotExist``, an empty
one) are tested against every pod. So a change of a pod costs one look-up per label and a test of
the selectors that could match, however many others there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Generic, TypeVar

from zonewise.api.values.selector import Operator, Selector

T = TypeVar("T", bound=Hashable)

ANY_POD = ("", None)
"""The label under which selectors are indexed that require none."""
_KEY_OPERATORS = {Operator.EXISTS, Operator.GREATER, Operator.LESS}


class SelectorIndex(Generic[T]):
    """Items by selector; several may have the same one, which is then tested once."""

    def __init__(self) -> None:
        self._items: dict[Selector, dict[T, None]] = {}
        self._by_label: dict[tuple[str, str | None], dict[Selector, None]] = {}

    def add(self, selector: Selector, item: T) -> None:
        """Add an item with its selector."""
        if selector not in self._items:
            self._items[selector] = {}
            for label in _index_labels(selector):
                self._by_label.setdefault(label, {})[selector] = None
        self._items[selector][item] = None

    def discard(self, selector: Selector, item: T) -> None:
        """Remove an item, if it is in the index."""
        items = self._items.get(selector)
        if items is None:
            return
        items.pop(item, None)
        if items:
            return
        del self._items[selector]
        for label in _index_labels(selector):
            del self._by_label[label][selector]
            if not self._by_label[label]:
                del self._by_label[label]

    def matching(self, labels: Mapping[str, str]) -> Iterator[T]:
        """The items whose selector matches."""
        for selector in self._candidates(labels):
            if selector.matches(labels):
                yield from self._items[selector]

    def _candidates(self, labels: Mapping[str, str]) -> Iterator[Selector]:
        by_label = self._by_label
        for name, value in labels.items():
            yield from by_label.get((name, value), ())
            yield from by_label.get((name, None), ())
        yield from by_label.get(ANY_POD, ())


def _index_labels(selector: Selector) -> list[tuple[str, str | None]]:
    """Labels of which every match has exactly one; of several keys that with the fewest values."""
    required = selector.required
    if required:
        name = min(required, key=lambda key: (len(required[key]), key))
        return [(name, value) for value in required[name]]
    for requirement in selector.requirements:
        if requirement.operator in _KEY_OPERATORS:
            return [(requirement.key, None)]
    return [ANY_POD]
