"""The driver's volumes and the pods that use them, as takeover looks at them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from zonewise.api.meta import Key
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_finished
from zonewise.api.objects.storage import PersistentVolume, PersistentVolumeClaim
from zonewise.runtime.cache.store import Store
from zonewise.storage.domains import DomainLabels
from zonewise.storage.takeover.dead_nodes import VolumePod
from zonewise.storage.takeover.stand_ins import home_of
from zonewise.storage.takeover.warnings import VolumeUse
from zonewise.topology.nodes import is_node_ready

T_co = TypeVar("T_co", covariant=True)
_HomeKey = tuple[tuple[str, str], ...]


class ObjectsByKey(Protocol[T_co]):
    """Objects of a kind: a store, or a list of them."""

    def get(self, key: Key) -> T_co | None: ...
    def __iter__(self) -> Iterator[T_co]: ...


class VolumeHomes:
    """The domains that volumes have their home in, counted change by change."""

    def __init__(
        self, volumes: Store[PersistentVolume], labels: DomainLabels, on_change: Callable[[], None]
    ) -> None:
        self._labels = labels
        self._on_change = on_change
        self._counts: Counter[_HomeKey] = Counter()
        volumes.on_change(self._volume_changed)

    def __iter__(self) -> Iterator[dict[str, str]]:
        return (dict(home) for home in sorted(self._counts))

    def _volume_changed(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        previous = set(self._counts)
        for volume, number in ((old, -1), (new, 1)):
            if volume is not None and (home := self._home_of(volume)):
                self._counts[home] += number
                if not self._counts[home]:
                    del self._counts[home]
        if set(self._counts) != previous:
            self._on_change()

    def _home_of(self, volume: PersistentVolume) -> _HomeKey:
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

    def locate_node(self, name: str) -> tuple[dict[str, str], bool]:
        """The domain of a node, and whether it is Ready; a deleted one is neither."""
        node = self._nodes.get(("", name))
        if node is None:
            return {}, False
        return self._labels.ordered(
            self._labels.segments_of_node(node.metadata.labels)
        ), is_node_ready(node)

    def find_pod(self, key: Key) -> VolumePod | None:
        """A pod that has a node, a volume of the driver, and has not ended."""
        pod = self._pods.get(key)
        if pod is None or not pod.spec.node_name or is_pod_finished(pod):
            return None
        homes = tuple(home for _, home in self._used_volumes(pod))
        if not homes:
            return None
        domain, ready = self.locate_node(pod.spec.node_name)
        return VolumePod("/".join(key), pod.spec.node_name, domain, ready, homes)

    def uses(self) -> Iterator[VolumeUse]:
        """Every use of a volume by a pod that has a node and has not ended."""
        for pod in self._pods:
            if pod.spec.node_name and has_claims(pod) and not is_pod_finished(pod):
                domain, _ = self.locate_node(pod.spec.node_name)
                for volume, home in self._used_volumes(pod):
                    yield VolumeUse(volume, "/".join(pod.key), pod.spec.node_name, home, domain)

    def _used_volumes(self, pod: Pod) -> Iterator[tuple[str, dict[str, str]]]:
        for name in claim_names_of(pod):
            claim = self._claims.get((pod.metadata.namespace, name))
            volume = self._volumes.get(("", claim.spec.volume_name)) if claim is not None else None
            source = volume.spec.csi if volume is not None else None
            if volume is not None and source is not None and source.driver == self._labels.driver:
                yield volume.metadata.name, home_of(volume, self._labels)


def claim_names_of(pod: Pod) -> Iterator[str]:
    """The names of a pod's claims."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}"


def has_claims(pod: Pod) -> bool:
    """Whether a pod can have a volume of ours at all."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None or volume.ephemeral is not None:
            return True
    return False
