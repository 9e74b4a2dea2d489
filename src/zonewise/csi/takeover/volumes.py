"""The driver's volumes and the pods that use them, as takeover looks at them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from zonewise.api.meta import Key
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import finished
from zonewise.api.objects.storage import PersistentVolume, PersistentVolumeClaim
from zonewise.runtime.cache.store import Store
from zonewise.storage.domains import DomainLabels
from zonewise.storage.takeover import VolumeUse, home_of
from zonewise.storage.takeover.evacuation import VolumePod
from zonewise.topology import is_ready

T_co = TypeVar("T_co", covariant=True)
_Home = tuple[tuple[str, str], ...]


class ObjectsByKey(Protocol[T_co]):
    """Objects of a kind: a store, or a list of them."""

    def get(self, key: Key) -> T_co | None: ...
    def __iter__(self) -> Iterator[T_co]: ...


class VolumeHomes:
    """The domains that volumes have their home in, counted change by change."""

    def __init__(
        self,
        volumes: Store[PersistentVolume],
        labels: DomainLabels,
        changed: Callable[[], None],
    ) -> None:
        self._labels = labels
        self._changed = changed
        self._count: Counter[_Home] = Counter()
        volumes.on_change(self._follow)

    def __iter__(self) -> Iterator[dict[str, str]]:
        return (dict(home) for home in sorted(self._count))

    def _follow(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        before = set(self._count)
        for volume, number in ((old, -1), (new, 1)):
            if volume is not None and (home := self._home(volume)):
                self._count[home] += number
                if not self._count[home]:
                    del self._count[home]
        if set(self._count) != before:
            self._changed()

    def _home(self, volume: PersistentVolume) -> _Home:
        source = volume.spec.csi
        if source is None or source.driver != self._labels.driver:
            return ()
        return tuple(home_of(volume, self._labels).items())


class VolumeUses:
    """Which pods use which volumes of the driver."""

    def __init__(
        self,
        pods: ObjectsByKey[Pod],
        claims: ObjectsByKey[PersistentVolumeClaim],
        volumes: ObjectsByKey[PersistentVolume],
        nodes: ObjectsByKey[Node],
        labels: DomainLabels,
    ) -> None:
        self._pods = pods
        self._claims = claims
        self._volumes = volumes
        self._nodes = nodes
        self._labels = labels

    def place(self, node: str) -> tuple[dict[str, str], bool]:
        """The domain of a node, and whether it is Ready; a deleted one is neither."""
        found = self._nodes.get(("", node))
        if found is None:
            return {}, False
        return self._labels.ordered(self._labels.of_node(found.metadata.labels)), is_ready(found)

    def pod(self, key: Key) -> VolumePod | None:
        """A pod that has a node, a volume of the driver, and has not ended."""
        found = self._pods.get(key)
        if found is None or not found.spec.node_name or finished(found):
            return None
        homes = tuple(home for _, home in self._used(found))
        if not homes:
            return None
        at, ready = self.place(found.spec.node_name)
        return VolumePod("/".join(key), found.spec.node_name, at, ready, homes)

    def uses(self) -> Iterator[VolumeUse]:
        """Every use of a volume by a pod that has a node and has not ended."""
        for pod in self._pods:
            if pod.spec.node_name and has_claims(pod) and not finished(pod):
                at, _ = self.place(pod.spec.node_name)
                for volume, home in self._used(pod):
                    yield VolumeUse(volume, "/".join(pod.key), pod.spec.node_name, home, at)

    def _used(self, pod: Pod) -> Iterator[tuple[str, dict[str, str]]]:
        for name in claim_names(pod):
            claim = self._claims.get((pod.metadata.namespace, name))
            volume = self._volumes.get(("", claim.spec.volume_name)) if claim is not None else None
            source = volume.spec.csi if volume is not None else None
            if volume is not None and source is not None and source.driver == self._labels.driver:
                yield volume.metadata.name, home_of(volume, self._labels)


def claim_names(pod: Pod) -> Iterator[str]:
    """The names of a pod's claims."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}"


def has_claims(pod: Pod) -> bool:
    """Whether a pod can have a volume of ours at all."""
    return any(True for _ in claim_names(pod))
