"""Our provisioner loop and driver on real Kubernetes, with its own volume binder and scheduler.

The driver is behind its socket, as on a node; the kubelets are ours.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.csi.socket_client import SocketClient
from tests.kubernetes.recorded_driver import Recording, post

from tools import realkube as real
from zonewise.api import Node, PersistentVolume, PersistentVolumeClaim, Pod
from zonewise.api.errors import AlreadyExists, NotFound
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.events import Event
from zonewise.csi.driver import Threads, open_data_folder, open_driver
from zonewise.csi.errors import Code
from zonewise.csi.node_domain import FixedDomain
from zonewise.csi.transport.client import TIMEOUT, CsiClient
from zonewise.csi.transport.methods import Method, Request, Response
from zonewise.csi.transport.server import SocketServer
from zonewise.embedded.components.kubelet.kubelets import Kubelets
from zonewise.embedded.csi_sidecars.provisioner import TopologyOptions
from zonewise.embedded.csi_sidecars.registration import DriverRegistrar
from zonewise.embedded.csi_sidecars.sidecars import DriverSidecars
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config
from zonewise.runtime.program.context import ControllerContext
from zonewise.runtime.program.program import Program
from zonewise.storage.configuration import parse_configuration
from zonewise.storage.domains import parse_domain_labels

pytestmark = [pytest.mark.real, pytest.mark.asyncio, pytest.mark.timeout(600)]

DRIVER = "csi.zonewise.io"
ZONE = "topology.kubernetes.io/zone"
KEY = f"topology.{DRIVER}/zone"
LABELS = parse_domain_labels(ZONE, DRIVER)
PATIENCE = 180.0


@dataclass(frozen=True)
class Scene:
    """A real cluster with three zones, and a namespace of its own."""

    client: Client
    driver: Recording
    name: str

    async def post(self, path: str, body: dict[str, Any]) -> None:
        """Create any object."""
        await post(self.client, path, body)

    async def storage_class(self, **more: Any) -> None:
        """The driver's class, of this scene's name."""
        body = {"metadata": {"name": self.name}, "provisioner": DRIVER, **more}
        await self.post("/apis/storage.k8s.io/v1/storageclasses", body)

    def template(self, name: str) -> dict[str, Any]:
        """The template of a claim."""
        spec = {
            "storageClassName": self.name,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "64Mi"}},
        }
        return {"metadata": {"name": name}, "spec": spec}

    async def pod(self, name: str, claim: str, **spec: Any) -> None:
        """Create a pod that uses a claim."""
        body = {
            "containers": [{"name": "c", "image": "c"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
            **spec,
        }
        path = Pod.resource.path(self.name)
        await self.post(path, {"metadata": {"name": name}, "spec": body})

    async def claim(self, name: str) -> None:
        """Create a claim."""
        await self.post(PersistentVolumeClaim.resource.path(self.name), self.template(name))

    async def placed(self, name: str) -> str:
        """The zone of the node that a pod got."""

        async def node() -> str:
            try:
                return (await self.client.get(Pod, name, self.name)).spec.node_name
            except NotFound:
                return ""

        host = await self.client.get(Node, await until(node))
        return host.metadata.labels[ZONE]

    async def volume(self, claim: str) -> PersistentVolume:
        """The volume of a claim, when they are bound."""

        async def bound() -> str:
            current = await self.client.get(PersistentVolumeClaim, claim, self.name)
            return current.spec.volume_name if current.status.phase == "Bound" else ""

        return await self.client.get(PersistentVolume, await until(bound))

    async def event_notes(self, reason: str) -> set[str]:
        """The notes of all events of the namespace with a reason."""
        events = await self.client.list(Event, self.name)
        return {event.note for event in events if event.reason == reason}


async def until(look: Callable[[], Any]) -> Any:
    """Wait until a look returns something true; returns that."""
    async with asyncio.timeout(PATIENCE):
        while True:
            seen = await look()
            if seen:
                return seen
            await asyncio.sleep(0.2)


def zones(volume: PersistentVolume) -> list[str]:
    """The zones from which a volume can be used, besides by nodes that stand in for them."""
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return []
    home, second = affinity.required.node_selector_terms or ()
    (needs,) = home.match_expressions or ()
    assert needs.key == KEY
    (zone,) = needs.values or ()
    (label,) = second.match_expressions or ()
    assert (label.key, label.values) == (f"topology.{DRIVER}/takeover.{zone}", ("true",))
    return [zone]


def requested_zones(request: Any) -> tuple[list[str], list[str]]:
    """The zones of a request to the driver: requisite, preferred."""
    needs = request.accessibility_requirements
    return (
        [topology.segments[KEY] for topology in needs.requisite],
        [topology.segments[KEY] for topology in needs.preferred],
    )


@asynccontextmanager
async def scene(
    plane: real.ControlPlane, folder: Path, name: str, options: TopologyOptions | None = None
) -> AsyncIterator[Scene]:
    """Start driver, loops and kubelets on a real cluster; end them and clear the namespace."""
    pools = [
        {
            "poolName": f"pool-{zone}",
            "capacity": "1Gi",
            "domainSegments": [{"domainLabel": "zone", "value": zone}],
        }
        for zone in "abc"
    ]
    configuration = parse_configuration(json.dumps({"version": 2, "pools": pools}), LABELS)
    data, threads = open_data_folder(folder / "data", privileged=False), Threads()
    served = open_driver(
        DRIVER,
        data,
        LABELS,
        lambda: configuration,
        node_id="controller",
        domain=FixedDomain({"zone": "a"}),
        worker=threads,
    )
    server = SocketServer(served.calls, folder / "csi.sock")
    await server.start()
    socket = SocketClient(folder / "csi.sock")
    transport = HttpsTransport(load_config(str(plane.kubeconfig)))
    driver = Recording(socket)

    def node_client(node: str) -> CsiClient:
        return _OnNode(socket, node)

    def loops(context: ControllerContext) -> DriverSidecars:
        return DriverSidecars(context, options, client=driver, namespace="default")

    components = Program(
        lambda part: Client(transport, field_manager=part), clock=time.time, rng=random.Random(1)
    )
    components.add("kubelet", Kubelets)
    components.add(
        "csi-registration",
        lambda context: DriverRegistrar(context, driver=DRIVER, clients=node_client),
    )
    components.add("csi-provisioner", loops)
    client = Client(transport)
    work = asyncio.create_task(components.run())
    try:
        await post(client, "/api/v1/namespaces", {"metadata": {"name": name}})
        body = {"metadata": {"name": DRIVER}, "spec": {"attachRequired": False}}
        await post(client, "/apis/storage.k8s.io/v1/csidrivers", body)
        nodes = {f"csi-{zone}": zone for zone in "abc"}
        for node, zone in nodes.items():
            with suppress(AlreadyExists):
                await client.create(Node(metadata=ObjectMeta(name=node, labels={ZONE: zone})))

        async def labelled() -> bool:
            listed = await client.list(Node)
            return {node.metadata.name for node in listed if KEY in node.metadata.labels} >= {
                *nodes
            }

        await until(labelled)
        yield Scene(client, driver, name)
        assert not work.done(), work.exception()
        await _clear(client, name)
        for node in nodes:
            await client.delete(Node, node)
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await socket.close()
        await server.close()
        await transport.close()
        threads.close()
        data.close()


async def _clear(client: Client, name: str) -> None:
    """Delete what a scene created, and wait until the driver deleted all volumes."""
    await client.raw("DELETE", f"/apis/apps/v1/namespaces/{name}/statefulsets")
    for pod in await client.list(Pod, name):
        with suppress(NotFound):
            await client.delete(Pod, pod.metadata.name, name, grace_period=0)
    for claim in await client.list(PersistentVolumeClaim, name):
        await client.delete(PersistentVolumeClaim, claim.metadata.name, name)

    async def cleared() -> bool:
        return not any(
            volume.spec.storage_class_name == name for volume in await client.list(PersistentVolume)
        )

    await until(cleared)
    await client.raw("DELETE", f"/apis/storage.k8s.io/v1/storageclasses/{name}")
    await client.raw("DELETE", f"/api/v1/namespaces/{name}")


@dataclass(frozen=True)
class _OnNode:
    """The driver as it would be on a node, whose name ends with its zone."""

    inner: CsiClient
    node: str

    async def call(
        self, method: Method[Request, Response], request: Request, *, timeout: float = TIMEOUT
    ) -> Response:
        """The answer; the node's zone is the last letter of its name."""
        answer = await self.inner.call(method, request, timeout=timeout)
        if method.name == "NodeGetInfo":
            info: Any = answer
            info.node_id = self.node
            info.accessible_topology.segments[KEY] = self.node[-1]
        return answer


async def test_no_room_in_a_zone_moves_the_pod(realkube: real.ControlPlane, tmp_path: Path) -> None:
    """RESOURCE_EXHAUSTED makes the real scheduler choose again, with the same events as ours."""
    async with scene(realkube, tmp_path, "full", TopologyOptions(strict=True)) as some:
        await some.storage_class(volumeBindingMode="WaitForFirstConsumer")
        some.driver.faults = [Code.RESOURCE_EXHAUSTED]
        await some.claim("data")
        await some.pod("p", "data")
        zone = await some.placed("p")
        assert zones(await some.volume("data")) == [zone]
        first, last = some.driver.requests[0], some.driver.requests[-1]
        assert len(some.driver.requests) >= 2
        assert requested_zones(last) == ([zone], [zone])
        assert requested_zones(first)[0] == requested_zones(first)[1]

        async def failed() -> set[str]:
            return await some.event_notes("FailedScheduling")

        assert (
            'running PreBind plugin "VolumeBinding": binding volumes:'
            ' provisioning failed for PVC "data"'
        ) in await until(failed)
        assert any("no room here" in note for note in await some.event_notes("ProvisioningFailed"))


async def test_a_volume_is_where_its_pod_is(realkube: real.ControlPlane, tmp_path: Path) -> None:
    """The chosen node's zone is preferred, and the volume can be used from there alone."""
    async with scene(realkube, tmp_path, "near") as some:
        await some.storage_class(volumeBindingMode="WaitForFirstConsumer")
        await some.claim("data")
        await some.pod("p", "data", nodeSelector={ZONE: "b"})
        assert await some.placed("p") == "b"
        assert zones(await some.volume("data")) == ["b"]
        assert requested_zones(some.driver.requests[0]) == (["a", "b", "c"], ["b", "c", "a"])


async def test_immediate_claims_prefer_the_zone_of_their_name(
    realkube: real.ControlPlane, tmp_path: Path
) -> None:
    """The request is the same as if a node of zone b was chosen; all zones are allowed."""
    async with scene(realkube, tmp_path, "named") as some:
        await some.storage_class(volumeBindingMode="Immediate")
        await some.claim("www-web-1")
        assert zones(await some.volume("www-web-1")) == ["b"]
        assert requested_zones(some.driver.requests[0]) == (["a", "b", "c"], ["b", "c", "a"])


async def test_allowed_topologies_are_the_only_ones(
    realkube: real.ControlPlane, tmp_path: Path
) -> None:
    """With a class that allows two zones, only these are requested."""
    async with scene(realkube, tmp_path, "allowed") as some:
        allowed = [{"matchLabelExpressions": [{"key": KEY, "values": ["b", "c"]}]}]
        await some.storage_class(volumeBindingMode="Immediate", allowedTopologies=allowed)
        await some.claim("www-web-0")
        assert zones(await some.volume("www-web-0")) == ["c"]
        assert requested_zones(some.driver.requests[0]) == (["b", "c"], ["c", "b"])


async def test_without_immediate_topology_no_zone_is_requested(
    realkube: real.ControlPlane, tmp_path: Path
) -> None:
    """The driver balances, and its volume can be used everywhere."""
    options = TopologyOptions(immediate=False)
    async with scene(realkube, tmp_path, "anywhere", options) as some:
        await some.storage_class(volumeBindingMode="Immediate")
        await some.claim("data")
        assert zones(await some.volume("data")) == []
        assert not some.driver.requests[0].HasField("accessibility_requirements")


@pytest.mark.parametrize("mode", ["Immediate", "WaitForFirstConsumer"])
async def test_pods_with_two_claims_find_a_node(
    realkube: real.ControlPlane, tmp_path: Path, mode: str
) -> None:
    """Both claims of each pod of a StatefulSet are in one zone, so it can run there."""
    async with scene(realkube, tmp_path, f"two-{mode.lower()}") as some:
        await some.storage_class(volumeBindingMode=mode)
        spread = {
            "maxSkew": 1,
            "topologyKey": KEY,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "web"}},
        }
        pod = {
            "metadata": {"labels": {"app": "web"}},
            "spec": {
                "topologySpreadConstraints": [spread],
                "containers": [{"name": "c", "image": "c"}],
            },
        }
        body = {
            "metadata": {"name": "web"},
            "spec": {
                "serviceName": "web",
                "replicas": 3,
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": {"app": "web"}},
                "template": pod,
                "volumeClaimTemplates": [some.template("data"), some.template("logs")],
            },
        }
        await some.post(f"/apis/apps/v1/namespaces/{some.name}/statefulsets", body)
        used = set()
        for ordinal in range(3):
            zone = await some.placed(f"web-{ordinal}")
            used.add(zone)
            for claim in ("data", "logs"):
                assert zones(await some.volume(f"{claim}-web-{ordinal}")) == [zone]
        assert used == {"a", "b", "c"}
