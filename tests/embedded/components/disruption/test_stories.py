"""KEP-8's stories for every kind of workload, on a whole embedded cluster in virtual time.

The budgets are PodDisruptionBudgets with KEP-8's own field. The same table is played on a real
control plane by ``kubernetes/test_stories.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, get_args

import pytest
from tests.disruption.story_plays import define, play
from tests.disruption.story_stage import PLAIN, ZONES, Stage
from tests.disruption.story_table import Cell, Kind, Story, cases
from tests.embedded.whole_cluster import whole

from zonewise.api import Pod
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.embedded.seed.nodes import NodeLayout

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

ROWS = [(story, kind, cell) for story in get_args(Story) for kind, cell in cases(story)]
SAFE = {
    (
        "4",
        "StatefulSet OrderedReady",
    ): "its ordinals say which stay, and it waits until all are Ready",
}
"""Where the workload itself keeps the promise, without a budget."""
BREAKABLE = [row for row in ROWS if row[2].limited and row[:2] not in SAFE]


@pytest.mark.parametrize(
    ("story", "kind", "cell"), ROWS, ids=[f"{story} {kind}" for story, kind, _ in ROWS]
)
async def test_a_story_of_a_kind(
    story: Story, kind: Kind, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workload is disrupted as its budget allows, after every change of a pod, until all is
    done. A controller asks for no eviction that is refused; of the two that replace the pods of a
    DaemonSet with a rollout, one may be refused in each zone.
    """
    async with _stage(kind) as (stage, cluster):
        refused = _count_refused(cluster, monkeypatch)
        await play(stage, story, cell)
        limit = len(ZONES) if story == "DomainRollout" else 0
        assert cell.deed in ("evict", "operate") or refused["evictions"] <= limit


@pytest.mark.parametrize(
    ("story", "kind", "cell"),
    BREAKABLE,
    ids=[f"{story} {kind}" for story, kind, _ in BREAKABLE],
)
async def test_a_story_fails_without_its_budget(story: Story, kind: Kind, cell: Cell) -> None:
    """With a budget that allows everything, or without the rollout by domain, what is done to the
    workload breaks the promise that the story checks: it is the budget that keeps it.
    """
    async with _stage(kind, limiting=False) as (stage, _):
        with pytest.raises(AssertionError):
            await play(stage, story, cell)
        assert stage.faults


@asynccontextmanager
async def _stage(
    kind: Kind, *, limiting: bool = True
) -> AsyncIterator[tuple[Stage, EmbeddedCluster]]:
    """A stage on a cluster with two nodes in each zone."""
    layout = list(NodeLayout(nodes_per_zone=2).nodes())
    zones = {node["metadata"]["name"]: node["metadata"]["name"][0] for node in layout}
    async with whole(layout) as cluster:
        if kind == "custom kind":
            await define(cluster.client)
        stage = Stage(
            cluster.client,
            cluster.program.cache.store(Pod),
            "default",
            kind=kind,
            zones=zones,
            budgets=PLAIN,
            limiting=limiting,
        )
        yield stage, cluster


def _count_refused(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the evictions that the gate refuses, without dry runs."""
    refused = Counter[str]()
    gate = cluster.server.evictions.gate
    assert gate is not None
    ask = gate.ask

    async def noticed(*args: Any, **more: Any) -> Any:
        verdict = await ask(*args, **more)
        if not verdict.allowed and not more.get("dry_run"):
            refused["evictions"] += 1
        return verdict

    monkeypatch.setattr(gate, "ask", noticed)
    return refused
