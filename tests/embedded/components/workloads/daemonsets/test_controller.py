"""DaemonSets with scheduler and kubelets, in virtual time."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.embedded.components.workloads.set_cluster import SetCluster, set_cluster
from tests.embedded.virtual_cluster import until

from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.apps import DaemonSet
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_ready
from zonewise.api.objects.policy import PodDisruptionBudget

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


def manifest(image: str = "app:1", *, pod: dict[str, Any] | None = None, **spec: Any) -> Any:
    """A DaemonSet ``agent``."""
    return {
        "metadata": {"name": "agent"},
        "spec": {
            "selector": {"matchLabels": {"app": "agent"}},
            "template": {
                "metadata": {"labels": {"app": "agent"}},
                "spec": {"containers": [{"name": "main", "image": image}], **(pod or {})},
            },
            **spec,
        },
    }


def settled(here: SetCluster, nodes: int) -> bool:
    """Whether there is a ready, updated pod on a number of nodes, and none elsewhere."""
    group = here.daemon()
    status = group.status
    return (
        status.observed_generation == group.metadata.generation
        and status.desired_number_scheduled == nodes
        and status.current_number_scheduled == nodes
        and status.updated_number_scheduled == nodes
        and status.number_available == nodes
        and len(here.pods) == nodes
    )


async def update(here: SetCluster, image: str) -> None:
    """Change the image."""
    template = manifest(image)["spec"]["template"]
    await here.patch(DaemonSet, "agent", {"spec": {"template": template}})


def on_nodes(here: SetCluster) -> list[str]:
    """The nodes that have a pod."""
    return sorted(pod.spec.node_name for pod in here.pods)


async def test_every_node_gets_a_pod_also_new_and_cordoned_ones() -> None:
    """Each node gets a pod by node affinity, bound by the scheduler, also a cordoned node."""
    async with set_cluster("n1", "n2") as here:
        await here.client.patch(Node, "n2", None, {"spec": {"unschedulable": True}})
        await here.post(DaemonSet, manifest())
        await until(lambda: settled(here, 2))
        assert on_nodes(here) == ["n1", "n2"]
        pod = next(iter(here.pods))
        (revision,) = here.history
        assert pod.metadata.labels == {
            "app": "agent",
            "controller-revision-hash": revision.metadata.labels["controller-revision-hash"],
            "pod-template-generation": "1",
        }
        tolerated = [
            (toleration.key.rpartition("/")[2], toleration.effect)
            for toleration in pod.spec.tolerations
        ]
        assert tolerated == [
            ("not-ready", "NoExecute"),
            ("unreachable", "NoExecute"),
            ("disk-pressure", "NoSchedule"),
            ("memory-pressure", "NoSchedule"),
            ("pid-pressure", "NoSchedule"),
            ("unschedulable", "NoSchedule"),
        ]
        await here.client.create(Node(metadata=ObjectMeta(name="n3")))
        await until(lambda: settled(here, 3))
        await until(lambda: len(here.list_events("DaemonSet")) == 3)
        assert here.reasons("DaemonSet") == {"SuccessfulCreate"}


async def test_labels_and_taints_decide() -> None:
    """Pods follow the labels of nodes; a taint prevents new pods, or evicts."""
    async with set_cluster("n1", "n2") as here:
        await here.post(DaemonSet, manifest(pod={"nodeSelector": {"color": "blue"}}))
        await asyncio.sleep(1)
        assert on_nodes(here) == []
        for name in ("n1", "n2"):
            body = {"metadata": {"labels": {"color": "blue"}}}
            await here.client.patch(Node, name, None, body)
        await until(lambda: settled(here, 2))
        body = {"metadata": {"labels": {"color": "green"}}}
        await here.client.patch(Node, "n1", None, body)
        await until(lambda: settled(here, 1))
        assert on_nodes(here) == ["n2"]
        await asyncio.sleep(5)
        taint = {"key": "busy", "effect": "NoSchedule"}
        await here.client.patch(Node, "n2", None, {"spec": {"taints": [taint]}})
        await asyncio.sleep(5)
        assert here.daemon().status.desired_number_scheduled == 1
        assert on_nodes(here) == ["n2"]
        taint = {"key": "busy", "effect": "NoExecute"}
        await here.client.patch(Node, "n2", None, {"spec": {"taints": [taint]}})
        await until(lambda: settled(here, 0))


async def test_an_update_takes_one_node_at_a_time() -> None:
    """Without surge a node's new pod is created when the old one is gone, node by node."""
    async with set_cluster("n1", "n2", "n3") as here:
        await here.post(DaemonSet, manifest())
        await until(lambda: settled(here, 3))
        least = [3]

        def watch(_: Pod | None, __: Pod | None) -> None:
            living = [pod for pod in here.pods if not pod.metadata.deletion_timestamp]
            assert len({pod.spec.node_name for pod in living if pod.spec.node_name}) == len(
                [pod for pod in living if pod.spec.node_name]
            )
            up = [pod for pod in living if is_pod_ready(pod)]
            least[0] = min(least[0], len(up))

        here.pods.on_change(watch)
        await update(here, "app:2")
        await until(lambda: settled(here, 3))
        assert set(here.images().values()) == {"app:2"}
        assert least == [2]
        assert here.numbers() == [1, 2]
        await update(here, "app:1")
        await until(lambda: settled(here, 3))
        assert here.numbers() == [2, 3]


async def test_a_surge_never_leaves_a_node_without_a_pod() -> None:
    """With surge the new pod is ready before the old one is deleted."""
    rolling = {"maxSurge": 1, "maxUnavailable": 0}
    strategy = {"type": "RollingUpdate", "rollingUpdate": rolling}
    async with set_cluster("n1", "n2", "n3") as here:
        await here.post(DaemonSet, manifest(updateStrategy=strategy, minReadySeconds=3))
        await until(lambda: settled(here, 3))
        most = [0]

        def watch(_: Pod | None, __: Pod | None) -> None:
            up = {
                pod.spec.node_name
                for pod in here.pods
                if is_pod_ready(pod) and not pod.metadata.deletion_timestamp
            }
            assert up == {"n1", "n2", "n3"}
            most[0] = max(most[0], len(here.pods))

        end = here.pods.on_change(watch)
        await update(here, "app:2")
        await until(lambda: settled(here, 3))
        assert set(here.images().values()) == {"app:2"}
        assert most == [4]
        end()


async def test_on_delete_updates_deleted_pods() -> None:
    """OnDelete leaves outdated pods; a deleted pod is replaced by an updated one."""
    async with set_cluster("n1", "n2") as here:
        await here.post(DaemonSet, manifest(updateStrategy={"type": "OnDelete"}))
        await until(lambda: settled(here, 2))
        await update(here, "app:2")
        await until(lambda: here.numbers() == [1, 2])
        await until(lambda: here.daemon().status.updated_number_scheduled == 0)
        gone = here.names()[0]
        await here.delete(gone)
        await until(lambda: here.daemon().status.updated_number_scheduled == 1)
        await until(lambda: sorted(here.images().values()) == ["app:1", "app:2"])


async def test_a_failed_pod_is_killed_and_made_again() -> None:
    """A failed pod is replaced at once, the next one on that node only after a pause."""
    async with set_cluster("n1") as here:
        await here.post(DaemonSet, manifest())
        await until(lambda: settled(here, 1))
        clock = asyncio.get_running_loop().time
        pauses: list[float] = []

        def replaced(before: list[str]) -> bool:
            return settled(here, 1) and here.names() != before

        for _ in range(3):
            before = here.names()
            failed = {"status": {"phase": "Failed"}}
            began = clock()
            await here.client.patch(Pod, before[0], "default", failed, subresource="status")
            await until(partial(replaced, before))
            pauses.append(clock() - began)
        assert pauses[0] < 0.5 < pauses[1] < pauses[2]
        assert "FailedDaemonPod" in here.reasons("DaemonSet")


async def test_a_budget_holds_back_an_update() -> None:
    """With evictions a budget decides before a daemon pod is removed."""
    budget = {
        "metadata": {"name": "agent"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "agent"}}},
    }
    async with set_cluster("n1", "n2", removal="evict") as here:
        await here.post(DaemonSet, manifest())
        await until(lambda: settled(here, 2))
        await here.post(PodDisruptionBudget, budget)
        await update(here, "app:2")
        await until(lambda: "EvictionRefused" in here.reasons("DaemonSet"))
        assert set(here.images().values()) == {"app:1"}
        await here.patch(PodDisruptionBudget, "agent", {"spec": {"minAvailable": 1}})
        await until(lambda: settled(here, 2))
        assert set(here.images().values()) == {"app:2"}


async def test_old_revisions_are_deleted() -> None:
    """Of the unused revisions, revisionHistoryLimit are kept."""
    async with set_cluster("n1") as here:
        await here.post(DaemonSet, manifest(revisionHistoryLimit=1))
        for number in range(2, 5):
            await until(lambda: settled(here, 1))
            await update(here, f"app:{number}")
        await until(lambda: settled(here, 1) and here.numbers() == [3, 4])
