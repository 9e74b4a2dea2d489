"""``install --csi`` with the official sidecars that it prints, on a real control plane.

They run with exactly the printed arguments and rights: ``printed_driver.py``.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.kubernetes.printed_driver import (
    CONTROLLER,
    DRIVER,
    KEY,
    NAMESPACE,
    ZONES,
    Installed,
    Obj,
    install,
    on_node,
    settings,
    until,
)
from tools.realkube.binaries import find
from tools.sidecars.binary import SIDECARS, VERSIONS

from tools import realkube as real
from zonewise.api.errors import Conflict, Forbidden
from zonewise.install import csi
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
]

SHOP = "shop"
MIB = 1 << 20
POOLS = {
    "version": 2,
    "pools": [
        {
            "poolName": f"pool-{zone}",
            "capacity": "512Mi",
            "domainSegments": [{"domainLabel": "zone", "value": zone}],
        }
        for zone in ZONES
    ],
}


@pytest.fixture(scope="module")
def sidecars() -> real.Binaries:
    """The official sidecars, built before the tests."""
    binaries = find(SIDECARS)
    if binaries is None:
        pytest.fail("The sidecars are not built; `python -m tools.sidecars build` does.")
    return binaries


@pytest.fixture(scope="module")
def plane(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    """A control plane of its own: the driver, its definitions and nodes are for all namespaces."""
    with real.start(settings(), binaries=real_binaries) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installed(
    plane: real.ControlPlane, sidecars: real.Binaries, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Installed]:
    """The driver, with two classes and a class of snapshots."""
    folder = tmp_path_factory.mktemp("sidecars")
    async with install(plane, sidecars, folder, POOLS) as driver:
        await driver.send("POST", "namespaces", body={"metadata": {"name": SHOP}})
        for name, mode in (("late", "WaitForFirstConsumer"), ("early", "Immediate")):
            body = {
                "metadata": {"name": name},
                "provisioner": DRIVER,
                "volumeBindingMode": mode,
                "allowVolumeExpansion": True,
            }
            await driver.send("POST", "storageclasses", body=body)
        body = {
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshotClass",
            "metadata": {"name": "kept"},
            "driver": DRIVER,
            "deletionPolicy": "Delete",
        }
        await driver.send("POST", "volumesnapshotclasses", body=body)
        assert driver.denied() == []
        yield driver


@pytest.fixture(autouse=True)
def audit(installed: Installed) -> None:
    """Each test looks only at what is refused during it: one of them is refused on purpose."""
    installed.begin_audit()


async def claim(
    installed: Installed, name: str, storage_class: str = "late", size: str = "64Mi", **spec: Any
) -> None:
    """Create a claim."""
    body = {
        "metadata": {"name": name},
        "spec": {
            "storageClassName": storage_class,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}},
            **spec,
        },
    }
    await installed.send("POST", "persistentvolumeclaims", "", SHOP, body)


async def pod(installed: Installed, name: str, **spec: Any) -> None:
    """Create a pod that uses the claim of its name."""
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": name}}
    containers = [{"name": "main", "image": "shop"}]
    body = {
        "metadata": {"name": name},
        "spec": {"containers": containers, "volumes": [volume], **spec},
    }
    await installed.send("POST", "pods", "", SHOP, body)


async def volume_of(installed: Installed, name: str) -> Obj:
    """The volume of a claim, once they are bound."""

    async def bound() -> str:
        installed.check()
        there = await installed.send("GET", "persistentvolumeclaims", name, SHOP)
        bound = there["status"].get("phase") == "Bound"
        return str(there["spec"]["volumeName"]) if bound else ""

    return await installed.send("GET", "persistentvolumes", await until(bound))


async def zone_of(installed: Installed, name: str) -> str:
    """The zone in which a pod runs."""

    async def running() -> str:
        there = await installed.send("GET", "pods", name, SHOP)
        started = there["status"].get("phase") == "Running"
        return str(there["spec"]["nodeName"]) if started else ""

    node = await installed.send("GET", "nodes", await until(running))
    return str(node["metadata"]["labels"][KEY])


async def snapshot(installed: Installed, name: str, source: str) -> Obj:
    """Make a snapshot of a claim; returns it when it can be used."""
    body = {
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {"name": name},
        "spec": {
            "volumeSnapshotClassName": "kept",
            "source": {"persistentVolumeClaimName": source},
        },
    }
    await installed.send("POST", "volumesnapshots", "", SHOP, body)

    async def ready() -> Obj | None:
        installed.check()
        there = await installed.send("GET", "volumesnapshots", name, SHOP)
        return there if there.get("status", {}).get("readyToUse") else None

    usable: Obj = await until(ready)
    return usable


async def remove(installed: Installed, *names: str) -> None:
    """Delete pods and claims of these names, and wait until their volumes are deleted, too."""
    for name in names:
        volume = await volume_of(installed, name)
        await installed.send("DELETE", "pods", name, SHOP, {"gracePeriodSeconds": 0})
        await installed.send("DELETE", "persistentvolumeclaims", name, SHOP)
        await installed.gone("persistentvolumes", volume["metadata"]["name"])


def zones(volume: Obj) -> list[str]:
    """The zones from which a volume can be used, besides by nodes that stand in for them."""
    terms = volume["spec"].get("nodeAffinity", {}).get("required", {}).get("nodeSelectorTerms", [])
    return [
        value
        for term in terms
        for needs in term["matchExpressions"]
        if needs["key"] == KEY
        for value in needs["values"]
    ]


async def test_the_sidecars_are_those_that_are_printed(
    installed: Installed, sidecars: real.Binaries
) -> None:
    """The programs under test have the versions of the printed images."""
    containers = installed.workload("Deployment")["containers"]
    images = {item["name"]: item["image"] for item in containers if item["name"] != "driver"}
    assert images.keys() == VERSIONS.keys() - {"snapshot-controller"}
    for name, image in images.items():
        assert image.rpartition("/")[2] == f"{name}:{VERSIONS[name]}"
        command = [str(sidecars.path(name)), "--version"]
        answer = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, check=True
        )
        assert answer.stdout.split()[-1] == VERSIONS[name]


async def test_a_claim_is_provisioned_where_its_pod_runs(installed: Installed) -> None:
    """The scheduler knows each zone's capacity, and the volume is in the zone of the pod."""
    await claim(installed, "near")
    await pod(installed, "near", nodeSelector={KEY: "b"})
    assert await zone_of(installed, "near") == "b"
    volume = await volume_of(installed, "near")
    assert zones(volume) == ["b"]
    assert volume["spec"]["csi"]["driver"] == DRIVER

    (deployment,) = await installed.items("deployments", NAMESPACE)
    capacities = await installed.items("csistoragecapacities", NAMESPACE)
    late = [item for item in capacities if item["storageClassName"] == "late"]
    assert sorted(item["nodeTopology"]["matchLabels"][KEY] for item in late) == [*ZONES]
    for item in late:
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("Deployment", CONTROLLER)
        assert owner["uid"] == deployment["metadata"]["uid"]
    await remove(installed, "near")
    assert installed.denied() == []


async def test_a_claim_that_binds_immediately_is_usable_from_everywhere(
    installed: Installed,
) -> None:
    """It gets a volume before it has a pod, and no zone, so that its pod may run anywhere."""
    await claim(installed, "anywhere", "early")
    assert zones(await volume_of(installed, "anywhere")) == []
    await pod(installed, "anywhere", nodeSelector={KEY: "c"})
    assert await zone_of(installed, "anywhere") == "c"
    await remove(installed, "anywhere")
    assert installed.denied() == []


async def test_a_claim_grows(installed: Installed) -> None:
    """The resizer makes the volume larger, and leaves the file system to the node of the pod."""
    await claim(installed, "growing")
    await pod(installed, "growing", nodeSelector={KEY: "b"})
    before = await volume_of(installed, "growing")
    assert before["spec"]["capacity"]["storage"] == "64Mi"
    larger = {"spec": {"resources": {"requests": {"storage": "96Mi"}}}}
    await installed.send("PATCH", "persistentvolumeclaims", "growing", SHOP, larger)

    async def resized() -> Obj | None:
        installed.check()
        volume = await volume_of(installed, "growing")
        return volume if volume["spec"]["capacity"]["storage"] == "96Mi" else None

    async def waiting_for_its_node() -> bool:
        there = await installed.send("GET", "persistentvolumeclaims", "growing", SHOP)
        conditions = there["status"].get("conditions", ())
        return any(item["type"] == "FileSystemResizePending" for item in conditions)

    await until(resized)
    await until(waiting_for_its_node)
    await remove(installed, "growing")
    assert installed.denied() == []


async def test_a_snapshot_is_restored(installed: Installed, tmp_path: Path) -> None:
    """A claim made from a snapshot has what was in the volume then, a clone what is in it now."""
    await claim(installed, "orders")
    await pod(installed, "orders", nodeSelector={KEY: "b"})
    handle = (await volume_of(installed, "orders"))["spec"]["csi"]["volumeHandle"]
    async with on_node(installed, handle, tmp_path / "orders") as mounted:
        (mounted / "log").write_text("first")
    monday = await snapshot(installed, "monday", "orders")
    content = monday["status"]["boundVolumeSnapshotContentName"]
    async with on_node(installed, handle, tmp_path / "later") as mounted:
        (mounted / "log").write_text("second")

    group = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "monday"}
    await claim(installed, "restored", dataSource=group)
    await claim(installed, "cloned", dataSource={"kind": "PersistentVolumeClaim", "name": "orders"})
    for name, text in (("restored", "first"), ("cloned", "second")):
        await pod(installed, name, nodeSelector={KEY: "b"})
        volume = await volume_of(installed, name)
        assert zones(volume) == ["b"]
        handle = volume["spec"]["csi"]["volumeHandle"]
        async with on_node(installed, handle, tmp_path / name) as mounted:
            assert (mounted / "log").read_text() == text

    await installed.send("DELETE", "volumesnapshots", "monday", SHOP)
    await installed.gone("volumesnapshotcontents", content)
    await remove(installed, "restored", "cloned", "orders")
    assert installed.denied() == []


async def test_of_a_snapshot_only_the_finalizer_of_restores_may_change(
    installed: Installed,
) -> None:
    """The provisioner's account may hold a snapshot while it is restored, and change nothing."""
    await claim(installed, "source", "early")
    await pod(installed, "source")
    await volume_of(installed, "source")
    restoring = await snapshot(installed, "held", "source")
    finalizers = restoring["metadata"]["finalizers"]
    assert finalizers
    controller = await installed.pod_of("controller")
    kubeconfig = await installed.kubeconfig(CONTROLLER, controller)
    async with Client(HttpsTransport(load_config(str(kubeconfig)))) as provisioner:

        async def update(**changes: Any) -> str:
            """The answer to an update of its metadata, which is not stored."""
            current = await installed.send("GET", "volumesnapshots", "held", SHOP)
            current["metadata"] |= changes
            arguments = ("PUT", "volumesnapshots", "held", SHOP, current)
            try:
                await installed.send(*arguments, client=provisioner, query={"dryRun": "All"})
            except (Forbidden, Conflict) as error:
                return str(error)
            return "stored"

        async def allowed() -> bool:
            return await update(finalizers=[*finalizers, csi.RESTORING]) == "stored"

        async def denied() -> bool:
            attacks = [await update(finalizers=[]), await update(labels={"team": "shop"})]
            return all("may change only the finalizer" in answer for answer in attacks)

        await until(denied)
        await until(allowed)
    await installed.send("DELETE", "volumesnapshots", "held", SHOP)
    await installed.gone("volumesnapshots", "held", SHOP)
    await remove(installed, "source")
