"""The kubelets: nodes become Ready, pods run, fail and are removed, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from tests.embedded.virtual_cluster import EPOCH, VirtualCluster, until, virtual_cluster

from zonewise.api.errors import NotFound
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.coordination import Lease
from zonewise.api.objects.core import Node
from zonewise.api.objects.events import Event
from zonewise.api.objects.pod import Pod
from zonewise.embedded.components.kubelet.heartbeats import Heartbeats
from zonewise.embedded.components.kubelet.kubelets import DUAL_STACK, Kubelets, KubeletSettings
from zonewise.embedded.components.kubelet.node_status import FAILED_ANNOTATION, KUBELET_ANNOTATION
from zonewise.embedded.components.kubelet.stages import read_stages
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import Request, Response
from zonewise.runtime.program.context import ControllerContext
from zonewise.runtime.program.program import Program

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

CONTAINER = {"name": "web", "image": "example.invalid/web"}
SIZE = {"cpu": "2", "memory": "1Gi"}


class Scene:
    """A cluster with kubelets."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.cluster = cluster
        self.client = cluster.client
        self.pods = cluster.program.cache.store(Pod)
        self.nodes = cluster.program.cache.store(Node)

    async def node(self, name: str = "n1", **fields: Any) -> None:
        """Create a node and wait until it is Ready."""
        await self.post("nodes", {"metadata": {"name": name}, **fields})
        await until(lambda: bool(self.conditions(self.nodes.get(("", name)))))

    async def pod(self, name: str = "web", *, node: str = "n1", **fields: Any) -> None:
        """Create a pod that is bound to a node."""
        meta = {
            "name": name,
            "annotations": fields.pop("annotations", {}),
            "finalizers": fields.pop("finalizers", []),
        }
        spec = {"nodeName": node, "containers": [CONTAINER], **fields}
        body = {"metadata": meta, "spec": spec}
        await self.post("namespaces/default/pods", body)

    async def post(self, path: str, body: object) -> None:
        await self.client.raw("POST", f"/api/v1/{path}", body=msgspec.json.encode(body))

    async def annotate(self, name: str, **annotations: str | None) -> None:
        marks = {f"zonewise.io/{key}": value for key, value in annotations.items()}
        body = {"metadata": {"annotations": marks}}
        await self.client.patch(Pod, name, "default", body)

    def see(self, name: str = "web") -> Pod:
        return self.pods.get(("default", name)) or Pod()

    async def ready(self, name: str = "web") -> Pod:
        """The pod, as soon as it is ready."""
        await until(lambda: self.conditions(self.see(name)).get("Ready") == "True")
        return self.see(name)

    async def becomes(self, phase: str, name: str = "web") -> Pod:
        await until(lambda: self.see(name).status.phase == phase)
        return self.see(name)

    @staticmethod
    def conditions(item: Pod | Node | None) -> dict[str, str]:
        return (
            {}
            if item is None
            else {condition.type: condition.status for condition in item.status.conditions}
        )


def kubelets(**changes: Any) -> dict[str, Callable[[ControllerContext], Kubelets]]:
    """Kubelets with other settings."""
    return {"kubelets": lambda context: Kubelets(context, KubeletSettings(**changes))}


async def test_a_node_becomes_ready() -> None:
    """A Node that has only a name becomes Ready, with size, labels, address, range and lease."""
    async with virtual_cluster(kubelets()) as cluster:
        scene = Scene(cluster)
        await scene.node()
        node = await cluster.client.get(Node, "n1")
        assert scene.conditions(node) == {
            "Ready": "True",
            "MemoryPressure": "False",
            "DiskPressure": "False",
            "PIDPressure": "False",
        }
        assert node.status.allocatable["cpu"] == "8"
        assert node.metadata.labels["kubernetes.io/hostname"] == "n1"
        assert node.spec.pod_cidrs == ("10.128.0.0/24",)
        assert [address.type for address in node.status.addresses] == ["InternalIP", "Hostname"]
        assert node.status.node_info.kubelet_version.startswith("v1.")
        lease = await cluster.client.get(Lease, "n1", "kube-node-lease")
        assert lease.spec.holder_identity == "n1"
        assert lease.metadata.owner_references[0].name == "n1"
        await asyncio.sleep(31)
        later = await cluster.client.get(Lease, "n1", "kube-node-lease")
        assert later.spec.renew_time != lease.spec.renew_time


async def test_the_fields_of_a_node_are_kept() -> None:
    """Size, labels, address and range of a Node are kept, and missing ones are added."""
    async with virtual_cluster(kubelets()) as cluster:
        scene = Scene(cluster)
        meta = {"name": "n1", "labels": {"kubernetes.io/arch": "arm64"}}
        address = [{"type": "InternalIP", "address": "192.0.2.7"}]
        status = {"capacity": SIZE, "addresses": address}
        await scene.node(
            "n1",
            metadata=meta,
            spec={"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"]},
            status=status,
        )
        await scene.pod()
        pod = await scene.ready()
        node = await cluster.client.get(Node, "n1")
        assert node.status.capacity.items() >= {"cpu": "2", "memory": "1Gi", "pods": "110"}.items()
        assert node.status.allocatable["cpu"] == "2"
        assert node.metadata.labels["kubernetes.io/arch"] == "arm64"
        # Old charts select nodes by the old names.
        assert node.metadata.labels["beta.kubernetes.io/arch"] == "arm64"
        assert node.metadata.labels["beta.kubernetes.io/os"] == "linux"
        assert (pod.status.host_ip, pod.status.pod_ip) == ("192.0.2.7", "10.9.0.2")


async def test_a_node_without_a_kubelet_is_left_alone() -> None:
    """A Node with the annotation, and the pods on it, are not changed."""
    async with virtual_cluster(kubelets()) as cluster:
        scene = Scene(cluster)
        await scene.post(
            "nodes", {"metadata": {"name": "own", "annotations": {KUBELET_ANNOTATION: "none"}}}
        )
        await scene.pod(node="own")
        await scene.node()
        await asyncio.sleep(60)
        assert not scene.conditions(scene.nodes.get(("", "own")))
        assert scene.see().status.phase == "Pending"
        with pytest.raises(NotFound):
            await cluster.client.get(Lease, "own", "kube-node-lease")


async def test_a_bound_pod_becomes_ready_in_one_write() -> None:
    """Without delays a pod is Pending, then ready, without another write."""
    async with virtual_cluster(kubelets()) as cluster:
        scene = Scene(cluster)
        await scene.node()
        seen: list[str] = []
        scene.pods.on_change(lambda _, pod: seen.append(pod.status.phase if pod else "gone"))
        await scene.pod()
        pod = await scene.ready()
        assert seen == ["Pending", "Running"]
        assert set(scene.conditions(pod).values()) == {"True"}
        assert pod.status.pod_ip == "10.128.0.2"
        assert pod.status.container_statuses[0].ready
        await asyncio.sleep(900)
        assert seen == ["Pending", "Running"]
        await cluster.client.delete(Pod, "web", "default")
        await until(lambda: seen[-1] == "gone")


async def test_a_long_start_is_seen_and_times_are_drawn_by_the_seed() -> None:
    """While a pod starts, its containers are being created; the same seed gives the same time."""
    took = [await time_to_start("10s..60s") for _ in range(2)]
    assert took[0] == pytest.approx(took[1])
    assert 10 <= took[0] <= 61


async def time_to_start(after: str) -> float:
    stages = read_stages(f"- {{name: slow, in: [bound], after: {after}, do: start}}", "test")
    async with virtual_cluster(kubelets(stages=stages)) as cluster:
        scene = Scene(cluster)
        await scene.node()
        began = asyncio.get_running_loop().time()
        await scene.pod()
        await until(lambda: bool(scene.see().status.container_statuses))
        waiting = scene.see().status.container_statuses[0].state.waiting
        assert waiting is not None and waiting.reason == "ContainerCreating"
        assert not scene.see().status.pod_ip
        await scene.becomes("Running")
        return asyncio.get_running_loop().time() - began


async def test_annotations_configure_a_pod() -> None:
    """Annotations set how long a pod takes to start and to be ready, and that it is not ready."""
    async with virtual_cluster(kubelets()) as cluster:
        scene = Scene(cluster)
        await scene.node()
        marks = {"zonewise.io/starts-after": "5s", "zonewise.io/ready-after": "20s"}
        await scene.pod(annotations=marks)
        await asyncio.sleep(4)
        assert scene.see().status.phase == "Pending"
        await asyncio.sleep(2)
        assert scene.see().status.phase == "Running"
        assert scene.conditions(scene.see())["Ready"] == "False"
        await asyncio.sleep(20)
        assert scene.conditions(scene.see())["Ready"] == "True"
        await scene.annotate("web", unready="true")
        await until(lambda: scene.conditions(scene.see())["Ready"] == "False")
        message = next(
            condition for condition in scene.see().status.conditions if condition.type == "Ready"
        ).message
        assert message == "containers with unready status: [web]"
        await scene.annotate("web", unready=None)
        await scene.ready()


async def test_an_invalid_annotation_is_ignored() -> None:
    """A pod with an invalid annotation behaves as without it."""
    async with virtual_cluster(kubelets()) as cluster:
        scene = Scene(cluster)
        await scene.node()
        await scene.pod(annotations={"zonewise.io/starts-after": "soon"})
        await scene.ready()


async def test_readiness_gates_are_honoured() -> None:
    """A pod is ready when its containers are and the conditions of its gates are true."""
    async with virtual_cluster(kubelets()) as cluster:
        scene = Scene(cluster)
        await scene.node()
        await scene.pod(readinessGates=[{"conditionType": "example.com/go"}])
        pod = await scene.becomes("Running")
        assert scene.conditions(pod)["ContainersReady"] == "True"
        ready = next(condition for condition in pod.status.conditions if condition.type == "Ready")
        assert (ready.status, ready.reason) == ("False", "ReadinessGatesNotReady")
        for status in ("False", "True"):
            go = {"type": "example.com/go", "status": status}
            body = {"status": {"conditions": [go]}}
            await cluster.client.patch(
                Pod, "web", "default", body, kind="strategic", subresource="status"
            )
            await asyncio.sleep(1)
            assert scene.conditions(scene.see())["Ready"] == status


@pytest.mark.parametrize(
    ("policy", "script", "marks", "phase", "code"),
    [
        ("Never", "", {}, "Succeeded", 0),
        ("OnFailure", "", {}, "Succeeded", 0),
        ("Never", "exit 3", {}, "Failed", 3),
        ("Never", "sleep 30; exit 0", {}, "Succeeded", 0),
        ("Never", "", {"zonewise.io/exit-code": "4"}, "Failed", 4),
    ],
)
async def test_pods_of_jobs_end(
    policy: str, script: str, marks: dict[str, str], phase: str, code: int
) -> None:
    """A pod that is not restarted ends, as its command or an annotation says."""
    async with virtual_cluster(kubelets()) as cluster:
        scene = Scene(cluster)
        await scene.node()
        container = CONTAINER | ({"command": ["sh", "-c", script]} if script else {})
        await scene.pod(restartPolicy=policy, annotations=marks, containers=[container])
        pod = await scene.becomes(phase)
        over = pod.status.container_statuses[0].state.terminated
        assert over is not None and over.exit_code == code
        reason = next(
            condition for condition in pod.status.conditions if condition.type == "Ready"
        ).reason
        assert reason == ("PodFailed" if code else "PodCompleted")
        await asyncio.sleep(600)
        assert scene.see().status.phase == phase


async def test_a_failing_container_is_restarted_with_growing_pauses() -> None:
    """The first restart is immediate, the next after 10 s, then 20 s; an event reports it."""
    async with virtual_cluster(kubelets()) as cluster:
        scene = Scene(cluster)
        await scene.node()
        await scene.pod(containers=[CONTAINER | {"command": ["false"]}])
        counts: dict[int, float] = {}
        now = asyncio.get_running_loop().time

        def counted(_: Pod | None, pod: Pod | None) -> None:
            if pod is not None and pod.status.container_statuses:
                counts.setdefault(pod.status.container_statuses[0].restart_count, now())

        scene.pods.on_change(counted)
        await until(lambda: 3 in counts)
        assert counts[2] - counts[1] == pytest.approx(10, abs=0.1)
        assert counts[3] - counts[2] == pytest.approx(20, abs=0.1)
        status = scene.see().status.container_statuses[0]
        assert status.state.waiting is not None
        assert status.state.waiting.reason == "CrashLoopBackOff"
        assert status.last_state.terminated is not None
        assert scene.see().status.phase == "Running"
        await asyncio.sleep(1)
        reasons = {event.reason for event in await cluster.client.list(Event, "default")}
        assert "BackOff" in reasons


async def test_a_deadline_ends_a_pod() -> None:
    """activeDeadlineSeconds makes a pod fail in any state."""
    async with virtual_cluster(kubelets()) as cluster:
        scene = Scene(cluster)
        await scene.node()
        await scene.pod(activeDeadlineSeconds=30)
        await scene.ready()
        await asyncio.sleep(31)
        assert (scene.see().status.phase, scene.see().status.reason) == (
            "Failed",
            "DeadlineExceeded",
        )


async def test_init_containers_and_sidecars_have_their_state() -> None:
    """Init containers have ended when a pod runs; sidecars keep running."""
    async with virtual_cluster(kubelets()) as cluster:
        scene = Scene(cluster)
        await scene.node()
        first = {"name": "first", "image": "x"}
        await scene.pod(
            initContainers=[first, {"name": "beside", "image": "x", "restartPolicy": "Always"}]
        )
        pod = await scene.ready()
        states = {container.name: container for container in pod.status.init_container_statuses}
        assert states["first"].state.terminated is not None
        assert states["beside"].state.running is not None
        assert states["first"].ready and states["beside"].ready


async def test_a_pod_on_the_host_network_has_its_nodes_address() -> None:
    """hostNetwork pods use no address of the range."""
    async with virtual_cluster(kubelets()) as cluster:
        scene = Scene(cluster)
        await scene.node()
        await scene.pod("host", hostNetwork=True)
        await scene.pod("web")
        host, web = await scene.ready("host"), await scene.ready("web")
        assert host.status.pod_ip == host.status.host_ip == web.status.host_ip
        assert web.status.pod_ip == "10.128.0.2"


async def test_both_families() -> None:
    """Nodes have a range and an address of each family, and so have pods."""
    async with virtual_cluster(
        {"kubelets": lambda context: Kubelets(context, DUAL_STACK)}
    ) as cluster:
        scene = Scene(cluster)
        await scene.node("n1")
        await scene.node("n2")
        await scene.pod(node="n2")
        pod = await scene.ready()
        node = await cluster.client.get(Node, "n2")
        assert node.spec.pod_cidrs == ("10.128.1.0/24", "fd00:10:128:1::/64")
        assert [address.type for address in node.status.addresses] == ["InternalIP"] * 2 + [
            "Hostname"
        ]
        assert [address.ip for address in pod.status.pod_ips] == ["10.128.1.2", "fd00:10:128:1::2"]
        assert len(pod.status.host_ips) == 2


async def test_a_pod_outlives_its_node_object() -> None:
    """A Node that is created again may have other addresses; its pods keep running and can be
    deleted.
    """
    async with virtual_cluster(
        {"kubelets": lambda context: Kubelets(context, DUAL_STACK)}
    ) as cluster:
        scene = Scene(cluster)
        await scene.node()
        await scene.pod()
        before = await scene.ready()
        await cluster.client.delete(Node, "n1", None)
        await until(lambda: scene.nodes.get(("", "n1")) is None)
        await scene.node()
        await cluster.client.delete(Pod, "web", "default")
        await until(lambda: scene.pods.get(before.key) is None)


async def test_deletion_takes_its_time_and_no_longer_than_its_grace() -> None:
    """A deleted pod runs until it stops by itself, or until its grace period ends."""
    async with virtual_cluster(kubelets()) as cluster:
        scene = Scene(cluster)
        await scene.node()
        for name, stop, grace in (("quick", "5s", 30), ("stubborn", "1h", 10)):
            await scene.pod(
                name,
                annotations={"zonewise.io/stops-after": stop},
                terminationGracePeriodSeconds=grace,
            )
            await scene.ready(name)
            await cluster.client.delete(Pod, name, "default")
        await asyncio.sleep(4)
        assert scene.conditions(scene.see("quick"))["Ready"] == "True"
        await asyncio.sleep(2)
        assert ("default", "quick") not in scene.pods
        assert ("default", "stubborn") in scene.pods
        await asyncio.sleep(5)
        assert ("default", "stubborn") not in scene.pods


async def test_a_pod_with_a_huge_grace_period_can_be_deleted() -> None:
    """A pod with the largest grace period is deleted when its containers stop."""
    async with virtual_cluster(kubelets()) as cluster:
        scene = Scene(cluster)
        await scene.node()
        await scene.pod(terminationGracePeriodSeconds=2**63 - 1)
        await scene.ready()
        await cluster.client.delete(Pod, "web", "default")
        await until(lambda: ("default", "web") not in scene.pods)


@pytest.mark.parametrize(
    ("fields", "reached", "state", "code"),
    [
        ({}, "ready", "terminated", 143),
        ({"restartPolicy": "Never"}, "ready", "terminated", 143),
        ({"annotations": {"zonewise.io/starts-after": "never"}}, "bound", "terminated", 137),
        (
            {
                "annotations": {"zonewise.io/starts-after": "never"},
                "initContainers": [{"name": "first", "image": "example.invalid/first"}],
            },
            "bound",
            "waiting",
            None,
        ),
        (
            {"annotations": {"zonewise.io/runs-for": "1s", "zonewise.io/exit-code": "7"}},
            "ended",
            "terminated",
            7,
        ),
    ],
)
async def test_the_last_status_of_a_deleted_pod(
    fields: dict[str, Any], reached: str, state: str, code: int | None
) -> None:
    """Watchers see a deleted pod not ready with ended containers, and then its deletion."""
    async with virtual_cluster(kubelets()) as cluster:
        scene = Scene(cluster)
        await scene.node()
        container = {**CONTAINER, "command": ["sleep", "3600"]}
        await scene.pod(**{"containers": [container], **fields})
        far = {
            "bound": lambda: scene.conditions(scene.see()).get("Ready") == "False",
            "ready": lambda: scene.conditions(scene.see()).get("Ready") == "True",
            "ended": lambda: any(
                container.state.waiting is not None and container.restart_count
                for container in scene.see().status.container_statuses
            ),
        }
        await until(far[reached])
        seen: list[Pod | None] = []
        scene.pods.on_change(lambda _, new: seen.append(new))
        await cluster.client.delete(Pod, "web", "default")
        await until(lambda: bool(seen) and seen[-1] is None)
        last = seen[-2]
        assert last is not None
        assert last.metadata.deletion_timestamp is not None
        assert last.status.phase == "Failed"
        conditions = {
            condition.type: (condition.status, condition.reason)
            for condition in last.status.conditions
        }
        assert conditions["Ready"] == conditions["ContainersReady"] == ("False", "PodFailed")
        assert conditions["PodReadyToStartContainers"][0] == "False"
        (status,) = last.status.container_statuses
        assert not status.ready
        if state == "waiting":
            assert status.state.waiting is not None
            assert conditions["Initialized"][0] == "False"
        else:
            assert status.state.terminated is not None
            assert status.state.terminated.exit_code == code


async def test_a_held_pod_ends_before_it_goes() -> None:
    """A pod with a finalizer gets an ended status; it is removed with its finalizer."""
    async with virtual_cluster(kubelets()) as cluster:
        scene = Scene(cluster)
        await scene.node()
        await scene.pod(
            finalizers=["example.com/count"],
            restartPolicy="Never",
            annotations={"zonewise.io/runs-for": "never"},
        )
        await scene.ready()
        await cluster.client.delete(Pod, "web", "default")
        pod = await scene.becomes("Failed")
        assert pod.metadata.finalizers == ("example.com/count",)
        over = pod.status.container_statuses[0].state.terminated
        assert over is not None and over.exit_code == 143
        await cluster.client.patch(Pod, "web", "default", {"metadata": {"finalizers": None}})
        await until(lambda: ("default", "web") not in scene.pods)


async def test_addresses_outlive_the_process() -> None:
    """New kubelets over running pods change nothing, and assign no address twice."""
    async with virtual_cluster({}) as cluster:
        before = await addresses(cluster, "a", "b")
        after = await addresses(cluster, "c")
        assert after[:2] == before
        assert [pair[1] for pair in after] == ["10.128.0.2", "10.128.0.3", "10.128.0.4"]


async def addresses(cluster: VirtualCluster, *names: str) -> list[tuple[str, str]]:
    """Start kubelets and some pods, stop them, and return all pods' versions and addresses."""
    loop = asyncio.get_running_loop()
    components = Program(
        cluster.server.connect, clock=lambda: EPOCH + loop.time(), rng=random.Random(2)
    )
    components.add("kubelets", Kubelets)
    scene = Scene(replace(cluster, program=components))
    work = asyncio.create_task(components.run())
    try:
        if names[0] == "a":
            await scene.node()
        for name in names:
            await scene.pod(name)
            await scene.ready(name)
        await asyncio.sleep(5)
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    pods = await cluster.client.list(Pod)
    return [(pod.metadata.resource_version, pod.status.pod_ip) for pod in pods]


async def test_a_full_range_makes_pods_wait() -> None:
    """A pod without a free address has an event, and runs when one is free."""
    small = replace(KubeletSettings(), pod_networks=("192.0.2.0/30",), node_cidr_mask_sizes=(30,))
    async with virtual_cluster({"kubelets": lambda context: Kubelets(context, small)}) as cluster:
        scene = Scene(cluster)
        await scene.node()
        await scene.pod("first")
        assert (await scene.ready("first")).status.pod_ip == "192.0.2.2"
        await scene.pod("second")
        await asyncio.sleep(1)
        assert scene.see("second").status.phase == "Pending"
        reasons = {event.reason for event in await cluster.client.list(Event, "default")}
        assert reasons == {"FailedCreatePodSandBox"}
        await cluster.client.delete(Pod, "first", "default")
        assert (await scene.ready("second")).status.pod_ip == "192.0.2.2"


async def test_a_failed_node_is_silent_until_it_heals() -> None:
    """On a failed node there are no heartbeats, starts and ends; after healing they follow."""
    async with virtual_cluster(kubelets()) as cluster:
        scene = Scene(cluster)
        await scene.node()
        await scene.pod("old")
        await scene.ready("old")
        fail = {"metadata": {"annotations": {FAILED_ANNOTATION: "test"}}}
        await cluster.client.patch(Node, "n1", None, fail)
        await scene.pod("new")
        await cluster.client.delete(Pod, "old", "default")
        await asyncio.sleep(40)
        lease = await cluster.client.get(Lease, "n1", "kube-node-lease")
        await asyncio.sleep(60)
        assert (await cluster.client.get(Lease, "n1", "kube-node-lease")) == lease
        assert ("default", "old") in scene.pods
        assert scene.see("new").status.phase == "Pending"
        heal = {"metadata": {"annotations": {FAILED_ANNOTATION: None}}}
        await cluster.client.patch(Node, "n1", None, heal)
        await scene.ready("new")
        await until(lambda: ("default", "old") not in scene.pods)
        assert (await cluster.client.get(Lease, "n1", "kube-node-lease")) != lease


async def test_a_node_created_again_starts_from_scratch() -> None:
    """A Node of the same name gets a lease of its own and its pods run."""
    async with virtual_cluster(kubelets()) as cluster:
        scene = Scene(cluster)
        await scene.node()
        await cluster.client.delete(Node, "n1")
        await until(lambda: not scene.nodes.values())
        await scene.node()
        await scene.pod()
        await scene.ready()
        await asyncio.sleep(120)
        lease = await cluster.client.get(Lease, "n1", "kube-node-lease")
        node = await cluster.client.get(Node, "n1")
        assert lease.metadata.owner_references[0].uid == node.metadata.uid


async def test_a_pod_that_outlives_its_node_keeps_its_address() -> None:
    """A range that passes to another node is assigned without the addresses of its old pods."""
    async with virtual_cluster(kubelets()) as cluster:
        scene = Scene(cluster)
        first, second = (
            {"podCIDR": cidr, "podCIDRs": [cidr]} for cidr in ("10.9.0.0/24", "10.9.1.0/24")
        )
        await scene.node(spec=first)
        await scene.pod("old")
        old_address = (await scene.ready("old")).status.pod_ip
        await cluster.client.delete(Node, "n1")
        await scene.node(spec=second)
        await scene.node("n2", spec=first)
        await scene.pod("new", node="n2")
        assert (await scene.ready("new")).status.pod_ip == "10.9.0.3"
        assert scene.see("old").status.pod_ip == old_address == "10.9.0.2"


async def test_many_nodes_have_ranges_and_addresses_of_their_own() -> None:
    """No two nodes or pods have the same address."""
    async with virtual_cluster(kubelets()) as cluster:
        scene = Scene(cluster)
        names = [f"n{number}" for number in range(40)]
        await asyncio.gather(
            *(cluster.client.create(Node(metadata=ObjectMeta(name=name))) for name in names)
        )
        await asyncio.gather(*(scene.pod(f"{name}-{i}", node=name) for name in names for i in "ab"))
        await until(lambda: len(scene.pods) == 80 and all(pod.status.pod_ip for pod in scene.pods))
        nodes = scene.nodes.values()
        assert len({node.spec.pod_cidrs for node in nodes}) == 40
        assert len({node.status.addresses[0].address for node in nodes}) == 40
        assert len({pod.status.pod_ip for pod in scene.pods}) == 80


LEASE = b'{"metadata": {"name": "one"}}'


class Slow:
    """A transport that takes five seconds for each request, and records their times."""

    def __init__(self) -> None:
        self.seen: dict[str, list[float]] = {}

    async def send(self, request: Request) -> Response:
        loop = asyncio.get_running_loop()
        self.seen.setdefault(request.path, []).append(loop.time())
        await asyncio.sleep(5)
        return LeaseAnswer()

    async def close(self) -> None:
        """Nothing to end."""


class LeaseAnswer:
    """An answer."""

    status = 200
    headers: Mapping[str, str] = {"Content-Type": "application/json"}

    async def read(self) -> bytes:
        return LEASE

    async def chunks(self) -> AsyncIterator[bytes]:
        yield LEASE

    async def close(self) -> None:
        """Nothing to end."""


async def test_slow_renewals_delay_no_other_node() -> None:
    """With renewals that are slower than their interval, every node is still renewed in time."""
    slow = Slow()
    loop = asyncio.get_running_loop()
    beats = Heartbeats(Client(slow), clock=loop.time, period=30.0, duration=40)
    await asyncio.gather(*(beats.add(f"n{number}", "uid") for number in range(60)))
    work = asyncio.create_task(beats.run())
    await asyncio.sleep(300)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert len(slow.seen) == 60
    for moments in slow.seen.values():
        assert max(b - a for a, b in pairwise(moments)) < 40
