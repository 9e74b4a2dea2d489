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
from zonewise.api.objects.pod_state import (
    DELETION_COST,
    is_pod_active,
    parse_deletion_cost,
    ready_since,
)
from zonewise.api.values import times

_PHASES = {"Pending": 0, "Unknown": 1}
_NEVER = -1


def rank_for_deletion(pods: Iterable[Pod], *, related: Iterable[Pod] = (), now: float) -> list[Pod]:
    """Rank pods, the first to delete first; ``related`` pods are counted per node."""
    pods_per_node = Counter(pod.spec.node_name for pod in related if is_pod_active(pod))
    ranks = [_rank(pod, pods_per_node, now) for pod in pods]
    # The comparison is not a total order; uids make the result independent of the input's order.
    ranks.sort(key=lambda rank: rank.uid)
    ranks.sort(key=cmp_to_key(_compare))
    return [rank.pod for rank in ranks]


def deletion_cost(pod: Pod) -> int:
    """A pod's deletion cost by its annotation; 0 if that is not valid."""
    return parse_deletion_cost(pod.metadata.annotations.get(DELETION_COST, "")) or 0


@dataclass(frozen=True, slots=True)
class _PodRank:
    pod: Pod
    uid: str
    primary: tuple[int, ...]
    """What is compared before times are."""
    ready: str
    ready_age: int
    restarts: tuple[int, int]
    created: str
    age: int


def _rank(pod: Pod, pods_per_node: Counter[str], now: float) -> _PodRank:
    since = ready_since(pod)
    node = pod.spec.node_name
    created = pod.metadata.creation_timestamp or ""
    return _PodRank(
        pod=pod,
        uid=pod.metadata.uid,
        primary=(
            node != "",
            _PHASES.get(pod.status.phase, 2),
            since is not None,
            deletion_cost(pod),
            -pods_per_node[node],
        ),
        ready=since or "",
        ready_age=_log_age(since or "", now),
        restarts=_restarts(pod),
        created=created,
        age=_log_age(created, now),
    )


def _log_age(timestamp: str, now: float) -> int:
    """How long ago, as the whole logarithm of nanoseconds; -1 for never and for just now."""
    if not timestamp:
        return _NEVER
    age = now - times.parse(timestamp).timestamp()
    return int(math.log2(age * 1e9)) if age > 0 else _NEVER


def _restarts(pod: Pod) -> tuple[int, int]:
    """The most often restarted container's count: among the main ones, then the sidecars."""
    sidecars = {c.name for c in pod.spec.init_containers if c.restart_policy == "Always"}
    return (
        max((status.restart_count for status in pod.status.container_statuses), default=0),
        max(
            (
                status.restart_count
                for status in pod.status.init_container_statuses
                if status.name in sidecars
            ),
            default=0,
        ),
    )


def _compare(a: _PodRank, b: _PodRank) -> int:
    if a.primary != b.primary:
        return -1 if a.primary < b.primary else 1
    if a.ready != b.ready:
        return _compare_ages(a, b, a.ready_age - b.ready_age)
    if a.restarts != b.restarts:
        return -1 if a.restarts > b.restarts else 1
    if a.created != b.created:
        return _compare_ages(a, b, a.age - b.age)
    return 0


def _compare_ages(a: _PodRank, b: _PodRank, difference: int) -> int:
    return difference or (-1 if a.uid < b.uid else 1)
