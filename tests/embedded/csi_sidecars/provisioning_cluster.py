"""A cluster in virtual time with our driver in the same process, with injected errors."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from tests.embedded.virtual_cluster import MEMORY, VirtualCluster, virtual_cluster

from zonewise.api import Node, Pod
from zonewise.api.objects.storage import PersistentVolume, PersistentVolumeClaim
from zonewise.csi.driver import open_data_folder, open_driver
from zonewise.csi.errors import Code, CsiError
from zonewise.csi.node_domain import FixedDomain
from zonewise.csi.transport.calls import run_inline
from zonewise.csi.transport.client import TIMEOUT, InProcessClient
from zonewise.csi.transport.methods import Method, Request, Response
from zonewise.embedded.components.scheduler.scheduler import Scheduler
from zonewise.embedded.components.volumes.binder import PersistentVolumeController
from zonewise.embedded.components.volumes.protection import VolumeProtectionController
from zonewise.embedded.csi_sidecars.provisioner import TopologyOptions
from zonewise.embedded.csi_sidecars.sidecars import DriverSidecars
from zonewise.runtime.program.context import ControllerContext
from zonewise.runtime.program.program import Runnable
from zonewise.storage.configuration import parse_configuration
from zonewise.storage.domains import parse_domain_labels

DRIVER = "csi.zonewise.io"
ZONE = "topology.kubernetes.io/zone"
KEY = f"topology.{DRIVER}/zone"
LABELS = parse_domain_labels(ZONE, DRIVER)
NAMESPACE = "default"


@dataclass
class SpoiledClient:
    """Calls a driver; ``faults`` are raised instead, with ``after`` once the call was made."""

    inner: InProcessClient
    faults: dict[str, list[Code]] = field(default_factory=dict)
    after: bool = False
    recorded: list[Any] = field(default_factory=list)

    async def call(
        self, method: Method[Request, Response], request: Request, *, timeout: float = TIMEOUT
    ) -> Response:
        """The answer, or the next fault."""
        self.recorded.append((method.name, request))
        faults = self.faults.get(method.name)
        if not faults:
            return await self.inner.call(method, request, timeout=timeout)
        code = faults.pop(0)
        if self.after:
            await self.inner.call(method, request, timeout=timeout)
        raise CsiError(code, "spoiled")

    def requests(self, name: str) -> list[Any]:
        """The requests of a method."""
        return [request for method, request in self.recorded if method == name]


@dataclass(frozen=True)
class Loops:
    """A cluster, its driver, and helpers to create objects."""

    cluster: VirtualCluster
    client: SpoiledClient
    folder: Path

    async def post(self, path: str, body: dict[str, Any]) -> None:
        """Create any object."""
        await self.cluster.client.raw("POST", path, body=msgspec.json.encode(body))

    async def node(self, name: str, zone: str) -> None:
        """A node with the driver on it."""
        body = {
            "metadata": {"name": name, "labels": {ZONE: zone, KEY: zone}},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
        }
        await self.post("/api/v1/nodes", body)
        await self.cluster.client.patch(Node, name, None, {"spec": {"taints": None}})
        drivers = [{"name": DRIVER, "nodeID": name, "topologyKeys": [KEY]}]
        await self.post(
            "/apis/storage.k8s.io/v1/csinodes",
            {"metadata": {"name": name}, "spec": {"drivers": drivers}},
        )

    async def storage_class(self, *, waits: bool = True, **more: Any) -> None:
        """The driver's class."""
        body = {
            "metadata": {"name": "zonal"},
            "provisioner": DRIVER,
            "volumeBindingMode": "WaitForFirstConsumer" if waits else "Immediate",
            "allowVolumeExpansion": True,
            **more,
        }
        await self.post("/apis/storage.k8s.io/v1/storageclasses", body)

    async def claim(self, name: str = "data", size: str = "1Gi", **more: Any) -> None:
        """A claim of it."""
        spec = {
            "storageClassName": "zonal",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}},
            **more,
        }
        body = {"metadata": {"name": name}, "spec": spec}
        await self.post("/api/v1/namespaces/default/persistentvolumeclaims", body)

    async def pod(self, name: str, *claims: str, **spec: Any) -> None:
        """A pod that uses claims."""
        body = {
            "containers": [{"name": "c", "image": "c"}],
            "volumes": [
                {"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims
            ],
            **spec,
        }
        await self.post(
            "/api/v1/namespaces/default/pods", {"metadata": {"name": name}, "spec": body}
        )

    def phase(self, name: str = "data") -> str:
        """The phase of a claim."""
        claim = self.cluster.program.cache.store(PersistentVolumeClaim).get(("default", name))
        return claim.status.phase if claim else ""

    def node_of(self, name: str) -> str:
        """The node of a pod."""
        pod = self.cluster.program.cache.store(Pod).get(("default", name))
        return pod.spec.node_name if pod else ""

    async def volume(self, name: str = "data") -> PersistentVolume:
        """The volume of a claim."""
        claim = await self.cluster.client.get(PersistentVolumeClaim, name, "default")
        return await self.cluster.client.get(PersistentVolume, claim.spec.volume_name)

    def volumes(self) -> int:
        """How many volumes there are."""
        return len(self.cluster.program.cache.store(PersistentVolume))

    async def notes(self, reason: str) -> list[str]:
        """The notes of events with a reason."""
        await asyncio.sleep(1)
        answer = await self.cluster.client.raw("GET", "/apis/events.k8s.io/v1/events")
        items = msgspec.json.decode(answer.body)["items"]
        return [item["note"] for item in items if item["reason"] == reason]


def zones_of(volume: PersistentVolume) -> list[str]:
    """The zones from which a volume can be used, besides by nodes that stand in for them."""
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return []
    home, second = affinity.required.node_selector_terms or ()
    (needs,) = home.match_expressions or ()
    assert needs.key == KEY
    (zone,) = needs.values or ()
    (label,) = second.match_expressions or ()
    assert (label.key, label.values) == (f"{KEY[:-5]}/takeover.{zone}", ("true",))
    return [zone]


@asynccontextmanager
async def loops(
    pools: dict[str, str],
    *,
    options: TopologyOptions | None = None,
    parts: dict[str, Callable[[ControllerContext], Runnable]] | None = None,
    snapshots: bool = False,
) -> AsyncIterator[Loops]:
    """A cluster whose driver has one pool per zone, of the given size."""
    text = json.dumps(
        {
            "version": 2,
            "pools": [
                {
                    "poolName": f"pool-{zone}",
                    "capacity": size,
                    "domainSegments": [{"domainLabel": "zone", "value": zone}],
                }
                for zone, size in pools.items()
            ],
        }
    )
    configuration = parse_configuration(text, LABELS)
    with tempfile.TemporaryDirectory(prefix="zonewise-test-", dir=MEMORY) as folder:
        data = open_data_folder(Path(folder), privileged=False)
        try:
            driver = open_driver(
                DRIVER,
                data,
                LABELS,
                lambda: configuration,
                node_id="controller",
                domain=FixedDomain({"zone": "a"}),
                worker=run_inline,
            )
            client = SpoiledClient(InProcessClient(driver.calls))
            components: dict[str, Callable[[ControllerContext], Runnable]] = {
                "default-scheduler": Scheduler,
                "binder": PersistentVolumeController,
                "protection": VolumeProtectionController,
                "csi": lambda context: DriverSidecars(
                    context, options, client=client, namespace=NAMESPACE, snapshots=snapshots
                ),
                **(parts or {}),
            }
            async with virtual_cluster(components) as cluster:
                yield Loops(cluster, client, Path(folder))
        finally:
            data.close()
