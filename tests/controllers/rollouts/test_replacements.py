"""New pods of a rollout by domain start in the open domain, on a whole embedded cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.controllers.rollouts.rollout_scene import (
    ZONE,
    Obj,
    Zones,
    begin,
    complete,
    finish,
    get_rollout,
    until,
    update,
    workload,
)
from tests.embedded.virtual_cluster import until as true
from tests.embedded.whole_cluster import settled, whole

from zonewise.api import Node, Pod
from zonewise.api.errors import Forbidden, Status
from zonewise.api.objects.apps import Deployment
from zonewise.api.objects.budgets import DomainRollout
from zonewise.api.objects.events import Event
from zonewise.api.objects.pod_state import is_pod_active
from zonewise.disruption.rollouts.replacements import DOMAIN_ANNOTATION, is_held, sent_to
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.embedded.components.kubelet.node_status import FAILED_ANNOTATION
from zonewise.embedded.seed.nodes import NodeLayout
from zonewise.runtime.client.client import Client

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

ORDER = {"order": {"domains": ["b", "c", "a"]}}
EVEN = {("a", "c:2"): 2, ("b", "c:2"): 2, ("c", "c:2"): 2}


def surging(surge: int | str, unavailable: int = 0, *, spread: str = "ScheduleAnyway") -> Obj:
    """A Deployment of six pods, spread anew by each revision."""
    rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
    body = workload("Deployment", strategy={"type": "RollingUpdate", "rollingUpdate": rolling})
    constraint = body["spec"]["template"]["spec"]["topologySpreadConstraints"][0]
    constraint |= {"whenUnsatisfiable": spread, "matchLabelKeys": ["pod-template-hash"]}
    return body


class Strays:
    """New pods that were bound to a zone which was not open."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.bound: list[tuple[str, str]] = []
        self._rollouts = cluster.program.cache.store(DomainRollout)
        cluster.program.cache.store(Pod).on_change(self._changed)

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        is_new = old is None or not old.spec.node_name
        if (
            new is None
            or not new.spec.node_name
            or not is_new
            or (new.spec.containers or ())[0].image != "c:2"
        ):
            return
        (rollout,) = self._rollouts
        if new.spec.node_name[0] != rollout.status.domain:
            self.bound.append((new.spec.node_name, rollout.status.domain))


@pytest.mark.parametrize(
    ("surge", "unavailable", "spread"),
    [
        (2, 0, "ScheduleAnyway"),
        (3, 0, "DoNotSchedule"),
        ("50%", 2, "ScheduleAnyway"),
        ("100%", 0, "DoNotSchedule"),
    ],
)
async def test_surges_start_in_the_open_zone(surge: int, unavailable: int, spread: str) -> None:
    """Whatever the surge and the spread, every new pod starts in the zone that is open, so each
    zone takes seconds, and at the end each has as many pods as before.
    """
    async with whole(
        [*NodeLayout().nodes(), surging(surge, unavailable, spread=spread)]
    ) as cluster:
        zones = await begin(cluster, "Deployment", **ORDER)
        strays = Strays(cluster)
        begun = asyncio.get_running_loop().time()
        await update(cluster, "Deployment")
        await finish(cluster)
        assert asyncio.get_running_loop().time() - begun < 30
        assert strays.bound == []
        assert zones.order == ["b", "c", "a"]
        assert not zones.together
        assert zones.images() == EVEN


async def filled(cluster: EmbeddedCluster, zone: str) -> None:
    """Take all CPU of a zone that is left."""
    for node in await cluster.client.list(Node):
        if node.metadata.name[0] == zone:
            body: Obj = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"filler-{node.metadata.name}", "namespace": "default"},
                "spec": {
                    "nodeName": node.metadata.name,
                    "containers": [
                        {
                            "name": "c",
                            "image": "filler",
                            "resources": {"requests": {"cpu": node.status.allocatable["cpu"]}},
                        }
                    ],
                },
            }
            assert not await cluster.seeder.create([body])


def greedy(body: Obj) -> Obj:
    """Pods that request CPU."""
    for container in body["spec"]["template"]["spec"]["containers"]:
        container["resources"] = {"requests": {"cpu": "1"}}
    return body


async def test_without_room_it_waits_and_says_so() -> None:
    """A surge that has no room in the open zone waits, with a reason and the scheduler's numbers;
    no pod is disrupted meanwhile, and none is created in vain. With room it goes on.
    """
    async with whole([*NodeLayout().nodes(), greedy(surging(2))]) as cluster:
        zones = await begin(cluster, "Deployment", **ORDER)
        await filled(cluster, "b")
        body: Obj = {
            "spec": {
                "template": {
                    "spec": {
                        "containers": [
                            {
                                "name": "c",
                                "image": "c:2",
                                "resources": {"requests": {"cpu": "1"}},
                            }
                        ]
                    }
                }
            }
        }
        await cluster.client.patch(Deployment, "foo", "default", body)
        item = await until(cluster, lambda item: item.status.reason == "NoRoomInDomain")
        (condition,) = [each for each in item.status.conditions if each.type == "Progressing"]
        assert condition.status == "False"
        assert condition.message == (
            "Deployment foo: 2 pods wait for room in domain b: 0/3 nodes are available: 3"
            " Insufficient cpu. It continues when a node of that domain has room: add one, or set"
            " maxSurge: 0 and a maxUnavailable, so that old pods make room."
        )
        version = (await get_rollout(cluster)).metadata.resource_version
        pods = {pod.metadata.uid for pod in await cluster.client.list(Pod, "default")}
        await asyncio.sleep(600)
        assert {pod.metadata.uid for pod in await cluster.client.list(Pod, "default")} == pods
        assert (await get_rollout(cluster)).metadata.resource_version == version
        for pod in await cluster.client.list(Pod, "default"):
            if pod.metadata.name.startswith("filler"):
                await cluster.client.delete(Pod, pod.metadata.name, "default")
        await until(cluster, complete)
        assert zones.order == ["b", "c", "a"]
        counts = dict(zones.images())
        assert counts == EVEN


async def test_pods_that_wait_start_when_the_rollout_is_deleted() -> None:
    """Without the rollout nothing holds a pod any more."""
    async with whole([*NodeLayout().nodes(), surging(6)]) as cluster:
        await begin(cluster, "Deployment", paused=True)
        await update(cluster, "Deployment")
        await true(lambda: len(waiting(cluster)) == 6, within=60)
        await asyncio.sleep(60)
        assert len(waiting(cluster)) == 6
        await cluster.client.delete(DomainRollout, "foo", "default")
        await settled(cluster)
        assert Zones(cluster).images().total() == 6
        assert {image for _, image in Zones(cluster).images()} == {"c:2"}


async def test_pods_that_wait_survive_a_restart(tmp_path: Path) -> None:
    """Another process continues with the pods that the first one left waiting, also if the rollout
    was deleted in between.
    """
    async with whole([*NodeLayout().nodes(), surging(6)], folder=tmp_path) as cluster:
        await begin(cluster, "Deployment", paused=True)
        await update(cluster, "Deployment")
        await true(lambda: len(waiting(cluster)) == 6, within=60)
        await until(cluster, lambda item: item.status.reason == "Paused")
    async with whole([], folder=tmp_path) as cluster:
        await cluster.client.patch(
            DomainRollout, "foo", "default", {"spec": {"paused": False, **ORDER}}
        )
        await until(cluster, complete)
        assert Zones(cluster).images() == EVEN


@pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
async def test_ordinals_return_to_their_zone(policy: str) -> None:
    """A StatefulSet without volumes or a spread keeps its pods per zone."""
    body = workload("StatefulSet")
    body["spec"]["podManagementPolicy"] = policy
    async with whole([*NodeLayout().nodes(), body]) as cluster:
        zones = await begin(cluster, "StatefulSet", **ORDER)
        strays = Strays(cluster)
        await update(cluster, "StatefulSet")
        await finish(cluster)
        assert strays.bound == []
        assert zones.order == ["b", "c", "a"]
        assert zones.images() == EVEN


async def test_a_gate_of_another_controller_stays() -> None:
    """Where the template has a gate of its own, the pod is sent to the zone and waits for that."""
    body = surging(1)
    async with whole([*NodeLayout().nodes(), body]) as cluster:
        await begin(cluster, "Deployment", **ORDER)
        other = "example.com/gate"
        change: Any = {"spec": {"template": {"spec": {"schedulingGates": [{"name": other}]}}}}
        await cluster.client.patch(Deployment, "foo", "default", change)

        def released() -> list[Pod]:
            pods = cluster.program.cache.store(Pod)
            gates = ((pod, [gate.name for gate in pod.spec.scheduling_gates]) for pod in pods)
            return [pod for pod, names in gates if names == [other] and pod.spec.affinity]

        await true(lambda: len(released()) == 1, within=60)
        assert not waiting(cluster)
        (pod,) = released()
        patch = {"spec": {"schedulingGates": None}}
        await cluster.client.patch(Pod, pod.metadata.name, "default", patch)
        await true(
            lambda: any(
                other.spec.node_name.startswith("b") and other.metadata.name == pod.metadata.name
                for other in cluster.program.cache.store(Pod)
            ),
            within=60,
        )


async def test_a_pod_whose_zone_fails_is_replaced() -> None:
    """A pod that was sent to a zone which fails before it has a node is evicted; its successor
    starts anywhere once the zone's pods are given up.
    """
    async with whole([*NodeLayout().nodes(), surging(1)]) as cluster:
        await begin(cluster, "Deployment", **ORDER)
        other = "example.com/gate"
        change: Any = {"spec": {"template": {"spec": {"schedulingGates": [{"name": other}]}}}}
        await cluster.client.patch(Deployment, "foo", "default", change)
        store = cluster.program.cache.store(Pod)
        await true(lambda: any(sent_to(pod) == "b" for pod in store), within=60)
        for node in await cluster.client.list(Node):
            if node.metadata.name[0] == "b":
                failed = {"metadata": {"annotations": {FAILED_ANNOTATION: "yes"}}}
                await cluster.client.patch(Node, node.metadata.name, None, failed)

        def replaced() -> bool:
            pods = [pod for pod in store if pod.spec.scheduling_gates]
            return bool(pods) and all(sent_to(pod) is None and not is_held(pod) for pod in pods)

        await true(replaced, within=900)


async def test_a_pod_that_may_not_be_released_holds_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where an admission webhook refuses the release of one pod, the others start in their zones,
    the rollout says what refused it, and goes on once it is allowed.
    """
    denied: set[str] = set()
    tries: list[float] = []
    patch = Client.patch

    async def deny(self: Client, cls: Any, name: str, *more: Any, **options: Any) -> Any:
        if cls is Pod and "schedulingGates" in more[1].get("spec", {}):
            if not tries:
                denied.add(name)
            if name in denied:
                tries.append(asyncio.get_running_loop().time())
                raise Forbidden(Status(message='webhook "policy.example.com" denied the request'))
        return await patch(self, cls, name, *more, **options)

    monkeypatch.setattr(Client, "patch", deny)
    async with whole([*NodeLayout().nodes(), surging("100%")]) as cluster:
        zones = await begin(cluster, "Deployment", **ORDER)
        await update(cluster, "Deployment")
        item = await until(cluster, lambda item: item.status.reason == "ReleaseRefused")
        (condition,) = [each for each in item.status.conditions if each.type == "Progressing"]
        (name,) = denied
        assert condition.status == "False"
        assert condition.message == (
            f"Deployment foo: pod {name} waits, because the API server does not let it be sent to"
            ' domain b: webhook "policy.example.com" denied the request. It is tried again every'
            " minute: let the account of Zonewise's controller change pods here (an admission"
            " webhook, a policy or a missing role refuses it)."
        )
        await asyncio.sleep(300)
        assert [pod.metadata.name for pod in waiting(cluster)] == [name]
        assert len(tries) < 8
        denied.clear()
        await until(cluster, complete)
        assert zones.images() == EVEN


async def test_without_a_rollout_too_one_refusal_holds_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pods that wait for a rollout that is deleted start, apart from one that may not be released:
    an event of it says why, and it starts once it is allowed.
    """
    patch = Client.patch
    denied: set[str] = set()

    async def deny(self: Client, cls: Any, name: str, *more: Any, **options: Any) -> Any:
        if name in denied:
            raise Forbidden(Status(message="no"))
        return await patch(self, cls, name, *more, **options)

    monkeypatch.setattr(Client, "patch", deny)
    async with whole([*NodeLayout().nodes(), surging(6)]) as cluster:
        await begin(cluster, "Deployment", paused=True)
        await update(cluster, "Deployment")
        await true(lambda: len(waiting(cluster)) == 6, within=60)
        name = min(pod.metadata.name for pod in waiting(cluster))
        denied.add(name)
        await cluster.client.delete(DomainRollout, "foo", "default")
        await true(lambda: [pod.metadata.name for pod in waiting(cluster)] == [name], within=60)
        await asyncio.sleep(5)
        events = await cluster.client.list(Event, "default")
        notes = [event.note or "" for event in events if event.reason == "ReleaseRefused"]
        assert [note.partition(",")[0] for note in notes] == [
            f"no DomainRollout holds it: pod {name} waits"
        ]
        denied.clear()
        await true(lambda: not waiting(cluster), within=90)


def requiring(body: Obj, *terms: Obj) -> Obj:
    """Pods that have required node affinity terms of their own."""
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    body["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": required}
    return body


@pytest.mark.parametrize(("old_nodes", "order"), [(1, ["b", "c", "a"]), (3, ["b"])])
async def test_pods_with_terms_of_their_own_go_where_nodes_have_either_label(
    old_nodes: int, order: list[str]
) -> None:
    """Where nodes have only the old label of their zone, pods that require something of nodes are
    sent by that label or by the present one, as the nodes with room have it.
    """
    nodes = list(NodeLayout().nodes())
    for node in [node for node in nodes if node["metadata"]["name"][0] == "b"][:old_nodes]:
        labels = node["metadata"]["labels"]
        labels["failure-domain.beta.kubernetes.io/zone"] = labels.pop(ZONE)
    body = requiring(
        surging(2),
        {"matchExpressions": [{"key": "example.com/slow", "operator": "DoesNotExist"}]},
    )
    if old_nodes == 3:
        # Else the spread would leave them out; without it all pods are there.
        del body["spec"]["template"]["spec"]["topologySpreadConstraints"]
    async with whole([*nodes, body]) as cluster:
        zones = await begin(cluster, "Deployment", **ORDER)
        strays = Strays(cluster)
        await update(cluster, "Deployment")
        await finish(cluster)
        assert strays.bound == []
        assert zones.order == order
        assert zones.ready() == zones.full


async def test_an_annotation_of_the_template_stops_nothing() -> None:
    """Pods whose template says that they were sent to a zone go where they belong all the same."""
    body = surging(2)
    body["spec"]["template"]["metadata"]["annotations"][DOMAIN_ANNOTATION] = "b"
    async with whole([*NodeLayout().nodes(), body]) as cluster:
        zones = await begin(cluster, "Deployment", **ORDER)
        await update(cluster, "Deployment")
        await finish(cluster)
        assert zones.order == ["b", "c", "a"]
        assert zones.images() == EVEN


def waiting(cluster: EmbeddedCluster) -> list[Pod]:
    """The pods that are held."""
    store = cluster.program.cache.store(Pod)
    return [pod for pod in store if is_pod_active(pod) and is_held(pod)]
