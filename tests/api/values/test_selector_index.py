"""An index of selectors finds what testing all of them finds."""

from __future__ import annotations

import random

from zonewise.api.values import selector
from zonewise.api.values.selector_index import SelectorIndex

TEXTS = (
    *("", "a=1", "a=2", "b=1", "a in (1,2)", "a in (1),b=2", "a notin (1)", "a", "!a", "a,b"),
    *("a>1", "a in (1),a in (2)", "b in (1,2),a=1"),
)


def test_the_index_finds_what_a_search_finds() -> None:
    """For any selectors that are added and removed, and any labels, each match is found once."""
    rng = random.Random(3)
    index: SelectorIndex[int] = SelectorIndex()
    there: dict[int, selector.Selector] = {}
    for turn in range(2000):
        if there and rng.random() < 0.4:
            item = rng.choice(sorted(there))
            index.discard(there.pop(item), item)
        else:
            there[turn] = selector.parse(rng.choice(TEXTS))
            index.add(there[turn], turn)
        labels = {key: rng.choice("123") for key in "abc" if rng.random() < 0.6}
        matching = sorted(item for item, known in there.items() if known.matches(labels))
        assert sorted(index.matching(labels)) == matching
    for item, known in there.items():
        index.discard(known, item)
    assert not index._by_label
