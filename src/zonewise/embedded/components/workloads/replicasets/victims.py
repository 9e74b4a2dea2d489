"""Which pods of a ReplicaSet are removed first.

The order is Kubernetes' own, from the most to the least dispensable: not on a node yet; phase
Pending, then Unknown, then Running; not Ready; lower deletion cost; on the node with more pods of
the same Deployment; ready for a shorter time; restarted more often; younger.

Times are compared by their logarithm: between pods that are about equally old (within a factor of
two) it is left to their uids, which are random. Otherwise the youngest would always be removed, and
with them, after a zone came back, all that had just been placed there.

"On the same node" counts the pods of all ReplicaSets of the Deployment, so that the old ones make
room where the new ones are. For a ReplicaSet without an owner this does not count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cmp_to_key

from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import DELETION_COST, active, parse_deletion_cost, ready_since
from zonewise.api.values import times

_PHASES = {"Pending": 0, "Unknown": 1}
_NEVER = -1


def ranked(pods: Iterable[Pod], *, related: Iterable[Pod] = (), now: float) -> list[Pod]:
    """The pods, the most dispensable first; ``related`` are those that make a node crowded."""
    crowd = Counter(pod.spec.node_name for pod in related if active(pod))
    features = [_features(pod, crowd, now) for pod in pods]
    # The comparison is no total order; uids make the result independent of the input's order.
    features.sort(key=lambda one: one.uid)
    features.sort(key=cmp_to_key(_compare))
    return [one.pod for one in features]


def deletion_cost(pod: Pod) -> int:
    """A pod's deletion cost by its annotation; 0 if that is not valid."""
    return parse_deletion_cost(pod.metadata.annotations.get(DELETION_COST, "")) or 0


@dataclass(frozen=True, slots=True)
class _Features:
    pod: Pod
    uid: str
    first: tuple[int, ...]
    """What is compared before times are."""
    ready: str
    ready_age: int
    restarts: tuple[int, int]
    created: str
    age: int


def _features(pod: Pod, crowd: Counter[str], now: float) -> _Features:
    since = ready_since(pod)
    node = pod.spec.node_name
    created = pod.metadata.creation_timestamp or ""
    return _Features(
        pod=pod,
        uid=pod.metadata.uid,
        first=(
            node != "",
            _PHASES.get(pod.status.phase, 2),
            since is not None,
            deletion_cost(pod),
            -crowd[node],
        ),
        ready=since or "",
        ready_age=_bucket(since or "", now),
        restarts=_restarts(pod),
        created=created,
        age=_bucket(created, now),
    )


def _bucket(moment: str, now: float) -> int:
    """How long ago, as the whole logarithm of nanoseconds; -1 for never and for just now."""
    if not moment:
        return _NEVER
    age = now - times.parse(moment).timestamp()
    return int(math.log2(age * 1e9)) if age > 0 else _NEVER


def _restarts(pod: Pod) -> tuple[int, int]:
    """The most often restarted container's count: among the main ones, then the sidecars."""
    sidecars = {one.name for one in pod.spec.init_containers if one.restart_policy == "Always"}
    return (
        max((one.restart_count for one in pod.status.container_statuses), default=0),
        max(
            (
                one.restart_count
                for one in pod.status.init_container_statuses
                if one.name in sidecars
            ),
            default=0,
        ),
    )


def _compare(a: _Features, b: _Features) -> int:
    if a.first != b.first:
        return -1 if a.first < b.first else 1
    if a.ready != b.ready:
        return _by_age(a, b, a.ready_age - b.ready_age)
    if a.restarts != b.restarts:
        return -1 if a.restarts > b.restarts else 1
    if a.created != b.created:
        return _by_age(a, b, a.age - b.age)
    return 0


def _by_age(a: _Features, b: _Features, difference: int) -> int:
    return difference or (-1 if a.uid < b.uid else 1)
