"""Which pods are spread together by default: those of one Service and one workload.

A pod without spread constraints is still spread over nodes and zones, softly, together with the
pods that the Services selecting it and the workload owning it select.
"""

from __future__ import annotations

from collections.abc import Mapping

from zonewise.api.meta import Key, LabelSelector
from zonewise.api.objects.pod import Pod
from zonewise.api.values import selector
from zonewise.api.values.selector import EVERYTHING, Selector
from zonewise.scheduling.terms import compile_selector

OWNER_KINDS = {
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "StatefulSet"),
    ("v1", "ReplicationController"),
}
"""The kinds of workloads whose selectors count."""

CACHE_LIMIT = 10_000


class DefaultSpread:
    """Selectors of Services and workloads."""

    def __init__(self) -> None:
        self._services: dict[str, dict[str, Selector]] = {}
        self._owners: dict[tuple[str, Key], Selector] = {}
        self._cache: dict[object, Selector] = {}

    def set_service(self, key: Key, labels: Mapping[str, str] | None) -> None:
        """A Service was added or changed; one that selects nothing has no effect."""
        if not labels:
            self.remove_service(key)
            return
        self._services.setdefault(key[0], {})[key[1]] = selector.from_labels(labels)
        self._cache.clear()

    def remove_service(self, key: Key) -> None:
        """A Service was deleted."""
        if self._services.get(key[0], {}).pop(key[1], None) is not None:
            self._cache.clear()

    def set_owner(self, kind: str, key: Key, label_selector: LabelSelector | None) -> None:
        """A workload was added or changed."""
        compiled = compile_selector(label_selector)
        if self._owners.get((kind, key)) != compiled:
            self._owners[kind, key] = compiled
            self._cache.clear()

    def remove_owner(self, kind: str, key: Key) -> None:
        """A workload was deleted."""
        if self._owners.pop((kind, key), None) is not None:
            self._cache.clear()

    def selector_of(self, pod: Pod) -> Selector:
        """The selector of the pods that a pod is spread with; everything if there are none."""
        meta = pod.metadata
        owner = meta.controller
        is_counted_kind = owner is not None and (owner.api_version, owner.kind) in OWNER_KINDS
        cache_key = (
            meta.namespace,
            tuple(sorted(meta.labels.items())),
            (owner.kind, owner.name) if owner is not None and is_counted_kind else None,
        )
        cached = self._cache.get(cache_key)
        if cached is None:
            if len(self._cache) >= CACHE_LIMIT:
                self._cache.clear()
            requirements = {
                str(requirement): requirement
                for service in self._services.get(meta.namespace, {}).values()
                if service.matches(meta.labels)
                for requirement in service.requirements
            }
            if owner is not None and is_counted_kind:
                key = owner.kind, (meta.namespace, owner.name)
                owner_selector = self._owners.get(key, EVERYTHING)
                requirements |= {
                    str(requirement): requirement for requirement in owner_selector.requirements
                }
            cached = self._cache[cache_key] = Selector(requirements.values())
        return cached
