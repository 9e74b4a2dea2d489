"""Our kubelets on the real control plane, as clients of the cluster see their nodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tools.realkube import ControlPlane
from tools.realkube.kubelet import FakeKubelet, FakeNode, nodes_in

from zonewise.api.errors import NotFound
from zonewise.api.objects.core import Node, Taint
from zonewise.api.objects.discovery import EndpointSlice
from zonewise.api.objects.pod import Pod
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config

POD_TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {"name": "web", "image": "example.invalid/web", "ports": [{"containerPort": 80}]}
        ],
    },
}
WEB: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {
                "replicas": 4,
                "selector": {"matchLabels": {"app": "web"}},
                "template": POD_TEMPLATE,
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
        },
    ],
}


class Scene:
    """A namespace of the shared control plane, and functions to act in it."""

    def __init__(self, plane: ControlPlane, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self._plane = plane

    async def kubectl(self, *arguments: str, stdin: object = None) -> str:
        text = None if stdin is None else json.dumps(stdin)
        call = ("-n", self.namespace, *arguments)
        done = await asyncio.to_thread(self._plane.kubectl, *call, stdin=text)
        return done.stdout

    async def pods(self) -> list[Pod]:
        return [*await self.client.list(Pod, self.namespace)]

    async def endpoints(self) -> dict[str, tuple[bool | None, bool | None, bool | None]]:
        """Address to ready, serving and terminating, over all slices."""
        slices = await self.client.list(EndpointSlice, self.namespace)
        states = {}
        for endpoint_slice in slices:
            for endpoint in endpoint_slice.endpoints or ():
                state = endpoint.conditions
                for address in endpoint.addresses or ():
                    states[address] = (state.ready, state.serving, state.terminating)
        return states


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(60):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.02)


@pytest.fixture
async def scene(realkube: ControlPlane, request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    namespace = request.node.name.replace("_", "-")[:60].rstrip("-")
    async with Client(HttpsTransport(load_config(realkube.kubeconfig))) as client:
        scene = Scene(realkube, client, namespace)
        await scene.kubectl("create", "namespace", namespace)
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"

        async def exists() -> bool:
            return (await asyncio.to_thread(realkube.request, "GET", account))[0] == 200

        await until(exists)
        yield scene
        await scene.kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.mark.real
async def test_pods_of_a_deployment_become_ready(scene: Scene) -> None:
    """Scheduled pods run, get their own addresses, and become endpoints of the Service."""
    async with FakeKubelet(scene.client, nodes_in("a", "b", each=2)):
        await scene.kubectl("apply", "-f", "-", stdin=WEB)
        await scene.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
        pods = await scene.pods()
        addresses = {pod.status.pod_ip for pod in pods}
        assert len(addresses) == 4
        assert all(pod.status.phase == "Running" for pod in pods)
        hosts = {pod.spec.node_name: pod.status.host_ip for pod in pods}
        assert len(set(hosts.values())) == len(hosts)

        async def all_served() -> bool:
            want = dict.fromkeys(addresses, (True, True, False))
            return await scene.endpoints() == want

        await until(all_served)
        zones = {pod.metadata.labels["topology.kubernetes.io/zone"] for pod in pods}
        assert zones == {"a", "b"}
        await scene.kubectl("delete", "deployment,service", "web", "--wait")


@pytest.mark.real
async def test_readiness_can_be_flipped(scene: Scene) -> None:
    """A pod made unready leaves the serving endpoints, and comes back with its address."""
    async with FakeKubelet(scene.client, nodes_in("a")) as kubelet:
        await scene.kubectl("apply", "-f", "-", stdin=WEB)
        await scene.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
        victim = (await scene.pods())[0]
        for ready in (False, True):
            await kubelet.set_ready(scene.namespace, victim.metadata.name, ready)

            async def seen(ready: bool = ready) -> bool:
                state = (await scene.endpoints()).get(victim.status.pod_ip)
                return state == (ready, ready, False)

            await until(seen)
        pod = await scene.client.get(Pod, victim.metadata.name, scene.namespace)
        assert pod.status.pod_ip == victim.status.pod_ip
        assert pod.status.start_time == victim.status.start_time
        assert {
            condition.reason for condition in pod.status.conditions if condition.type == "Ready"
        } == {""}


@pytest.mark.real
async def test_deleted_pods_go_after_a_while(scene: Scene) -> None:
    """A deleted pod is terminating and still serving until its time is up, then it is gone."""
    async with FakeKubelet(scene.client, nodes_in("a"), stopping="1s"):
        await scene.kubectl("apply", "-f", "-", stdin=WEB)
        await scene.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
        victim = (await scene.pods())[0]
        await scene.client.delete(Pod, victim.metadata.name, scene.namespace)

        async def terminating() -> bool:
            return (await scene.endpoints()).get(victim.status.pod_ip) == (False, True, True)

        await until(terminating)

        async def gone() -> bool:
            try:
                await scene.client.get(Pod, victim.metadata.name, scene.namespace)
            except NotFound:
                return True
            return False

        await until(gone)


@pytest.mark.real
async def test_pods_that_never_get_ready(scene: Scene) -> None:
    """Pods that are set to never be ready stay unready, and readiness gates are respected."""
    gated = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "gated"},
        "spec": POD_TEMPLATE["spec"] | {"readinessGates": [{"conditionType": "example.com/go"}]},
    }
    unready = {"name": "refused", "annotations": {"zonewise.io/unready": "true"}}
    refused = gated | {"metadata": unready, "spec": POD_TEMPLATE["spec"]}

    async with FakeKubelet(scene.client, nodes_in("a")):
        await scene.kubectl("apply", "-f", "-", stdin=gated)
        await scene.kubectl("apply", "-f", "-", stdin=refused)
        await scene.kubectl("wait", "pod/gated", "--for=condition=ContainersReady", "--timeout=60s")
        await scene.kubectl(
            "wait", "pod/refused", "--for=condition=ContainersReady=false", "--timeout=60s"
        )
        for pod in await scene.pods():
            state = {condition.type: condition.status for condition in pod.status.conditions}
            assert (pod.status.phase, state["Ready"]) == ("Running", "False")
        condition = {"type": "example.com/go", "status": "True"}
        await scene.client.patch(
            Pod,
            "gated",
            scene.namespace,
            {"status": {"conditions": [condition]}},
            kind="strategic",
            subresource="status",
        )
        await scene.kubectl("wait", "pod/gated", "--for=condition=Ready", "--timeout=60s")


@pytest.mark.real
async def test_nodes_come_and_go(scene: Scene) -> None:
    """Nodes are Ready with zone, size, address and lease, and leave nothing when removed."""
    node = FakeNode(
        name="big",
        zone="z",
        labels={"example.com/rack": "r1"},
        taints=(Taint(key="example.com/only", effect="NoSchedule"),),
        cpu="96",
    )
    async with FakeKubelet(scene.client, [node], heartbeat=0.05):
        await scene.kubectl("wait", "node/big", "--for=condition=Ready", "--timeout=60s")
        seen = await scene.client.get(Node, "big")
        assert seen.metadata.labels.items() >= {
            ("topology.kubernetes.io/zone", "z"),
            ("example.com/rack", "r1"),
            ("kubernetes.io/hostname", "big"),
        }
        assert seen.status.allocatable["cpu"] == "96"
        assert [address.type for address in seen.status.addresses] == ["InternalIP", "Hostname"]

        async def only_ours() -> bool:
            taints = (await scene.client.get(Node, "big")).spec.taints
            return [taint.key for taint in taints] == ["example.com/only"]

        await until(only_ours)
        query = ("-n", "kube-node-lease", "get", "lease", "big", "-o", "jsonpath={.spec.renewTime}")
        first = await scene.kubectl(*query)

        async def renewed() -> bool:
            return await scene.kubectl(*query) != first

        await until(renewed)
    with pytest.raises(NotFound):
        await scene.client.get(Node, "big")
    leases = await scene.kubectl("-n", "kube-node-lease", "get", "leases", "-o", "name")
    assert "big" not in leases


def test_nodes_in_zones() -> None:
    """Nodes are named by zone and number, and carry their zone as a label."""
    nodes = nodes_in("a", "b", each=2)
    assert [(node.name, node.zone) for node in nodes] == [
        ("node-a-0", "a"),
        ("node-a-1", "a"),
        ("node-b-0", "b"),
        ("node-b-1", "b"),
    ]
    assert nodes[0].object().metadata.labels == {"topology.kubernetes.io/zone": "a"}
    assert not FakeNode(name="bare").object().metadata.labels
