"""The manifests of ``zonewise install``, applied to an embedded cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.embedded.whole_cluster import settled, whole

from zonewise.api import Pod, TopologyDisruptionBudget
from zonewise.api.errors import Forbidden, NotFound, TooManyRequests
from zonewise.embedded.built_in import NOT_CALLED, NOT_DELETED
from zonewise.embedded.cluster import EmbeddedCluster
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
        assert set(warned) == hooks
        assert all(NOT_CALLED in text for text in warned.values())
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
