"""Takeover with the real scheduler and controllers, on a real Ceph.

The kubelets are ours and really mount; a failed one stops reporting and unmounts nothing.
Everything else that decides is Kubernetes' own, or ours as it is installed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kubernetes.recorded_driver import Recording, post
from tools.ceph.cluster import JOURNAL, CephCluster

from tools import realkube as real
from zonewise.api import Node, Pod
from zonewise.api.errors import AlreadyExists, NotFound
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.pod_state import is_pod_ready
from zonewise.api.objects.storage import CSINode
from zonewise.csi.backends.ceph.clusters import open_rbd
from zonewise.csi.backends.ceph.rbd.node import RbdNode
from zonewise.csi.config_file import ConfigFile
from zonewise.csi.driver import Threads, open_driver
from zonewise.csi.node_domain import FixedDomain
from zonewise.csi.services.node import NodeService
from zonewise.csi.takeover.controller import TakeoverController, TakeoverSettings
from zonewise.csi.transport.calls import Calls
from zonewise.csi.transport.client import CsiClient, InProcessClient
from zonewise.embedded.components.kubelet.kubelets import DUAL_STACK, Kubelets
from zonewise.embedded.components.kubelet.node_status import FAILED_ANNOTATION
from zonewise.embedded.csi_sidecars.pod_mounts import PodMounts
from zonewise.embedded.csi_sidecars.registration import DriverRegistrar
from zonewise.embedded.csi_sidecars.sidecars import DriverSidecars
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config
from zonewise.runtime.program.context import ControllerContext
from zonewise.runtime.program.program import Program
from zonewise.storage.domains import parse_domain_labels

pytestmark = [pytest.mark.real, pytest.mark.asyncio, pytest.mark.timeout(600)]

DRIVER = "csi.zonewise.io"
ZONE = "topology.kubernetes.io/zone"
KEY = f"topology.{DRIVER}/zone"
LABEL = f"topology.{DRIVER}/takeover.a"
LABELS = parse_domain_labels(ZONE, DRIVER)
NAME = "takeover"
PATIENCE = 300.0
NODES = {"taken-a": "a", "taken-b": "b", "taken-c": "c"}


async def until(look: Callable[[], Awaitable[Any]]) -> Any:
    """Wait until a look returns something true; returns that."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if answer := await look():
                return answer
            await asyncio.sleep(0.2)


class Scene:
    """A real cluster whose volumes are on Ceph; the configuration is a file."""

    def __init__(self, client: Client, driver: Recording, file: ConfigFile, folder: Path) -> None:
        self.client = client
        self.driver = driver
        self.file = file
        self.folder = folder

    def write(self, text: str) -> None:
        """Replace the configuration as a kubelet does: a new file under the old name."""
        fresh = self.folder / "config.new"
        fresh.write_text(text)
        fresh.rename(self.folder / "config.json")

    async def labelled(self) -> set[str]:
        """The nodes that stand in for a."""
        nodes = await self.client.list(Node)
        return {node.metadata.name for node in nodes if LABEL in node.metadata.labels}

    async def pod(self, *, other_than: str = "") -> Pod | None:
        """The pod, if it is Ready and not the one with this uid."""
        try:
            pod = await self.client.get(Pod, "db-0", NAME)
        except NotFound:
            return None
        going = pod.metadata.deletion_timestamp is not None
        return pod if is_pod_ready(pod) and not going and pod.metadata.uid != other_than else None

    def path(self, pod: Pod) -> Path:
        """The mount of the pod's volume."""
        uid = pod.metadata.uid
        (mount,) = self.folder.glob(f"nodes/{pod.spec.node_name}/**/pods/{uid}/volumes/*/*/mount")
        return mount

    async def fail(self, node: str, failed: str | None) -> None:
        """Let a node fail, or recover."""
        body = {"metadata": {"annotations": {FAILED_ANNOTATION: failed}}}
        await self.client.patch(Node, node, None, body)

    async def untouched(self) -> list[bytes]:
        """What no takeover may change, byte for byte: the bound volume and the CSINodes."""
        objects = []
        for path in ("/api/v1/persistentvolumes", "/apis/storage.k8s.io/v1/csinodes"):
            items = msgspec.json.decode((await self.client.raw("GET", path)).body)["items"]
            objects += [
                msgspec.json.encode(obj)
                for obj in items
                if obj["metadata"]["name"] in NODES
                or obj["spec"].get("claimRef", {}).get("name") == "data-db-0"
            ]
        return objects


def config(ceph: CephCluster, **takeover: list[str]) -> str:
    """The text of the configuration."""
    return json.dumps(
        {"version": 2, "clusters": ceph.clusters(), "topology-takeover": takeover}, indent=2
    )


@asynccontextmanager
async def scene(plane: real.ControlPlane, ceph: CephCluster, folder: Path) -> AsyncIterator[Scene]:
    """Start driver, kubelets and the takeover controller; unmount everything at the end."""
    (folder / "config.json").write_text(config(ceph))
    file = ConfigFile(folder / "config.json", LABELS)
    storage, threads = open_rbd(folder / "controller", file.current), Threads()
    driver = open_driver(
        DRIVER,
        storage,
        LABELS,
        lambda: file.current,
        node_id="controller",
        domain=FixedDomain({"zone": "a"}),
        worker=threads,
    )
    recording = Recording(InProcessClient(driver.calls))
    clients: dict[str, CsiClient] = {}
    for name, zone in NODES.items():
        (folder / name / "rbd").mkdir(parents=True)
        service = NodeService(
            driver.plugin,
            RbdNode(storage, folder / name),
            node_id=name,
            domain=FixedDomain({"zone": zone}),
        )
        clients[name] = InProcessClient(Calls(service.bindings(), worker=threads))
    transport = HttpsTransport(load_config(str(plane.kubeconfig)))
    components = Program(
        lambda part: Client(transport, field_manager=part), clock=time.time, rng=random.Random(1)
    )
    nodes = components.cache.store(Node)
    mounted: list[PodMounts] = []

    def volumes(context: ControllerContext) -> PodMounts:
        def alive(name: str) -> bool:
            node = nodes.get(("", name))
            return node is None or FAILED_ANNOTATION not in node.metadata.annotations

        mounted.append(
            PodMounts(
                context,
                folder=folder / "nodes",
                driver=DRIVER,
                clients=lambda node: clients[node],
                is_alive=alive,
            )
        )
        return mounted[0]

    components.add("kubelet", lambda context: Kubelets(context, DUAL_STACK, volumes=volumes))
    components.add(
        "csi-registration",
        lambda context: DriverRegistrar(context, driver=DRIVER, clients=lambda node: clients[node]),
    )
    components.add(
        "csi-provisioner",
        lambda context: DriverSidecars(context, client=recording, namespace="default"),
    )
    components.add(
        "csi-takeover",
        lambda context: TakeoverController(
            context, TakeoverSettings(source=file, labels=LABELS, namespace="default")
        ),
    )
    client = Client(transport)
    for name, zone in NODES.items():
        with suppress(AlreadyExists):
            await client.create(Node(metadata=ObjectMeta(name=name, labels={ZONE: zone})))
    work = asyncio.create_task(components.run())
    reading = asyncio.create_task(file.run())
    try:
        await post(client, "/api/v1/namespaces", {"metadata": {"name": NAME}})
        body = {"metadata": {"name": DRIVER}, "spec": {"attachRequired": False}}
        await post(client, "/apis/storage.k8s.io/v1/csidrivers", body)
        await until(lambda: _usable(client))
        yield Scene(client, recording, file, folder)
        assert not work.done(), work.exception()
    finally:
        await _end(client)
        reading.cancel()
        work.cancel()
        await asyncio.gather(work, reading, return_exceptions=True)
        for pod_mounts in mounted:
            await pod_mounts.close()
        for name in NODES:
            await client.delete(Node, name)
        await transport.close()
        threads.close()
        storage.close()


async def _usable(client: Client) -> bool:
    """Whether a pod could go to any node: only then its preferred zone decides."""
    registered = {
        csi_node.metadata.name
        for csi_node in await client.list(CSINode)
        if any(driver.name == DRIVER for driver in csi_node.spec.drivers or ())
    }
    untainted = {node.metadata.name for node in await client.list(Node) if not node.spec.taints}
    return NODES.keys() <= registered & untainted


async def _end(client: Client) -> None:
    await client.raw("DELETE", f"/apis/apps/v1/namespaces/{NAME}/statefulsets")
    for pod in await client.list(Pod, NAME):
        with suppress(NotFound):
            await client.delete(Pod, pod.metadata.name, NAME, grace_period=0)
    await client.raw("DELETE", f"/api/v1/namespaces/{NAME}/persistentvolumeclaims")

    async def gone() -> bool:
        items = msgspec.json.decode((await client.raw("GET", "/api/v1/persistentvolumes")).body)
        return not any(
            volume["spec"].get("claimRef", {}).get("namespace") == NAME for volume in items["items"]
        )

    with suppress(TimeoutError):
        await until(gone)


def parameters() -> dict[str, str]:
    """A class with a pool for each zone; that of a has replicas in all of them."""
    pools = [
        {"poolName": name, "domainSegments": [{"domainLabel": "zone", "value": zone}]}
        for name, zone in (("kept", "a"), ("rbd-b", "b"), ("rbd-c", "c"))
    ]
    return {"pool": JOURNAL, "topologyConstrainedPools": json.dumps(pools)}


def stateful_set() -> dict[str, Any]:
    """One pod with a volume, which prefers zone a."""
    likes = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a"]}]}
    prefers = [{"weight": 100, "preference": likes}]
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "storageClassName": NAME,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "64Mi"}},
        },
    }
    return {
        "metadata": {"name": "db"},
        "spec": {
            "serviceName": "db",
            "replicas": 1,
            "selector": {"matchLabels": {"app": "db"}},
            "template": {
                "metadata": {"labels": {"app": "db"}},
                "spec": {
                    "affinity": {
                        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": prefers}
                    },
                    "containers": [{"name": "c", "image": "c"}],
                },
            },
            "volumeClaimTemplates": [claim],
        },
    }


async def test_a_lost_zone_is_taken_over_and_given_back(
    realkube: real.ControlPlane, ceph: CephCluster, tmp_path: Path
) -> None:
    """The data goes from a to b and back; a late write is refused; no PV, no CSINode changes."""
    ceph.pool("kept", "zones", size=3)
    ceph.wait("numbers", lambda: _counted(ceph))
    async with scene(realkube, ceph, tmp_path) as some:
        client = some.client
        for name, mode in ((NAME, "WaitForFirstConsumer"), (f"{NAME}-now", "Immediate")):
            body = {
                "metadata": {"name": name},
                "provisioner": DRIVER,
                "parameters": parameters(),
                "volumeBindingMode": mode,
            }
            await post(client, "/apis/storage.k8s.io/v1/storageclasses", body)
        await post(client, f"/apis/apps/v1/namespaces/{NAME}/statefulsets", stateful_set())
        pod = await until(some.pod)
        assert pod.spec.node_name == "taken-a"
        old = some.path(pod)
        (old / "marker").write_text("from a")
        os.sync()
        before = await some.untouched()

        late = os.open(old / "late", os.O_CREAT | os.O_WRONLY)
        try:
            await some.fail("taken-a", "true")
            some.write(config(ceph, a=["b"]))
            await until(some.labelled)
            assert await some.labelled() == {"taken-b"}
            away = await until(lambda: some.pod(other_than=pod.metadata.uid))
            assert away.spec.node_name == "taken-b"
            there = some.path(away) / "marker"
            assert there.read_text() == "from a"
            there.write_text("from b")
            os.sync()
            with pytest.raises(OSError, match="Errno"):
                for _ in range(16):
                    os.write(late, b"x" * (1 << 20))
                    os.fsync(late)
        finally:
            os.close(late)
        assert ceph.command("osd dump")["blocklist"]

        # A fresh claim that binds at once still sees all zones.
        template = stateful_set()["spec"]["volumeClaimTemplates"][0]
        template["spec"]["storageClassName"] = f"{NAME}-now"
        await post(client, f"/api/v1/namespaces/{NAME}/persistentvolumeclaims", template)

        async def requested_zones() -> list[str]:
            last = some.driver.requests[-1].accessibility_requirements.requisite
            zones = sorted(topology.segments[KEY] for topology in last)
            return zones if len(some.driver.requests) > 1 else []

        assert await until(requested_zones) == ["a", "b", "c"]

        for wrong in ("{", config(ceph, a=["a"]), config(ceph, a=["b"], b=["a"])):
            some.write(wrong)

            async def rejected() -> bool:
                return some.file.problem is not None

            await until(rejected)
            assert await some.labelled() == {"taken-b"}
            some.write(config(ceph, a=["b"]))

            async def good() -> bool:
                return some.file.problem is None

            await until(good)

        await some.fail("taken-a", None)
        some.write(config(ceph))

        async def given() -> bool:
            return not await some.labelled()

        await until(given)
        stays = await some.pod()
        assert stays is not None and stays.metadata.uid == away.metadata.uid

        async def back() -> bool:
            node = await client.get(Node, "taken-a")
            return not node.spec.taints

        await until(back)
        await client.delete(Pod, "db-0", NAME)
        home = await until(lambda: some.pod(other_than=away.metadata.uid))
        assert home.spec.node_name == "taken-a"
        assert (some.path(home) / "marker").read_text() == "from b"
        assert await some.untouched() == before
    for name in (NAME, f"{NAME}-now"):
        transport = HttpsTransport(load_config(str(realkube.kubeconfig)))
        await Client(transport).raw("DELETE", f"/apis/storage.k8s.io/v1/storageclasses/{name}")
        await transport.close()


def _counted(ceph: CephCluster) -> bool:
    pools = {pool["name"]: pool["stats"] for pool in ceph.command("df")["pools"]}
    return bool(pools.get("kept", {}).get("max_avail"))
