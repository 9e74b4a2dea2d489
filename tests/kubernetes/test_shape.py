"""A dump of a real cluster, as kubectl prints it, runs as an embedded cluster."""

from __future__ import annotations

import pytest
from tests.embedded.whole_cluster import settled, whole
from tests.kubernetes.scene import Scene, inhabited

from tools import realkube as real
from zonewise.api import Pod
from zonewise.embedded.seed.dump_import import import_dump, read_dump
from zonewise.runtime.cache import dump

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

NAMESPACE = "shaped"
WORKLOADS = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 5
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {matchLabels: {app: web}}
        matchLabelKeys: [pod-template-hash]
      containers: [{name: web, image: "web:1"}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: store}
spec:
  serviceName: store
  replicas: 2
  selector: {matchLabels: {app: store}}
  template:
    metadata: {labels: {app: store}}
    spec: {containers: [{name: store, image: "store:1"}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec: {containers: [{name: agent, image: "agent:1"}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}], trafficDistribution: PreferSameZone}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}
"""


async def dumped(scene: Scene) -> bytes:
    """A dump of all objects in all namespaces."""
    kinds = (await scene.kubectl("api-resources", "--verbs=list", "-o", "name")).split()
    return (await scene.kubectl("get", ",".join(kinds), "-A", "-o", "yaml")).encode()


async def test_a_real_cluster_is_imported(
    realkube: real.ControlPlane, real_binaries: real.Binaries
) -> None:
    """Every pod keeps its name and node, workloads adopt them, and nothing rolls."""
    scene = Scene(real_binaries.path("kubectl"), realkube.kubeconfig, NAMESPACE)
    async with inhabited(realkube.kubeconfig, kubelets=True):
        await scene.kubectl("create", "namespace", NAMESPACE)
        await scene.kubectl("apply", "-f", "-", stdin=WORKLOADS)
        for workload in ("deployment/web", "statefulset/store", "daemonset/agent"):
            await scene.kubectl("rollout", "status", workload, "--timeout=150s")
        text = await dumped(scene)
        pods = await scene.items("pods")
        await scene.kubectl("delete", "namespace", NAMESPACE)
    before = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods}
    assert len(before) == 10
    imported = import_dump(read_dump(dump.parse(text, "dump")), keep_placement=True)
    ours = [
        obj for obj in imported.objects if obj["metadata"].get("namespace") in (None, NAMESPACE)
    ]
    async with whole(ours) as cluster:
        await settled(cluster)
        after = {
            pod.metadata.name: pod.spec.node_name
            for pod in await cluster.client.list(Pod, NAMESPACE)
        }
        assert after == before
