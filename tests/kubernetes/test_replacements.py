"""New pods of a rollout by domain start in the open domain, on real Kubernetes: its own controllers
create them, its webhook call holds them, its scheduler places them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from tests.kubernetes.budget_scene import AUDIT, ZONE, BudgetScene, image, scene

from tools import realkube as real
from zonewise.api import Deployment, Node, Pod, convert
from zonewise.api.objects.budgets import DomainRollout
from zonewise.runtime.cache.store import Store

pytestmark = [pytest.mark.real, pytest.mark.timeout(600), pytest.mark.asyncio]

Obj = dict[str, Any]
ORDER = ["b", "c", "a"]


@pytest.fixture(scope="module")
def plane(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    """A whole control plane with an audit log; its long grace period keeps nodes Ready on a busy
    machine.
    """
    patient = ("--node-monitor-grace-period=10m",)
    settings = real.Settings(fsync=False, audit=AUDIT, controller_manager_args=patient)
    with real.start(settings, binaries=real_binaries) as running:
        yield running


async def begin(here: BudgetScene) -> Store[DomainRollout]:
    """Six pods that are spread anew by each revision, a surge of two, and a rollout."""
    await here.deploy(6, surge=2, unavailable=0)
    spread = {
        "maxSkew": 1,
        "topologyKey": ZONE["key"],
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
        "matchLabelKeys": ["pod-template-hash"],
    }
    await change(here, topologySpreadConstraints=[spread])
    deployments = here.components.cache.store(Deployment)
    await here.until(lambda: any(map(is_rolled_out, deployments)), "spread anew")
    rollout: Obj = {
        "metadata": {"name": "web", "namespace": here.namespace},
        "spec": {
            "workloadRef": {"kind": "Deployment", "name": "web"},
            "maxUnavailable": 2,
            "order": {"domains": ORDER},
        },
    }
    rollouts = here.components.cache.store(DomainRollout)
    await here.client.create(convert(DomainRollout, rollout))
    await here.until(lambda: reasons(rollouts) == {"UpToDate"}, "up to date")
    return rollouts


async def change(here: BudgetScene, **spec: Any) -> None:
    """Change the template."""
    body = {"spec": {"template": {"spec": spec}}}
    await here.client.patch(Deployment, "web", here.namespace, body)


def is_rolled_out(item: Deployment) -> bool:
    """Whether the six pods of a Deployment are of its newest revision, and no others are left."""
    status = item.status
    counts = {status.replicas, status.updated_replicas, status.available_replicas}
    return status.observed_generation == item.metadata.generation and counts == {6}


def reasons(rollouts: Iterable[DomainRollout]) -> set[str]:
    """Why rollouts do what they do."""
    return {rollout.status.reason for rollout in rollouts}


def placements(here: BudgetScene) -> Counter[tuple[str, str]]:
    """Pods by zone and image."""
    return Counter((pod.spec.node_name[-2:-1], image(pod)) for pod in here.pods())


def filler(node: Node, namespace: str) -> Pod:
    """A pod that takes all CPU of a node."""
    container = {"name": "c", "image": "filler:1", "resources": {"requests": {"cpu": "4"}}}
    meta = {"name": f"filler-{node.metadata.name}", "namespace": namespace}
    spec = {
        "nodeName": node.metadata.name,
        "containers": [container],
        "terminationGracePeriodSeconds": 0,
    }
    return convert(Pod, {"metadata": meta, "spec": spec})


async def test_new_pods_start_in_the_open_zone(plane: real.ControlPlane) -> None:
    """A surge of two, with a hard spread for each revision, starts in the open zone only, and at
    the end each zone has as many pods as before; without room in the open zone the pods wait, the
    rollout says so, and it ends when there is room.
    """
    async with scene(plane, "replacements") as here:
        rollouts = await begin(here)
        strays: list[str] = []

        def record(old: Pod | None, new: Pod | None) -> None:
            bound = new is not None and new.spec.node_name and not (old and old.spec.node_name)
            if new is not None and bound and image(new) == "c:2":
                zone = new.spec.node_name[-2]
                if {rollout.status.domain for rollout in rollouts} - {zone, ""}:
                    strays.append(f"{new.metadata.name} in {zone}")

        here.components.cache.store(Pod).on_change(record)
        here.begin()
        await change(here, containers=[{"name": "c", "image": "c:2"}])
        await here.ready(6, "c:2")
        assert placements(here) == {(zone, "c:2"): 2 for zone in "abc"}
        assert strays == []
        assert here.least == {"a": 2, "b": 2, "c": 2}, here.evidence()
        await here.until(lambda: reasons(rollouts) == {"UpToDate"}, "up to date")

        for node in await here.client.list(Node):
            if node.metadata.name.startswith("replacements-b"):
                await here.client.create(filler(node, here.namespace))
        cpu = {"resources": {"requests": {"cpu": "1"}}}
        await change(here, containers=[{"name": "c", "image": "c:3", **cpu}])
        await here.until(lambda: reasons(rollouts) == {"NoRoomInDomain"}, "no room")
        assert placements(here)["", "c:3"] == 2
        for node in await here.client.list(Node):
            if node.metadata.name.startswith("replacements-b"):
                await here.client.delete(Pod, f"filler-{node.metadata.name}", here.namespace)
        await here.ready(6, "c:3")
        assert placements(here) == {(zone, "c:3"): 2 for zone in "abc"}
