"""What KEP-8's stories cost on a whole cluster: evictions, refusals, writes, pods at the peak.

The agreed limits: one eviction for each pod that goes and none that is refused, at most one write
of the ledger for each grant (and one for each that is dropped), two of a budget's status for each
step.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter

import pytest
from tests.embedded.components.disruption.budget_stories import (
    STORY_1,
    STORY_2,
    Watcher,
    apply,
    deployment,
    images,
    update,
)
from tests.embedded.whole_cluster import settled, whole

from zonewise.api import Deployment, Pod
from zonewise.api.objects.pod_state import is_pod_active, is_pod_ready
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.embedded.seed.nodes import NodeLayout

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

STORY_3 = STORY_2.split("  nodeSelectorTerm")[0]
CUSTOM_2, CUSTOM_3 = (
    story.replace("policy/v1beta1", "zonewise.io/v1alpha1")
    .replace("PodDisruptionBudget", "TopologyDisruptionBudget")
    .replace("  name: app-pdb", "  name: app-pdb\n  namespace: default")
    for story in (STORY_2, STORY_3)
)
LINE = re.compile(
    r'apiserver_request_total\{code="(?P<code>\d+)",resource="(?P<resource>[^"]*)",'
    r'subresource="(?P<part>[^"]*)",verb="(?P<verb>[A-Z]+)"\} (?P<count>[0-9.e+]+)'
)
WRITES = ("POST", "PUT", "PATCH", "DELETE")


async def requests(cluster: EmbeddedCluster) -> Counter[tuple[str, str]]:
    """Writes so far: by resource, and the code if it was a refusal."""
    metrics = (await cluster.client.raw("GET", "/metrics")).body.decode()
    writes: Counter[tuple[str, str]] = Counter()
    for line in map(LINE.fullmatch, metrics.splitlines()):
        if line is not None and line["verb"] in WRITES:
            name = f"{line['resource']}/{line['part']}".rstrip("/")
            code = line["code"] if int(line["code"]) >= 400 else ""
            writes[name, code] += int(float(line["count"]))
    return writes


class Total(Watcher):
    """Also records the minimum of healthy pods."""

    fewest = 10**6

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        super()._changed(old, new)
        if self.watching:
            healthy = sum(is_pod_active(pod) and is_pod_ready(pod) for pod in self._pods)
            self.fewest = min(self.fewest, healthy)


@pytest.mark.parametrize(
    ("story", "together"),
    [(STORY_2, 6), (CUSTOM_2, 6), (STORY_3, 8), (CUSTOM_3, 8)],
    ids=["2", "2 as a custom resource", "3", "3 as a custom resource"],
)
async def test_a_rollout_costs_what_it_must(story: str, together: int) -> None:
    """Nine pods are nine evictions, none is refused, and at no event are there more pods than
    desired or fewer healthy ones than the budget requires: two of each zone, or eight of all.
    """
    async with whole([*NodeLayout().nodes(), deployment(9)]) as cluster:
        await settled(cluster)
        await apply(cluster, story)
        await asyncio.sleep(5)
        watcher = Total(cluster)
        watcher.begin()
        before = await requests(cluster)
        await update(cluster)
        async with asyncio.timeout(900):
            while {image for _, image in await images(cluster)} != {"c:2"}:
                await settled(cluster)
        assert watcher.fewest >= together
        assert all(least >= 2 for least in watcher.least.values())
        assert watcher.most == 9
        # The grants are dropped, too, before it is counted up.
        await asyncio.sleep(200)
        calls = await requests(cluster) - before
        assert calls["pods/eviction", ""] == 9
        assert calls["pods/eviction", "429"] == 0
        assert calls["disruptionledgers", ""] <= 18
        assert calls["poddisruptionbudgets/status", ""] <= 18
        assert calls["topologydisruptionbudgets/status", ""] <= 18


@pytest.mark.parametrize(
    ("surge", "limit"),
    [(0, "maxUnavailable: 2\n  crossDomain: Exclusive"), (3, "minAvailable: 3")],
    ids=["one zone at a time", "surge first"],
)
async def test_a_domain_closed_shorter_than_its_status_delays_nothing(
    surge: int, limit: str
) -> None:
    """A domain that is closed for less than a second is in no status; the rollout continues when a
    pod becomes Ready, not after the pause of a refusal.
    """
    async with whole([*NodeLayout().nodes(), deployment(9, surge=surge)]) as cluster:
        await settled(cluster)
        await apply(cluster, CUSTOM_2.replace("maxUnavailable: 1", limit))
        await asyncio.sleep(5)
        before = await requests(cluster)
        await update(cluster)
        async with asyncio.timeout(30):
            while {image for _, image in await images(cluster)} != {"c:2"}:
                await settled(cluster)
        calls = await requests(cluster) - before
        assert calls["pods/eviction", ""] == 9
        assert calls["pods/eviction", "429"] == 0


async def test_a_closed_zone_costs_nothing() -> None:
    """Story 1 costs three evictions for the open zone's pods, and no requests for the others."""
    async with whole([*NodeLayout().nodes(), deployment(9)]) as cluster:
        await settled(cluster)
        await apply(cluster, STORY_1)
        await asyncio.sleep(5)
        watcher = Total(cluster)
        watcher.begin()
        before = await requests(cluster)
        await update(cluster)
        await asyncio.sleep(600)
        calls = await requests(cluster) - before
        assert calls["pods/eviction", ""] == 3
        assert calls["pods/eviction", "429"] == 0
        assert {zone: watcher.least[zone] for zone in "bc"} == {"b": 3, "c": 3}
        assert watcher.most == 9


@pytest.mark.parametrize("story", [STORY_2, STORY_3], ids=["per zone", "of all"])
async def test_a_scale_down_costs_what_it_must(story: str) -> None:
    """Story 4: six surplus pods are six evictions, and none is refused."""
    async with whole([*NodeLayout().nodes(), deployment(10)]) as cluster:
        await settled(cluster)
        await apply(cluster, story)
        await asyncio.sleep(5)
        before = await requests(cluster)
        await cluster.client.patch(Deployment, "foo", "default", {"spec": {"replicas": 4}})
        await asyncio.sleep(1)
        await settled(cluster, within=600)
        calls = await requests(cluster) - before
        assert calls["pods/eviction", ""] == 6
        assert calls["pods/eviction", "429"] == 0
