"""How many selected pods are on each node, and how many pods there have a term.

A count is updated pod by pod and shared by all requirements with the same selections. A pod must
find the counts it belongs to without testing each: a selection of one namespace that requires a
label with one value is indexed by the three, and a pod is looked up by its own labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from zonewise.scheduling.node_info import PodInfo
from zonewise.scheduling.terms import PodSelection, PodTerm

NamespaceLabels = Mapping[str, Mapping[str, str]]
"""Labels of namespaces, by namespace."""

_NO_LABELS: Mapping[str, str] = {}


class NodeCounts:
    """Pods by node; nodes without any are absent."""

    __slots__ = ("by_node", "dirty")

    def __init__(self) -> None:
        self.by_node: dict[str, int] = {}
        self.dirty: dict[int, set[str]] = {}
        """Sets that get the names of nodes whose count changed, by the id of their ranking."""

    def count(self, node: str, change: int) -> None:
        """A pod was added or removed."""
        remaining = self.by_node.get(node, 0) + change
        if remaining:
            self.by_node[node] = remaining
        else:
            self.by_node.pop(node, None)
        for dirty in self.dirty.values():
            dirty.add(node)


class PodCounts(NodeCounts):
    """Counts of pods that match all of some selections."""

    __slots__ = ("index_key", "selections")

    def __init__(self, selections: tuple[PodSelection, ...]) -> None:
        super().__init__()
        self.selections = selections
        self.index_key = _find_index_key(selections)

    def matches(self, pod_info: PodInfo, namespace_labels: NamespaceLabels) -> bool:
        """Whether a pod is counted."""
        meta = pod_info.pod.metadata
        own_namespace_labels = namespace_labels.get(meta.namespace, _NO_LABELS)
        return all(
            selection.matches(meta.namespace, own_namespace_labels, meta.labels)
            and (selection.includes_terminating or not pod_info.terminating)
            for selection in self.selections
        )


class TermCounts(NodeCounts):
    """Counts of pods with a term that affects others; weights as in ``Requirements.own_terms``."""

    __slots__ = ("term", "weight")

    def __init__(self, term: PodTerm, weight: int) -> None:
        super().__init__()
        self.term = term
        self.weight = weight


class AllPodCounts:
    """All counts by selection of a cluster."""

    def __init__(self) -> None:
        self._by_selections: dict[tuple[PodSelection, ...], PodCounts] = {}
        self._by_label: dict[tuple[str, str, str] | None, dict[int, PodCounts]] = {}

    def get_or_count(
        self,
        selections: tuple[PodSelection, ...],
        pod_infos: Iterable[PodInfo],
        namespace_labels: NamespaceLabels,
    ) -> PodCounts:
        """The counts of selections, counted over all pods if they are new."""
        pod_counts = self._by_selections.get(selections)
        if pod_counts is None:
            pod_counts = self._by_selections[selections] = PodCounts(selections)
            for pod_info in pod_infos:
                if pod_counts.matches(pod_info, namespace_labels):
                    pod_counts.count(pod_info.node, 1)
            self._by_label.setdefault(pod_counts.index_key, {})[id(pod_counts)] = pod_counts
        return pod_counts

    def release(self, pod_counts: PodCounts) -> None:
        """A ranking no longer uses these counts."""
        if not pod_counts.dirty:
            del self._by_selections[pod_counts.selections]
            indexed = self._by_label[pod_counts.index_key]
            del indexed[id(pod_counts)]
            if not indexed:
                del self._by_label[pod_counts.index_key]

    def count(self, pod_info: PodInfo, change: int, namespace_labels: NamespaceLabels) -> None:
        """A pod is added or removed."""
        for pod_counts in self._find_candidates(pod_info):
            if pod_counts.matches(pod_info, namespace_labels):
                pod_counts.count(pod_info.node, change)

    def _find_candidates(self, pod_info: PodInfo) -> Iterator[PodCounts]:
        meta = pod_info.pod.metadata
        by_label = self._by_label
        if not by_label:
            return
        if None in by_label:
            yield from by_label[None].values()
        for key, value in meta.labels.items():
            indexed = by_label.get((meta.namespace, key, value))
            if indexed:
                yield from indexed.values()


def _find_index_key(selections: tuple[PodSelection, ...]) -> tuple[str, str, str] | None:
    for selection in selections:
        if len(selection.namespaces) == 1 and not selection.namespace_selector.matches(_NO_LABELS):
            if selection.namespace_selector.requirements:
                continue
            for key, values in selection.pod_selector.required.items():
                if len(values) == 1:
                    return next(iter(selection.namespaces)), key, next(iter(values))
    return None
