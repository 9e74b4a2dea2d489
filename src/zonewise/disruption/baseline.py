"""Where the pods of a workload belong: shares, the recorded baseline, and how it moves.

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


def shares(replicas: int, baseline: Mapping[str, int], domains: Iterable[str]) -> dict[str, int]:
    """Replicas split evenly over domains; the remainder goes where most are, then by name."""
    names = sorted(domains)
    if not names:
        return {}
    each, rest = divmod(replicas, len(names))
    fullest = sorted(names, key=lambda name: (-baseline.get(name, 0), name))[:rest]
    return {name: each + (name in fullest) for name in names}


def fitted(replicas: int, baseline: Mapping[str, int], domains: Iterable[str]) -> dict[str, int]:
    """The baseline with a sum of ``replicas``.

    Pods are added to the domain furthest below its share, or taken from the one furthest above it.
    """
    names = sorted(domains)
    made = {name: baseline.get(name, 0) for name in names}
    missing = replicas - sum(made.values())
    if not names or not missing:
        return made
    _move(made, shares(replicas, baseline, names), missing, room={})
    return made


def settled(
    replicas: int, baseline: Mapping[str, int], present: Mapping[str, int], domains: Iterable[str]
) -> dict[str, int]:
    """The nearest baseline that agrees with the existing pods, once the workload is at rest.

    With enough pods no domain is promised more than it has; with too few none less. What one domain
    gives up another takes: first those that are furthest from their share.
    """
    names = sorted(domains)
    start = fitted(replicas, baseline, names)
    share = shares(replicas, baseline, names)
    there = {name: present.get(name, 0) for name in names}
    enough = sum(there.values()) >= replicas
    made = {
        name: min(start[name], there[name]) if enough else max(start[name], there[name])
        for name in names
    }
    room = {name: abs(there[name] - made[name]) for name in names}
    _move(made, share, replicas - sum(made.values()), room=room)
    return made


def _move(
    made: dict[str, int], share: Mapping[str, int], change: int, *, room: Mapping[str, int]
) -> None:
    """Add or take pods one by one, nowhere more than there is room for (if any is given)."""
    sign = 1 if change > 0 else -1
    heap = [(sign * (made[name] - share[name]), name) for name in made]
    left = dict(room)
    heapify(heap)
    for _ in range(abs(change)):
        while left and not left[heap[0][1]]:
            heappop(heap)
        distance, name = heap[0]
        made[name] += sign
        if left:
            left[name] -= 1
        heapreplace(heap, (distance + 1, name))
