"""How many pods of a crowd are on each node, and how many carry a term.

A tally is kept up to date pod by pod and shared by all requirements with the same selection. A pod
must find the tallies it belongs to without testing each: a crowd of one namespace that needs a
label with a certain value is indexed by the three, and a pod looks under its own labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from zonewise.scheduling.node_info import PodInfo
from zonewise.scheduling.terms import PodSelection, Term

Spaces = Mapping[str, Mapping[str, str]]
"""Labels of namespaces."""

_NO_LABELS: Mapping[str, str] = {}


class NodeCounts:
    """Pods by node; nodes without any are absent."""

    __slots__ = ("by_node", "dirty")

    def __init__(self) -> None:
        self.by_node: dict[str, int] = {}
        self.dirty: dict[int, set[str]] = {}
        """Where to mark nodes whose count changed, by the ranking that uses the counts."""

    def count(self, node: str, change: int) -> None:
        """A pod was added or removed."""
        left = self.by_node.get(node, 0) + change
        if left:
            self.by_node[node] = left
        else:
            self.by_node.pop(node, None)
        for dirty in self.dirty.values():
            dirty.add(node)


class PodCounts(NodeCounts):
    """Pods that belong to all of some crowds."""

    __slots__ = ("filed", "selections")

    def __init__(self, selections: tuple[PodSelection, ...]) -> None:
        super().__init__()
        self.selections = selections
        self.filed = _label(selections)

    def has(self, pod_info: PodInfo, spaces: Spaces) -> bool:
        """Whether a pod is counted."""
        meta = pod_info.pod.metadata
        space = spaces.get(meta.namespace, _NO_LABELS)
        return all(
            selection.has(meta.namespace, space, meta.labels)
            and (selection.ending or not pod_info.ending)
            for selection in self.selections
        )


class Carried(NodeCounts):
    """Pods that carry a term which concerns others; see ``Requirements.carried`` for the weight."""

    __slots__ = ("term", "weight")

    def __init__(self, term: Term, weight: int) -> None:
        super().__init__()
        self.term = term
        self.weight = weight


class AllPodCounts:
    """All tallies of a cluster."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[PodSelection, ...], PodCounts] = {}
        self._filed: dict[tuple[str, str, str] | None, dict[int, PodCounts]] = {}

    def use(
        self, selections: tuple[PodSelection, ...], pod_infos: Iterable[PodInfo], spaces: Spaces
    ) -> PodCounts:
        """The tally of a crowd, counted over the pods there are if it is new."""
        tally = self._tallies.get(selections)
        if tally is None:
            tally = self._tallies[selections] = PodCounts(selections)
            for pod_info in pod_infos:
                if tally.has(pod_info, spaces):
                    tally.count(pod_info.node, 1)
            self._filed.setdefault(tally.filed, {})[id(tally)] = tally
        return tally

    def release(self, tally: PodCounts) -> None:
        """One of its users is done with it."""
        if not tally.dirty:
            del self._tallies[tally.selections]
            filed = self._filed[tally.filed]
            del filed[id(tally)]
            if not filed:
                del self._filed[tally.filed]

    def count(self, pod_info: PodInfo, change: int, spaces: Spaces) -> None:
        """A pod is added or removed."""
        for tally in self._asked(pod_info):
            if tally.has(pod_info, spaces):
                tally.count(pod_info.node, change)

    def _asked(self, pod_info: PodInfo) -> Iterator[PodCounts]:
        meta = pod_info.pod.metadata
        filed = self._filed
        if not filed:
            return
        if None in filed:
            yield from filed[None].values()
        for key, value in meta.labels.items():
            found = filed.get((meta.namespace, key, value))
            if found:
                yield from found.values()


def _label(selections: tuple[PodSelection, ...]) -> tuple[str, str, str] | None:
    for selection in selections:
        if len(selection.namespaces) == 1 and not selection.space.matches(_NO_LABELS):
            if selection.space.requirements:
                continue
            for key, values in selection.pods.required.items():
                if len(values) == 1:
                    return next(iter(selection.namespaces)), key, next(iter(values))
    return None
