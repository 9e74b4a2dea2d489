"""An embedded cluster with the CSI driver, and pods with a volume each."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.embedded.virtual_cluster import EPOCH

from zonewise.api import Node, Pod
from zonewise.api.objects.pod_state import is_pod_ready
from zonewise.csi.transport.calls import run_inline
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.embedded.csi_driver import CLASS_NAME, EmbeddedDriver
from zonewise.embedded.seed.nodes import NodeLayout


@asynccontextmanager
async def living(
    folder: Path, *, killed: bool = False, privileged: bool = False
) -> AsyncIterator[EmbeddedCluster]:
    """A cluster with the driver; a killed one leaves everything as it is."""
    loop = asyncio.get_running_loop()
    driver = EmbeddedDriver(folder, worker=run_inline, privileged=privileged)
    cluster = EmbeddedCluster(
        folder,
        clock=lambda: EPOCH + loop.time(),
        rng=random.Random(1),
        inline=True,
        driver=driver,
    )
    await cluster.server.start_local()
    work = asyncio.create_task(cluster.run())
    try:
        layout = NodeLayout(nodes_per_zone=2, cpus=("4",))
        await cluster.seeder.create([*layout.nodes(), *objects()])
        yield cluster
        assert not work.done(), work.exception()
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        if not killed:
            await driver.unmount()
        await cluster.close()
        driver.close()


def objects() -> list[dict[str, Any]]:
    """A StatefulSet of three with a volume each, one in every zone."""
    spread = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "db"}},
    }
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "storageClassName": CLASS_NAME,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "64Mi"}},
        },
    }
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "db", "namespace": "default"},
            "spec": {
                "serviceName": "db",
                "replicas": 3,
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": {"app": "db"}},
                "template": {
                    "metadata": {"labels": {"app": "db"}},
                    "spec": {
                        "topologySpreadConstraints": [spread],
                        "containers": [
                            {
                                "name": "c",
                                "image": "c",
                                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                            }
                        ],
                    },
                },
                "volumeClaimTemplates": [claim],
            },
        }
    ]


def pods(cluster: EmbeddedCluster) -> dict[str, Pod]:
    """The pods that are ready, by name."""
    store = cluster.program.cache.store(Pod)
    return {
        pod.metadata.name: pod
        for pod in store
        if is_pod_ready(pod) and pod.metadata.deletion_timestamp is None
    }


def zone(cluster: EmbeddedCluster, pod: Pod) -> str:
    """The zone of a pod's node."""
    node = cluster.program.cache.store(Node).get(("", pod.spec.node_name))
    assert node is not None
    return node.metadata.labels["topology.kubernetes.io/zone"]


def path(folder: Path, pod: Pod) -> Path:
    """The path at which a pod has its volume."""
    pattern = f"**/{pod.spec.node_name}/**/pods/{pod.metadata.uid}/volumes/*/*/mount"
    (mount,) = folder.glob(pattern)
    return mount
