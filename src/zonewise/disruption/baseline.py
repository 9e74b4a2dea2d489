"""How many pods of a workload each domain should have: the recorded baseline, and how it moves.

A baseline is a number of pods for each domain. It is recorded, because what *exists* during an
outage or a rollout is not what was intended: counted from the existing pods, a zone of five falls
to one after pods have moved. It is fitted to the requested replicas each time it is read, so that
scaling needs no write of it, and it settles on the existing pods once the workload is at rest.

Both moves go one pod at a time toward the even shares, and ties are broken by name, so that every
reader of the same numbers gets the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heapreplace


def split_evenly(
    replicas: int, baseline: Mapping[str, int], domains: Iterable[str]
) -> dict[str, int]:
    """Split replicas evenly; the remainder goes to the largest baselines, then by name."""
    names = sorted(domains)
    if not names:
        return {}
    quotient, remainder = divmod(replicas, len(names))
    fullest = sorted(names, key=lambda name: (-baseline.get(name, 0), name))[:remainder]
    return {name: quotient + (name in fullest) for name in names}


def fit_baseline(
    replicas: int, baseline: Mapping[str, int], domains: Iterable[str]
) -> dict[str, int]:
    """Fit the baseline to a sum of ``replicas``.

    Pods are added to the domain furthest below its share, or taken from the one furthest above it.
    """
    names = sorted(domains)
    result = {name: baseline.get(name, 0) for name in names}
    missing = replicas - sum(result.values())
    if not names or not missing:
        return result
    _move_pods(result, split_evenly(replicas, baseline, names), missing, room={})
    return result


def settle_baseline(
    replicas: int, baseline: Mapping[str, int], present: Mapping[str, int], domains: Iterable[str]
) -> dict[str, int]:
    """The nearest baseline that agrees with the existing pods, once the workload is at rest.

    With enough pods no domain gets a baseline above its pods; with too few, none below. What one
    domain loses others get, first those that are furthest from their share.
    """
    names = sorted(domains)
    start = fit_baseline(replicas, baseline, names)
    even_shares = split_evenly(replicas, baseline, names)
    pods = {name: present.get(name, 0) for name in names}
    enough = sum(pods.values()) >= replicas
    result = {
        name: min(start[name], pods[name]) if enough else max(start[name], pods[name])
        for name in names
    }
    room = {name: abs(pods[name] - result[name]) for name in names}
    _move_pods(result, even_shares, replicas - sum(result.values()), room=room)
    return result


def _move_pods(
    result: dict[str, int], even_shares: Mapping[str, int], change: int, *, room: Mapping[str, int]
) -> None:
    """Add or take ``change`` pods one by one, in each domain at most ``room`` (if it is given)."""
    sign = 1 if change > 0 else -1
    heap = [(sign * (result[name] - even_shares[name]), name) for name in result]
    remaining_room = dict(room)
    heapify(heap)
    for _ in range(abs(change)):
        while remaining_room and not remaining_room[heap[0][1]]:
            heappop(heap)
        distance, name = heap[0]
        result[name] += sign
        if remaining_room:
            remaining_room[name] -= 1
        heapreplace(heap, (distance + 1, name))
