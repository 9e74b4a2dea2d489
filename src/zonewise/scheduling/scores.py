"""Scores of groups of nodes: taints, node affinity, topology spread, pod affinity.

Each score is scaled over all feasible groups to 0 to 100, and then multiplied by its weight; the
nodes' own scores are added elsewhere. The arithmetic is that of Kubernetes' scheduler, with the
same truncation and rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import NamedTuple

from zonewise.scheduling.node_fit import MAX_SCORE, FitEntry
from zonewise.scheduling.topology_count import TopologyCount
from zonewise.topology.nodes import HOSTNAME_LABEL

TAINT_WEIGHT, NODE_AFFINITY_WEIGHT, SPREAD_WEIGHT, POD_AFFINITY_WEIGHT = 3, 2, 2, 2
"""Weights of the scaled scores, as in Kubernetes' default profile."""

DomainTotals = list[int | None]
"""The total of each topology count in the nodes' domains; None where they lack the label."""

NumberedCounts = Sequence[tuple[int, TopologyCount]]


class NodeGroup(NamedTuple):
    """Nodes that differ only in their own scores, and the best of them."""

    totals: DomainTotals
    wide_domains: tuple[str | None, ...]
    intolerable_taints: int
    preference: int
    size: int
    best: FitEntry


def score_groups(
    groups: Sequence[NodeGroup],
    spread_counts: NumberedCounts,
    affinity_counts: NumberedCounts,
    require_all_keys: bool,
) -> list[int]:
    """The score of each group; it does not depend on how nodes are grouped."""
    most_taints = max(group.intolerable_taints for group in groups)
    best_preference = max(group.preference for group in groups)
    scores: list[int] = []
    for group, spread, affinity in zip(
        groups,
        _score_spread(groups, spread_counts, require_all_keys),
        _score_pod_affinity(groups, affinity_counts),
        strict=True,
    ):
        score = SPREAD_WEIGHT * spread + POD_AFFINITY_WEIGHT * affinity
        if most_taints:
            score += TAINT_WEIGHT * (
                MAX_SCORE - MAX_SCORE * group.intolerable_taints // most_taints
            )
        if best_preference:
            score += NODE_AFFINITY_WEIGHT * (MAX_SCORE * group.preference // best_preference)
        scores.append(score)
    return scores


def _score_spread(
    groups: Sequence[NodeGroup], counts: NumberedCounts, require_all_keys: bool
) -> list[int]:
    """Fewer pods in the domain score higher, and more so for keys with many domains."""
    if not counts:
        return [0] * len(groups)
    is_scored = [
        not require_all_keys or all(group.totals[number] is not None for number, _ in counts)
        for group in groups
    ]
    scored_groups = [group for group, included in zip(groups, is_scored, strict=True) if included]
    weights: list[tuple[int, float, int]] = []
    for number, count in counts:
        if count.key == HOSTNAME_LABEL:
            domains = sum(group.size for group in scored_groups)
        else:
            domains = len({group.wide_domains[count.slot] or "" for group in scored_groups})
        assert count.constraint is not None
        weights.append((number, log(domains + 2), count.constraint.max_skew - 1))
    raw = [
        _raw_spread_score(group, weights) if included else -1
        for group, included in zip(groups, is_scored, strict=True)
    ]
    valid_scores = [score for score in raw if score >= 0]
    low, high = min(valid_scores, default=0), max(valid_scores, default=0)
    return [
        0 if score < 0 else MAX_SCORE * (high + low - score) // high if high else MAX_SCORE
        for score in raw
    ]


def _raw_spread_score(group: NodeGroup, weights: Sequence[tuple[int, float, int]]) -> int:
    score = 0.0
    for number, weight, slack in weights:
        count = group.totals[number]
        if count is not None:
            score += count * weight + slack
    return int(score + 0.5)


def _score_pod_affinity(groups: Sequence[NodeGroup], counts: NumberedCounts) -> list[int]:
    """Preferred pods in the domain score higher, pods to avoid lower."""
    raw = [
        sum(count.weight * (group.totals[number] or 0) for number, count in counts)
        for group in groups
    ]
    low, high = min(raw), max(raw)
    if low == high:
        return [0] * len(groups)
    return [int(MAX_SCORE * ((score - low) / (high - low))) for score in raw]
