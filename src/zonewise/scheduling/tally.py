"""How many pods of a crowd are on each node, and how many carry a term.

A tally is kept up to date pod by pod and shared by all wishes that ask for the same crowd. A pod
must find the tallies it belongs to without asking each: a crowd of one namespace that needs a
label with a certain value is filed under the three, and a pod looks under its own labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from zonewise.scheduling.place import Tenant
from zonewise.scheduling.terms import Crowd, Term

Spaces = Mapping[str, Mapping[str, str]]
"""Labels of namespaces."""

_NO_LABELS: Mapping[str, str] = {}


class Counts:
    """Pods by node; nodes without any are absent."""

    __slots__ = ("by_node", "dirty")

    def __init__(self) -> None:
        self.by_node: dict[str, int] = {}
        self.dirty: dict[int, set[str]] = {}
        """Where to mark nodes whose count changed; whoever is in here uses the counts."""

    def count(self, node: str, change: int) -> None:
        """One comes or goes."""
        left = self.by_node.get(node, 0) + change
        if left:
            self.by_node[node] = left
        else:
            self.by_node.pop(node, None)
        for dirty in self.dirty.values():
            dirty.add(node)


class Tally(Counts):
    """Pods that belong to all of some crowds."""

    __slots__ = ("crowds", "filed")

    def __init__(self, crowds: tuple[Crowd, ...]) -> None:
        super().__init__()
        self.crowds = crowds
        self.filed = _label(crowds)

    def has(self, tenant: Tenant, spaces: Spaces) -> bool:
        """Whether a pod is counted."""
        meta = tenant.pod.metadata
        space = spaces.get(meta.namespace, _NO_LABELS)
        return all(
            crowd.has(meta.namespace, space, meta.labels) and (crowd.ending or not tenant.ending)
            for crowd in self.crowds
        )


class Carried(Counts):
    """Pods that carry a term which concerns others; see ``Wish.carried`` for the weight."""

    __slots__ = ("term", "weight")

    def __init__(self, term: Term, weight: int) -> None:
        super().__init__()
        self.term = term
        self.weight = weight


class Tallies:
    """All tallies of a cluster."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[Crowd, ...], Tally] = {}
        self._filed: dict[tuple[str, str, str] | None, dict[int, Tally]] = {}

    def use(self, crowds: tuple[Crowd, ...], tenants: Iterable[Tenant], spaces: Spaces) -> Tally:
        """The tally of a crowd, counted over the pods there are if it is new."""
        tally = self._tallies.get(crowds)
        if tally is None:
            tally = self._tallies[crowds] = Tally(crowds)
            for tenant in tenants:
                if tally.has(tenant, spaces):
                    tally.count(tenant.node, 1)
            self._filed.setdefault(tally.filed, {})[id(tally)] = tally
        return tally

    def release(self, tally: Tally) -> None:
        """One who used it does so no more."""
        if not tally.dirty:
            del self._tallies[tally.crowds]
            filed = self._filed[tally.filed]
            del filed[id(tally)]
            if not filed:
                del self._filed[tally.filed]

    def count(self, tenant: Tenant, change: int, spaces: Spaces) -> None:
        """A pod comes or goes."""
        for tally in self._asked(tenant):
            if tally.has(tenant, spaces):
                tally.count(tenant.node, change)

    def _asked(self, tenant: Tenant) -> Iterator[Tally]:
        meta = tenant.pod.metadata
        filed = self._filed
        if not filed:
            return
        if None in filed:
            yield from filed[None].values()
        for key, value in meta.labels.items():
            found = filed.get((meta.namespace, key, value))
            if found:
                yield from found.values()


def _label(crowds: tuple[Crowd, ...]) -> tuple[str, str, str] | None:
    for crowd in crowds:
        if len(crowd.namespaces) == 1 and not crowd.space.matches(_NO_LABELS):
            if crowd.space.requirements:
                continue
            for key, values in crowd.pods.required.items():
                if len(values) == 1:
                    return next(iter(crowd.namespaces)), key, next(iter(values))
    return None
