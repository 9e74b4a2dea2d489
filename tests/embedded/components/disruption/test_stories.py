"""KEP-8's stories for every kind of workload, on a whole embedded cluster in virtual time.

The budgets are PodDisruptionBudgets with KEP-8's own field. The same table is played on a real
control plane by ``kubernetes/test_stories.py``.
"""

from __future__ import annotations

from collections import Counter
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
    layout = list(NodeLayout(nodes_per_zone=2).nodes())
    zones = {node["metadata"]["name"]: node["metadata"]["name"][0] for node in layout}
    async with whole(layout) as cluster:
        if kind == "custom kind":
            await define(cluster.client)
        pods = cluster.program.cache.store(Pod)
        stage = Stage(cluster.client, pods, "default", kind=kind, zones=zones, budgets=PLAIN)
        refused = _count_refused(cluster, monkeypatch)
        await play(stage, story, cell)
        limit = len(ZONES) if story == "DomainRollout" else 0
        assert cell.deed in ("evict", "operate") or refused["evictions"] <= limit


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
