"""StatefulSets with scheduler and kubelets, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.embedded.components.workloads.set_cluster import SetCluster, set_cluster
from tests.embedded.virtual_cluster import until, virtual_cluster

from zonewise.api.errors import Invalid
from zonewise.api.objects.apps import StatefulSet
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_ready
from zonewise.api.objects.policy import PodDisruptionBudget

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


def manifest(replicas: int = 3, image: str = "app:1", **spec: Any) -> dict[str, Any]:
    """A StatefulSet ``web``."""
    return {
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "serviceName": "web",
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "main", "image": image}]},
            },
            **spec,
        },
    }


def settled(here: SetCluster, replicas: int) -> bool:
    """Whether all pods exist, up to date and ready."""
    group = here.group()
    status = group.status
    return (
        status.observed_generation == group.metadata.generation
        and (status.replicas, status.ready_replicas, status.updated_replicas) == (replicas,) * 3
    )


async def test_pods_are_created_in_order_with_stable_names() -> None:
    """Pods are created one after the other with ordinal, name, host name and revision."""
    async with set_cluster("n1", "n2") as here:
        await here.post(StatefulSet, manifest())
        await until(lambda: settled(here, 3))
        assert here.names() == ["web-0", "web-1", "web-2"]
        created = [here.pod(f"web-{n}").metadata.resource_version for n in range(3)]
        assert len(set(created)) == 3
        pod = here.pod("web-1")
        (revision,) = here.history
        assert pod.metadata.labels == {
            "app": "web",
            "controller-revision-hash": revision.metadata.name,
            "statefulset.kubernetes.io/pod-name": "web-1",
            "apps.kubernetes.io/pod-index": "1",
        }
        assert (pod.spec.hostname, pod.spec.subdomain) == ("web-1", "web")
        status = here.group().status
        assert status.current_revision == status.update_revision == revision.metadata.name
        assert (status.available_replicas, status.collision_count) == (3, 0)
        await until(lambda: len(here.list_events("StatefulSet")) == 3)
        assert here.list_events("StatefulSet") == [
            ("SuccessfulCreate", f"Create Pod web-{n} in StatefulSet web successful")
            for n in range(3)
        ]


async def test_an_update_goes_from_the_top_and_an_undo_renumbers() -> None:
    """A new template replaces pods from the top; a rollback reuses the old revision."""
    async with set_cluster("n1") as here:
        await here.post(StatefulSet, manifest())
        await until(lambda: settled(here, 3))
        first = here.group().status.update_revision
        change = {"spec": {"template": manifest(image="app:2")["spec"]["template"]}}
        await here.patch(StatefulSet, "web", change)
        await until(lambda: settled(here, 3))
        assert set(here.images().values()) == {"app:2"}
        assert here.numbers() == [1, 2]
        assert here.group().status.current_revision != first
        deleted = [note for reason, note in here.list_events("StatefulSet") if "Delete" in reason]
        assert deleted == [f"Delete Pod web-{n} in StatefulSet web successful" for n in (2, 1, 0)]
        back = {"spec": {"template": manifest(image="app:1")["spec"]["template"]}}
        await here.patch(StatefulSet, "web", back)
        await until(lambda: settled(here, 3) and here.group().status.current_revision == first)
        assert here.numbers() == [2, 3]


async def test_adopted_pods_of_an_unknown_revision_are_replaced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Pods of an unknown revision are in no count, and the status follows each step."""
    async with set_cluster("n1") as here:
        for name in ("web-0", "web-1"):
            labels = {"app": "web", "controller-revision-hash": "web-elsewhere"}
            spec = manifest()["spec"]["template"]["spec"]
            await here.post(Pod, {"metadata": {"name": name, "labels": labels}, "spec": spec})
        await until(lambda: all(is_pod_ready(here.pod(name)) for name in ("web-0", "web-1")))
        await here.post(StatefulSet, manifest(replicas=2))
        await until(lambda: settled(here, 2))
        hashes = {
            here.pod(name).metadata.labels["controller-revision-hash"] for name in here.names()
        }
        assert hashes == {here.group().status.update_revision}
    assert "not retried" not in capsys.readouterr().err


async def test_an_empty_set_has_a_revision() -> None:
    """A set with 0 replicas has revision 1."""
    async with set_cluster("n1") as here:
        await here.post(StatefulSet, manifest(replicas=0))
        await until(lambda: here.numbers() == [1] and settled(here, 0))
        assert here.group().status.current_revision == here.group().status.update_revision


def claiming(replicas: int) -> dict[str, Any]:
    """A set whose claims are deleted when it is scaled down."""
    template = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    return manifest(
        replicas=replicas,
        volumeClaimTemplates=[template],
        persistentVolumeClaimRetentionPolicy={"whenDeleted": "Retain", "whenScaled": "Delete"},
        podManagementPolicy="Parallel",
    )


def claim_names(here: SetCluster) -> list[str]:
    """The names of all claims."""
    return sorted(claim.metadata.name for claim in here.claims)


async def test_claims_are_made_and_follow_the_policy() -> None:
    """Every ordinal has its claim; whenScaled Delete makes the removed pod its owner."""
    async with set_cluster("n1") as here:
        await here.post(StatefulSet, claiming(2))
        await until(lambda: here.names() == ["web-0", "web-1"])
        volume = here.pod("web-1").spec.volumes[0]
        assert volume.persistent_volume_claim is not None
        assert volume.persistent_volume_claim.claim_name == "data-web-1"
        await until(lambda: claim_names(here) == ["data-web-0", "data-web-1"])
        claim = here.claims.get(("default", "data-web-1"))
        assert claim is not None
        assert claim.metadata.labels == {"app": "web"}
        await here.patch(StatefulSet, "web", {"spec": {"replicas": 1}})
        await until(lambda: here.names() == ["web-0"])
        await until(lambda: claim_names(here) == ["data-web-0"])


async def test_fast_scaling_leaves_no_claim() -> None:
    """A set that is scaled up and down at once leaves no claim."""
    async with set_cluster("n1") as here:
        await here.post(StatefulSet, claiming(1))
        for replicas in (9, 1, 6, 2):
            await here.patch(StatefulSet, "web", {"spec": {"replicas": replicas}})
            await asyncio.sleep(0.03)
        await until(lambda: here.names() == ["web-0", "web-1"])
        await until(lambda: claim_names(here) == ["data-web-0", "data-web-1"])


async def test_a_failed_pod_is_made_again() -> None:
    """A failed pod is deleted and created again with its name."""
    async with set_cluster("n1") as here:
        await here.post(StatefulSet, manifest(replicas=2))
        await until(lambda: settled(here, 2))
        before = here.pod("web-0").metadata.uid
        failed = {"status": {"phase": "Failed"}}
        await here.client.patch(Pod, "web-0", "default", failed, subresource="status")
        await until(lambda: settled(here, 2) and here.pod("web-0").metadata.uid != before)


async def test_min_ready_seconds_halts_the_set() -> None:
    """With minReadySeconds the second pod waits until the first was ready for that long."""
    async with set_cluster("n1") as here:
        await here.post(StatefulSet, manifest(replicas=2, minReadySeconds=30))
        await until(lambda: here.group().status.ready_replicas == 1)
        assert here.names() == ["web-0"]
        assert here.group().status.available_replicas == 0
        await until(lambda: here.group().status.available_replicas == 2, within=120)


async def test_an_identity_is_restored() -> None:
    """A pod that lost its name label gets it back."""
    async with set_cluster("n1") as here:
        await here.post(StatefulSet, manifest(replicas=1))
        await until(lambda: settled(here, 1))
        label = "statefulset.kubernetes.io/pod-name"
        await here.patch(Pod, "web-0", {"metadata": {"labels": {label: None}}})
        await until(lambda: here.pod("web-0").metadata.labels.get(label) == "web-0")


async def test_a_budget_delays_an_update() -> None:
    """With evictions a budget decides; a refused update continues as soon as it allows."""
    budget = {
        "metadata": {"name": "web"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}},
    }
    async with set_cluster("n1", removal="evict") as here:
        await here.post(StatefulSet, manifest(replicas=2))
        await until(lambda: settled(here, 2))
        await here.post(PodDisruptionBudget, budget)
        change = {"spec": {"template": manifest(image="app:2")["spec"]["template"]}}
        await here.patch(StatefulSet, "web", change)
        await until(lambda: "EvictionRefused" in here.reasons("StatefulSet"))
        assert set(here.images().values()) == {"app:1"}
        await here.patch(PodDisruptionBudget, "web", {"spec": {"minAvailable": 1}})
        await until(lambda: settled(here, 2))
        assert set(here.images().values()) == {"app:2"}


async def test_several_pods_are_updated_together() -> None:
    """With maxUnavailable 2 at most two pods are down at a time."""
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}}
    async with set_cluster("n1") as here:
        body = manifest(replicas=5, podManagementPolicy="Parallel", updateStrategy=rolling)
        await here.post(StatefulSet, body)
        await until(lambda: settled(here, 5))
        down: list[int] = []

        def watch(_: Pod | None, __: Pod | None) -> None:
            leaving = [pod for pod in here.pods if pod.metadata.deletion_timestamp]
            up = [pod for pod in here.pods if is_pod_ready(pod) and pod not in leaving]
            down.append(5 - len(up))

        end = here.pods.on_change(watch)
        change = {"spec": {"template": manifest(image="app:2")["spec"]["template"]}}
        await here.patch(StatefulSet, "web", change)
        await until(lambda: settled(here, 5))
        end()
        assert set(here.images().values()) == {"app:2"}
        assert max(down) == 2


async def test_a_set_created_again_adopts_its_pods() -> None:
    """Pods and revisions that were orphaned are adopted, not replaced."""
    async with set_cluster("n1") as here:
        await here.post(StatefulSet, manifest())
        await until(lambda: settled(here, 3))
        before = {pod.metadata.uid for pod in here.pods}
        await here.client.delete(StatefulSet, "web", "default", propagation="Orphan")
        await until(lambda: all(pod.metadata.controller is None for pod in here.pods))
        await here.post(StatefulSet, manifest())
        await until(lambda: settled(here, 3))
        assert {pod.metadata.uid for pod in here.pods} == before
        assert here.numbers() == [1]


async def test_a_foreground_deletion_ends() -> None:
    """A set that is deleted in the foreground creates no pods."""
    async with set_cluster("n1") as here:
        await here.post(StatefulSet, manifest())
        await until(lambda: settled(here, 3))
        await here.client.delete(StatefulSet, "web", "default", propagation="Foreground")
        await until(lambda: not len(here.sets) and not len(here.pods) and not len(here.history))


@pytest.mark.parametrize("most", [0, "150%", "x", -1])
async def test_a_bad_max_unavailable_is_refused(most: int | str) -> None:
    """The server validates maxUnavailable."""
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": most}}
    async with virtual_cluster({}) as cluster:
        body = msgspec.json.encode(manifest(updateStrategy=rolling))
        with pytest.raises(Invalid, match="maxUnavailable"):
            await cluster.client.raw("POST", StatefulSet.resource.path("default"), body=body)
