"""Which pods belong together by default: those of one Service and one workload.

A pod without spread constraints is still spread over nodes and zones, softly, together with the
pods that the Services selecting it and the workload owning it select.
"""

from __future__ import annotations

from collections.abc import Mapping

from zonewise.api.meta import Key, LabelSelector
from zonewise.api.objects.pod import Pod
from zonewise.api.values import selector
from zonewise.api.values.selector import EVERYTHING, Selector
from zonewise.scheduling.terms import understood

OWNERS = {
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "StatefulSet"),
    ("v1", "ReplicationController"),
}
"""Workloads whose selectors count."""

KNOWN = 10_000


class DefaultSpread:
    """Selectors of Services and workloads."""

    def __init__(self) -> None:
        self._services: dict[str, dict[str, Selector]] = {}
        self._owners: dict[tuple[str, Key], Selector] = {}
        self._known: dict[object, Selector] = {}

    def set_service(self, key: Key, selects: Mapping[str, str] | None) -> None:
        """A Service was added or changed; one that selects nothing has no effect."""
        if not selects:
            self.remove_service(key)
            return
        self._services.setdefault(key[0], {})[key[1]] = selector.from_labels(selects)
        self._known.clear()

    def remove_service(self, key: Key) -> None:
        """A Service was deleted."""
        if self._services.get(key[0], {}).pop(key[1], None) is not None:
            self._known.clear()

    def set_owner(self, kind: str, key: Key, selects: LabelSelector | None) -> None:
        """A workload was added or changed."""
        found = understood(selects)
        if self._owners.get((kind, key)) != found:
            self._owners[kind, key] = found
            self._known.clear()

    def remove_owner(self, kind: str, key: Key) -> None:
        """A workload was deleted."""
        if self._owners.pop((kind, key), None) is not None:
            self._known.clear()

    def of(self, pod: Pod) -> Selector:
        """The pods a pod belongs to; everything if nothing binds it."""
        meta = pod.metadata
        owner = meta.controller
        owned = owner is not None and (owner.api_version, owner.kind) in OWNERS
        known = (
            meta.namespace,
            tuple(sorted(meta.labels.items())),
            (owner.kind, owner.name) if owner is not None and owned else None,
        )
        found = self._known.get(known)
        if found is None:
            if len(self._known) >= KNOWN:
                self._known.clear()
            requirements = {
                str(one): one
                for service in self._services.get(meta.namespace, {}).values()
                if service.matches(meta.labels)
                for one in service.requirements
            }
            if owner is not None and owned:
                owning = self._owners.get((owner.kind, (meta.namespace, owner.name)), EVERYTHING)
                requirements |= {str(one): one for one in owning.requirements}
            found = self._known[known] = Selector(requirements.values())
        return found
