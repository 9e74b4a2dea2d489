"""Claims of our driver's classes on a cluster in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.embedded.csi_sidecars.provisioning_cluster import (
    DRIVER,
    KEY,
    NAMESPACE,
    Loops,
    loops,
    zones_of,
)
from tests.embedded.virtual_cluster import EPOCH, until

from zonewise.api import CSIStorageCapacity, PersistentVolume, PersistentVolumeClaim, Pod
from zonewise.csi.errors import Code
from zonewise.embedded.csi_sidecars.provisioner import TopologyOptions
from zonewise.embedded.csi_sidecars.sidecars import DriverSidecars
from zonewise.embedded.csi_sidecars.volumes import FINALIZER
from zonewise.runtime.program.context import ControllerContext
from zonewise.runtime.program.program import Program

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

ZONES = {"a": "8Gi", "b": "8Gi", "c": "8Gi"}


async def three(some: Loops) -> None:
    """A node in each of three zones."""
    for zone in "abc":
        await some.node(f"n-{zone}", zone)


async def test_a_volume_is_made_where_its_first_pod_goes() -> None:
    """The volume has its node affinity and driver; claim and volume refer to each other."""
    async with loops(ZONES) as some:
        await three(some)
        await some.storage_class()
        await some.claim()
        await some.pod("p", "data", nodeSelector={"topology.kubernetes.io/zone": "b"})
        await until(lambda: some.node_of("p") == "n-b")
        volume = await some.volume()
        assert zones_of(volume) == ["b"]
        assert FINALIZER in volume.metadata.finalizers
        assert volume.spec.csi is not None and volume.spec.csi.driver == DRIVER
        assert volume.spec.csi.volume_attributes["pool"] == "pool-b"
        assert volume.spec.capacity == {"storage": "1Gi"}
        (request,) = some.client.requests("CreateVolume")
        zones = [
            dict(topology.segments) for topology in request.accessibility_requirements.preferred
        ]
        assert [next(iter(segments.values())) for segments in zones] == ["b", "c", "a"]
        claim = await some.cluster.client.get(PersistentVolumeClaim, "data", "default")
        assert f"{DRIVER}/provisioning" not in claim.metadata.finalizers
        assert await some.notes("ProvisioningSucceeded")


async def test_a_zone_without_room_sends_the_pod_to_another() -> None:
    """RESOURCE_EXHAUSTED removes the node from the claim, and the scheduler chooses again."""
    async with loops(ZONES, options=TopologyOptions(strict=True)) as some:
        await three(some)
        await some.storage_class()
        some.client.faults["CreateVolume"] = [Code.RESOURCE_EXHAUSTED, Code.RESOURCE_EXHAUSTED]
        await some.claim()
        await some.pod("p", "data")
        await until(lambda: bool(some.node_of("p")), within=60)
        volume = await some.volume()
        assert zones_of(volume) == [some.node_of("p").removeprefix("n-")]
        assert len(some.client.requests("CreateVolume")) == 3
        (note,) = await some.notes("ProvisioningFailed")
        assert note == (
            'failed to provision volume with StorageClass "zonal": RESOURCE_EXHAUSTED: spoiled'
        )


async def test_an_unknown_outcome_is_repeated_with_the_same_request() -> None:
    """Between the calls the cluster changes, the request does not; there is one volume."""
    async with loops(ZONES) as some:
        await three(some)
        await some.storage_class(waits=False)
        some.client.after = True
        some.client.faults["CreateVolume"] = [
            Code.DEADLINE_EXCEEDED,
            Code.UNAVAILABLE,
            Code.ABORTED,
        ]
        await some.claim("www-web-1")
        await until(lambda: len(some.client.requests("CreateVolume")) == 1)
        await some.node("n-d", "d")
        await until(lambda: some.phase("www-web-1") == "Bound", within=60)
        first, *others = some.client.requests("CreateVolume")
        assert len(others) == 3 and all(request == first for request in others)
        assert zones_of(await some.volume("www-web-1")) == ["b"]


async def test_a_final_error_is_followed_by_a_new_request() -> None:
    """After INTERNAL the next request is made from the current state of the cluster."""
    async with loops(ZONES) as some:
        await three(some)
        await some.storage_class(waits=False)
        some.client.faults["CreateVolume"] = [Code.INTERNAL]
        await some.claim("www-web-1")
        await until(lambda: len(some.client.requests("CreateVolume")) == 1)
        await some.node("n-d", "d")
        await until(lambda: some.phase("www-web-1") == "Bound", within=60)
        first, second = some.client.requests("CreateVolume")
        terms = [len(request.accessibility_requirements.requisite) for request in (first, second)]
        assert terms == [3, 4]


async def test_an_invalid_class_is_tried_seldom() -> None:
    """INVALID_ARGUMENT is tried again only after five minutes."""
    async with loops(ZONES) as some:
        await three(some)
        await some.storage_class(waits=False, parameters={"colour": "blue"})
        await some.claim()
        await asyncio.sleep(250)
        assert len(some.client.requests("CreateVolume")) == 1
        (note,) = await some.notes("ProvisioningFailed")
        assert "colour" in note
        await asyncio.sleep(100)
        assert len(some.client.requests("CreateVolume")) == 2


async def test_a_claim_deleted_during_provisioning_leaves_nothing() -> None:
    """The claim stays until the driver's answer is final, and the volume is deleted before it."""
    async with loops(ZONES) as some:
        await three(some)
        await some.storage_class(waits=False)
        some.client.after = True
        some.client.faults["CreateVolume"] = [Code.DEADLINE_EXCEEDED] * 3
        await some.claim()
        await until(lambda: len(some.client.requests("CreateVolume")) == 1)
        await some.cluster.client.delete(PersistentVolumeClaim, "data", "default")
        await until(lambda: some.phase() == "", within=60)
        assert len(some.client.requests("CreateVolume")) == 4
        assert len(some.client.requests("DeleteVolume")) == 1
        assert not any((some.folder / "pools").rglob("vol-*"))
        assert some.volumes() == 0


async def test_the_reclaim_policy_of_a_deleted_claim() -> None:
    """Delete calls the driver, then deletes the object; Retain leaves both."""
    async with loops(ZONES) as some:
        await three(some)
        await some.storage_class(waits=False)
        await some.claim()
        await some.claim("kept")
        await until(lambda: some.phase() == some.phase("kept") == "Bound")
        retained = await some.volume("kept")
        body = {"spec": {"persistentVolumeReclaimPolicy": "Retain"}}
        await some.cluster.client.patch(PersistentVolume, retained.metadata.name, None, body)
        some.client.faults["DeleteVolume"] = [Code.UNAVAILABLE]
        for name in ("data", "kept"):
            await some.cluster.client.delete(PersistentVolumeClaim, name, "default")
        await until(lambda: some.volumes() == 1)
        await asyncio.sleep(30)
        (left,) = await some.cluster.client.list(PersistentVolume)
        assert left.status.phase == "Released" and left.metadata.name == retained.metadata.name
        assert len(some.client.requests("DeleteVolume")) == 2
        assert await some.notes("VolumeFailedDelete") == ["UNAVAILABLE: spoiled"]
        # If the object is deleted by hand the driver keeps the volume, as Retain says.
        await some.cluster.client.delete(PersistentVolume, left.metadata.name)
        await until(lambda: some.volumes() == 0)
        assert len(some.client.requests("DeleteVolume")) == 2


async def test_both_claims_of_a_pod_are_usable_together() -> None:
    """Immediate claims of one ordinal get volumes in one zone, and the pod a node there."""
    async with loops(ZONES) as some:
        await three(some)
        await some.storage_class(waits=False)
        for ordinal in range(3):
            for name in ("data", "logs"):
                await some.claim(f"{name}-web-{ordinal}")
            await some.pod(f"web-{ordinal}", f"data-web-{ordinal}", f"logs-web-{ordinal}")
        await until(lambda: all(some.node_of(f"web-{ordinal}") for ordinal in range(3)))
        assert {some.node_of(f"web-{ordinal}") for ordinal in range(3)} == {"n-a", "n-b", "n-c"}


async def test_without_immediate_topology_volumes_are_usable_everywhere() -> None:
    """The driver gets no topology, balances pools, and ties the volume to no zone."""
    async with loops(ZONES, options=TopologyOptions(immediate=False)) as some:
        await three(some)
        await some.storage_class(waits=False)
        await some.claim()
        await until(lambda: some.phase() == "Bound")
        (request,) = some.client.requests("CreateVolume")
        assert not request.HasField("accessibility_requirements")
        assert zones_of(await some.volume()) == []


async def test_capacities_are_published() -> None:
    """Capacities are published per zone, follow new volumes, and keep pods off full zones."""
    async with loops({"a": "1Gi", "b": "8Gi"}) as some:
        await some.post(
            "/apis/storage.k8s.io/v1/csidrivers",
            {
                "metadata": {"name": DRIVER},
                "spec": {"storageCapacity": True, "attachRequired": False},
            },
        )
        await some.node("n-a", "a")
        await some.node("n-b", "b")
        await some.storage_class()
        store = some.cluster.program.cache.store(CSIStorageCapacity)
        await until(lambda: sorted(str(capacity.capacity) for capacity in store) == ["1Gi", "8Gi"])
        assert all(capacity.metadata.namespace == NAMESPACE for capacity in store)
        await some.claim(size="3Gi")
        await some.pod("p", "data")
        await until(lambda: some.node_of("p") == "n-b")
        await until(lambda: sorted(str(capacity.capacity) for capacity in store) == ["1Gi", "5Gi"])
        await some.claim("more", size="6Gi")
        await some.pod("q", "more")
        await until(lambda: "did not have enough free storage" in refused(some, "q"))
        await some.cluster.client.delete(Pod, "p", "default", grace_period=0)
        await some.cluster.client.delete(PersistentVolumeClaim, "data", "default")
        await until(lambda: some.node_of("q") == "n-b")


async def test_capacities_of_every_valid_class_are_published() -> None:
    """A class that the driver refuses affects no other; balanced ones have the sum of zones."""
    async with loops({"a": "1Gi", "b": "8Gi"}) as some:
        await some.post(
            "/apis/storage.k8s.io/v1/csidrivers",
            {
                "metadata": {"name": DRIVER},
                "spec": {"storageCapacity": True, "attachRequired": False},
            },
        )
        for name in "abx":
            await some.node(f"n-{name}", name)
        await some.storage_class(metadata={"name": "awful"}, parameters={"pooolSet": "x"})
        await some.storage_class(parameters={"placement": "balanced"})
        store = some.cluster.program.cache.store(CSIStorageCapacity)
        await until(lambda: [str(capacity.capacity) for capacity in store] == ["9Gi", "9Gi", "9Gi"])
        assert {capacity.storage_class_name for capacity in store} == {"zonal"}
        await some.claim(size="3Gi")
        await some.pod("p", "data", nodeSelector={KEY: "x"})
        await until(lambda: some.node_of("p") == "n-x")
        assert zones_of(await some.volume()) == []


def refused(some: Loops, name: str) -> str:
    """The message why a pod has no node."""
    pod = some.cluster.program.cache.store(Pod).get(("default", name))
    conditions = pod.status.conditions if pod is not None else ()
    return next(
        (condition.message for condition in conditions if condition.type == "PodScheduled"), ""
    )


async def test_a_claim_that_grows_gets_a_larger_volume() -> None:
    """The driver's volume, the object and the claim's status follow the requested size."""
    async with loops(ZONES) as some:
        await three(some)
        await some.storage_class(waits=False)
        await some.claim()
        await until(lambda: some.phase() == "Bound")
        some.client.faults["ControllerExpandVolume"] = [Code.UNAVAILABLE]
        body = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
        await some.cluster.client.patch(PersistentVolumeClaim, "data", "default", body)
        claims = some.cluster.program.cache.store(PersistentVolumeClaim)

        def size() -> object:
            claim = claims.get(("default", "data"))
            return claim.status.capacity.get("storage") if claim is not None else None

        await until(lambda: size() == "2Gi")
        assert (await some.volume()).spec.capacity == {"storage": "2Gi"}
        claim = claims.get(("default", "data"))
        assert claim is not None and not claim.status.conditions
        assert await some.notes("VolumeResizeFailed")
        assert await some.notes("VolumeResizeSuccessful")


async def test_a_claim_can_be_a_copy_of_another() -> None:
    """The request has the handle of the source, and the copy is in the zone of its source."""
    async with loops(ZONES) as some:
        await three(some)
        await some.storage_class(waits=False)
        await some.claim("www-web-1")
        source = {"kind": "PersistentVolumeClaim", "name": "www-web-1"}
        await some.claim("small", size="512Mi", dataSource=source)
        await some.claim("twin-web-1", dataSource=source)
        await until(lambda: some.phase("twin-web-1") == "Bound", within=60)
        origin, copy = await some.volume("www-web-1"), await some.volume("twin-web-1")
        assert zones_of(copy) == zones_of(origin)
        request = some.client.requests("CreateVolume")[-1]
        assert origin.spec.csi is not None
        assert request.volume_content_source.volume.volume_id == origin.spec.csi.volume_handle
        assert any(
            "smaller than its source" in note for note in await some.notes("ProvisioningFailed")
        )


@asynccontextmanager
async def working(some: Loops) -> AsyncIterator[None]:
    """The controllers of a provisioner, cancelled at the end."""
    components = Program(some.cluster.server.connect, clock=lambda: EPOCH, rng=random.Random(2))
    components.add(
        "csi", lambda context: DriverSidecars(context, client=some.client, namespace=NAMESPACE)
    )
    work = asyncio.create_task(components.run())
    try:
        yield
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


class Idle:
    """A component that does nothing."""

    def __init__(self, _: ControllerContext) -> None: ...

    async def run(self) -> None:
        """Wait until cancelled."""
        await asyncio.Event().wait()


async def test_a_new_provisioner_clears_up_after_a_killed_one() -> None:
    """A lost answer, a deleted claim and a killed process: the next process deletes the volume."""
    async with loops(ZONES, parts={"csi": Idle}) as some:
        await three(some)
        await some.storage_class(waits=False)
        await some.claim()
        some.client.after = True
        some.client.faults["CreateVolume"] = [Code.UNAVAILABLE]
        async with working(some):
            await until(lambda: len(some.client.requests("CreateVolume")) == 1)
        await some.cluster.client.delete(PersistentVolumeClaim, "data", "default")
        await asyncio.sleep(30)
        assert some.phase() == "Pending"
        assert any((some.folder / "pools").rglob("vol-*"))
        async with working(some):
            await until(lambda: some.phase() == "")
        assert not any((some.folder / "pools").rglob("vol-*"))


async def test_a_volume_without_its_object_is_recorded_once() -> None:
    """After a kill between the driver's answer and the object the next process repeats the call."""
    async with loops(ZONES, parts={"csi": Idle}) as some:
        await three(some)
        await some.storage_class(waits=False)
        await some.claim("www-web-1")
        some.client.after = True
        some.client.faults["CreateVolume"] = [Code.DEADLINE_EXCEEDED]
        async with working(some):
            await until(lambda: len(some.client.requests("CreateVolume")) == 1)
        await some.node("n-0", "0")
        async with working(some):
            await until(lambda: some.phase("www-web-1") == "Bound")
        assert zones_of(await some.volume("www-web-1")) == ["b"]
        assert len([*(some.folder / "pools").rglob("vol-*")]) == 1
