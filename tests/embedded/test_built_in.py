"""The manifests of ``zonewise install``, applied to an embedded cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.embedded.virtual_cluster import until
from tests.embedded.volume_cluster import living, pods
from tests.embedded.whole_cluster import settled, whole

from zonewise.api import Pod, StatefulSet, TopologyDisruptionBudget
from zonewise.api.errors import Forbidden, NotFound, TooManyRequests
from zonewise.embedded.built_in import NOT_CALLED, NOT_DELETED, NOT_RUN
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.install.csi import CsiInstallation, render_csi
from zonewise.install.installation import Installation
from zonewise.install.manifests import render_manifests

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

Obj = dict[str, Any]
LABELS = {"app": "web"}
TEMPLATE = {
    "metadata": {"labels": LABELS},
    "spec": {"containers": [{"name": "web", "image": "web"}]},
}


def shop() -> list[Obj]:
    """Two pods under a budget that allows one, in a namespace that has opted in."""
    selector = {"matchLabels": LABELS}
    meta = {"name": "web", "namespace": "shop"}
    opted = {"name": "shop", "labels": {"zonewise.io/budgets": "enforce"}}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": opted},
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": "a"}},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta,
            "spec": {"replicas": 2, "selector": selector, "template": TEMPLATE},
        },
        {
            "apiVersion": "zonewise.io/v1alpha1",
            "kind": "TopologyDisruptionBudget",
            "metadata": meta,
            "spec": {"selector": selector, "maxUnavailable": 0},
        },
    ]


def path_of(cluster: EmbeddedCluster, item: Obj) -> str:
    """The path of an object."""
    served = cluster.server.registry.by_kind(item["apiVersion"], item["kind"])
    assert served is not None, item["kind"]
    meta = item["metadata"]
    return served.kind.resource.path(meta.get("namespace", ""), meta["name"])


async def apply(cluster: EmbeddedCluster, objects: list[Obj]) -> dict[str, str]:
    """Apply objects as kubectl does; gives the warnings by kind."""
    warned = {}
    for item in objects:
        answer = await cluster.client.raw(
            "PATCH",
            path_of(cluster, item),
            query={"fieldManager": "kubectl", "force": "true"},
            headers={"Content-Type": "application/apply-patch+yaml"},
            body=json.dumps(item).encode(),
        )
        if "Warning" in answer.headers:
            warned[item["kind"]] = answer.headers["Warning"]
    return warned


async def evicted(cluster: EmbeddedCluster) -> None:
    """Evict a pod of the namespace."""
    pod, *_ = await cluster.client.list(Pod, "shop")
    await cluster.client.evict(pod.metadata.name, "shop")


async def test_an_embedded_cluster_needs_no_installation() -> None:
    """The manifests are accepted with a warning, the webhooks are not called, and deleting the
    manifests leaves budgets and the kinds that the cluster needs.
    """
    printed = render_manifests(Installation(role="adopt", budgets="enforce"))
    async with whole(shop()) as cluster:
        await settled(cluster)
        warned = await apply(cluster, printed)
        hooks = {"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"}
        assert set(warned) == hooks | {"Deployment"}
        assert all(NOT_CALLED in warned[kind] for kind in hooks)
        assert NOT_RUN in warned["Deployment"]
        with pytest.raises(TooManyRequests, match="disruption budget"):
            await evicted(cluster)
        protected = set()
        for item in printed:
            try:
                await cluster.client.raw("DELETE", path_of(cluster, item))
            except Forbidden as error:
                assert NOT_DELETED in str(error)
                protected.add(item["metadata"]["name"])
            except NotFound:
                continue
        assert protected == {
            "disruptionledgers.zonewise.io",
            "domainrollouts.zonewise.io",
            "podlocators.zonewise.io",
            "topologydisruptionbudgets.zonewise.io",
        }
        budget = await cluster.client.get(TopologyDisruptionBudget, "web", "shop")
        opened = {"spec": {"maxUnavailable": 1}}
        await cluster.client.patch(TopologyDisruptionBudget, budget.metadata.name, "shop", opened)
        await settled(cluster)
        await evicted(cluster)


async def test_the_driver_of_volumes_is_not_installed_beside_the_one_that_is_built_in(
    tmp_path: Path,
) -> None:
    """The manifests of the CSI driver are accepted with a warning that their pods run nothing, and
    deleting them leaves the CSIDriver and its namespace, so that volumes are made as before.
    """
    printed = [
        item
        for item in render_csi(CsiInstallation(image="zonewise"))
        if item["kind"] in ("Namespace", "CSIDriver", "ConfigMap", "Deployment", "DaemonSet")
    ]
    async with living(tmp_path) as cluster:
        await until(lambda: len(pods(cluster)) == 3)
        warned = await apply(cluster, printed)
        assert set(warned) == {"Deployment", "DaemonSet"}
        assert all(NOT_RUN in text for text in warned.values())
        for item in printed:
            if item["kind"] in ("CSIDriver", "Namespace"):
                with pytest.raises(Forbidden, match=NOT_DELETED):
                    await cluster.client.raw("DELETE", path_of(cluster, item))
            else:
                await cluster.client.raw("DELETE", path_of(cluster, item))
        await cluster.client.patch(StatefulSet, "db", "default", {"spec": {"replicas": 4}})
        await until(lambda: len(pods(cluster)) == 4)
