"""What a group of nodes gets beside the nodes' own scores: taints, preferences, spreading, company.

Each is scaled over all groups that are possible, to 0 to 100, and then counts two- or threefold.
The arithmetic is that of Kubernetes' scheduler, down to where it cuts and where it rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import NamedTuple

from zonewise.scheduling.node_fit import TOP, FitEntry
from zonewise.scheduling.topology_count import TopologyCount
from zonewise.topology import HOSTNAME_LABEL

TAINTS, PREFERENCES, SPREADING, NEIGHBOURS = 3, 2, 2, 2
"""How much each scaled score counts beside the node's own."""

Seen = list[int | None]
"""The count of each factor; None where the nodes have no such label."""

Numbered = Sequence[tuple[int, TopologyCount]]


class NodeGroup(NamedTuple):
    """Nodes that differ in their own scores only, and the best of them."""

    seen: Seen
    wide: tuple[str | None, ...]
    disliked: int
    preferred: int
    size: int
    top: FitEntry


def extras(groups: Sequence[NodeGroup], even: Numbered, likes: Numbered, strict: bool) -> list[int]:
    """What each group gets, the same whether or not equal nodes are one group."""
    dislike = max(group.disliked for group in groups)
    prefer = max(group.preferred for group in groups)
    found: list[int] = []
    for group, spread, like in zip(
        groups, _evenness(groups, even, strict), _liking(groups, likes), strict=True
    ):
        extra = SPREADING * spread + NEIGHBOURS * like
        if dislike:
            extra += TAINTS * (TOP - TOP * group.disliked // dislike)
        if prefer:
            extra += PREFERENCES * (TOP * group.preferred // prefer)
        found.append(extra)
    return found


def _evenness(groups: Sequence[NodeGroup], topology_counts: Numbered, strict: bool) -> list[int]:
    """Fewer pods in the domain are better, and more so in keys with many domains."""
    if not topology_counts:
        return [0] * len(groups)
    judged = [
        not strict or all(group.seen[number] is not None for number, _ in topology_counts)
        for group in groups
    ]
    there = [group for group, use in zip(groups, judged, strict=True) if use]
    weights: list[tuple[int, float, int]] = []
    for number, topology_count in topology_counts:
        if topology_count.key == HOSTNAME_LABEL:
            domains = sum(group.size for group in there)
        else:
            domains = len({group.wide[topology_count.slot] or "" for group in there})
        assert topology_count.constraint is not None
        weights.append((number, log(domains + 2), topology_count.constraint.max_skew - 1))
    raw = [
        _crowding(group, weights) if use else -1 for group, use in zip(groups, judged, strict=True)
    ]
    known = [score for score in raw if score >= 0]
    low, high = min(known, default=0), max(known, default=0)
    return [
        0 if score < 0 else TOP * (high + low - score) // high if high else TOP for score in raw
    ]


def _crowding(group: NodeGroup, weights: Sequence[tuple[int, float, int]]) -> int:
    score = 0.0
    for number, weight, slack in weights:
        count = group.seen[number]
        if count is not None:
            score += count * weight + slack
    return int(score + 0.5)


def _liking(groups: Sequence[NodeGroup], topology_counts: Numbered) -> list[int]:
    """Preferred pods there, less those to be avoided."""
    raw = [
        sum(
            topology_count.weight * (group.seen[number] or 0)
            for number, topology_count in topology_counts
        )
        for group in groups
    ]
    low, high = min(raw), max(raw)
    if low == high:
        return [0] * len(groups)
    return [int(TOP * ((score - low) / (high - low))) for score in raw]
