"""StatefulSets under budgets per failure domain, on real Kubernetes with its own controllers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from tests.kubernetes.budget_scene import AUDIT, ZONE, BudgetScene, image, same, scene

from tools import realkube as real
from zonewise.api import StatefulSet, unstructured
from zonewise.api.objects.budgets import TopologyDisruptionBudget

pytestmark = [pytest.mark.real, pytest.mark.timeout(600), pytest.mark.asyncio]


@pytest.fixture(scope="module")
def plane(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    """A whole control plane with an audit log; its long grace period keeps nodes Ready on a busy
    machine.
    """
    patient = ("--node-monitor-grace-period=10m",)
    settings = real.Settings(fsync=False, audit=AUDIT, controller_manager_args=patient)
    with real.start(settings, binaries=real_binaries) as running:
        yield running


async def create(here: BudgetScene, replicas: int, policy: str) -> None:
    """Create a StatefulSet of app=web, spread over zones."""
    spread = {
        "maxSkew": 1,
        "topologyKey": ZONE["key"],
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    spec = {
        "replicas": replicas,
        "serviceName": "web",
        "podManagementPolicy": policy,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {
                "containers": [{"name": "c", "image": "c:1"}],
                "topologySpreadConstraints": [spread],
                "terminationGracePeriodSeconds": 0,
            },
        },
    }
    kind = unstructured(StatefulSet.resource)
    await here.client.create(
        kind({"metadata": {"name": "web", "namespace": here.namespace}, "spec": spec})
    )
    await here.ready(replicas)


async def update(here: BudgetScene) -> None:
    """Change the image of the template."""
    body = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "c:2"}]}}}}
    await here.client.patch(StatefulSet, "web", here.namespace, body, kind="strategic")


def old_pods(here: BudgetScene) -> Counter[str]:
    """Pods of the old revision by zone."""
    return Counter(pod.spec.node_name[-2] for pod in here.pods() if image(pod) == "c:1")


async def open_zone(here: BudgetScene, zone: str) -> None:
    """Leave one zone out of the budget."""
    term = [{"key": ZONE["key"], "operator": "NotIn", "values": [zone]}, ZONE]
    body = {"spec": {"nodeSelectorTerm": {"matchExpressions": term}}}
    await here.client.patch(TopologyDisruptionBudget, "web", here.namespace, body)


@pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
async def test_story_1_one_zone_at_a_time(
    plane: real.ControlPlane,
    policy: str,
    record_testsuite_property: Callable[[str, object], None],
) -> None:
    """Only the zone left out of the budget is updated, although the highest ordinals are in others;
    leaving out one zone after the other completes the update. At most one pod is missing.
    """
    async with scene(plane, f"sets{policy.lower()}") as here:
        await create(here, 6, policy)
        await here.budget(
            {"key": ZONE["key"], "operator": "NotIn", "values": ["a"]}, ZONE, maxUnavailable=0
        )
        here.begin()
        await update(here)
        steps: list[tuple[str, dict[str, int]]] = [
            ("a", {"b": 2, "c": 2}),
            ("b", {"c": 2}),
            ("c", {}),
        ]
        for zone, left in steps:
            if zone != "a":
                await open_zone(here, zone)
            await here.until(partial(same, partial(old_pods, here), left), f"zone {zone} updated")
            await asyncio.sleep(5)
            assert old_pods(here) == left
        await here.ready(6, "c:2")
        assert here.fewest >= 5, here.evidence()
        requests = here.requests()
        record_testsuite_property(f"refused for {policy}", here.refused())
        # The StatefulSet controller asks for its highest ordinal at each change of a pod.
        assert here.refused() <= 12 * 6, requests
        assert requests["create pods/eviction 429"] <= 6, requests
