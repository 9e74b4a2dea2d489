"""Rollouts by domain where nodes lack the label of domains, or have its old spelling only."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.controllers.rollouts.rollout_scene import (
    ZONE,
    Obj,
    Zones,
    begin,
    finish,
    update,
    workload,
)
from tests.embedded.whole_cluster import whole

from zonewise.disruption.grouping import OLD_KEYS
from zonewise.embedded.seed.nodes import NodeLayout

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

OLD_ZONE = next(old for old, new in OLD_KEYS.items() if new == ZONE)
STRATEGIES: dict[str, tuple[str, Obj | None]] = {
    "surge": ("Deployment", {"maxSurge": 1, "maxUnavailable": 0}),
    "no surge": ("Deployment", {"maxSurge": 0, "maxUnavailable": 1}),
    "quarters": ("Deployment", {"maxSurge": "25%", "maxUnavailable": "25%"}),
    "ordinals": ("StatefulSet", None),
    "daemons": ("DaemonSet", None),
}


def nodes(zones: str, *, spelling: str = "") -> list[Obj]:
    """Three nodes in each of three zones; those of some zones are labelled otherwise, or not."""
    result = list(NodeLayout().nodes())
    for node in result:
        labels = node["metadata"]["labels"]
        zone = labels[ZONE]
        if zone in zones:
            del labels[ZONE]
            if spelling:
                labels[spelling] = zone
    return result


def spread_over_nodes(kind: str, rolling: Obj | None) -> Obj:
    """Six pods that avoid each other's nodes, whatever their zones."""
    strategy = None if rolling is None else {"type": "RollingUpdate", "rollingUpdate": rolling}
    body = workload(kind, strategy=strategy)
    pod = body["spec"]["template"]["spec"]
    pod.pop("topologySpreadConstraints", None)
    term = {
        "labelSelector": {"matchLabels": {"app": "foo"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    if kind != "DaemonSet":
        pod["affinity"] = {
            "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
        }
    return body


def by_zone(zones: Zones) -> Counter[str]:
    """Living pods by the zone that their node is named after."""
    counts: Counter[str] = Counter()
    for (zone, _), count in zones.images().items():
        counts[zone] += count
    return counts


@pytest.mark.parametrize("without", ["abc", "c", "bc"])
@pytest.mark.parametrize("strategy", list(STRATEGIES))
async def test_a_rollout_ends_where_nodes_lack_the_label(strategy: str, without: str) -> None:
    """A rollout ends where some nodes, or all, lack the label, with any strategy: zones are updated
    one after the other, and what is in none is replaced there.
    """
    kind, rolling = STRATEGIES[strategy]
    async with whole([*nodes(without), spread_over_nodes(kind, rolling)]) as cluster:
        zones = await begin(cluster, kind)
        await asyncio.sleep(60)
        before = by_zone(zones)
        await update(cluster, kind)
        await finish(cluster)
        assert not any(together <= set("abc") - set(without) for together in zones.together)
        after = by_zone(zones)
        assert sum(after[zone] for zone in without) == sum(before[zone] for zone in without)
        assert all(after[zone] == before[zone] for zone in "abc" if zone not in without)


@pytest.mark.parametrize("key", [ZONE, OLD_ZONE])
@pytest.mark.parametrize("relabelled", ["abc", "c"])
@pytest.mark.parametrize("strategy", list(STRATEGIES))
async def test_either_spelling_of_the_label_names_the_zone(
    strategy: str, relabelled: str, key: str
) -> None:
    """Nodes that have only the old spelling are in their zone, for a rollout of either spelling,
    and new pods are sent to them.
    """
    kind, rolling = STRATEGIES[strategy]
    objects = [*nodes(relabelled, spelling=OLD_ZONE), spread_over_nodes(kind, rolling)]
    order: dict[str, Any] = {"order": {"domains": ["b", "c", "a"]}}
    async with whole(objects) as cluster:
        zones = await begin(cluster, kind, topologyKey=key, **order)
        before = by_zone(zones)
        await update(cluster, kind)
        await finish(cluster)
        assert zones.order == ["b", "c", "a"]
        assert by_zone(zones) == before
