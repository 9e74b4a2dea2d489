"""From which objects the DNS server reads locations."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.embedded.virtual_cluster import VirtualCluster, virtual_cluster

from zonewise.controllers.locators.definition import definition
from zonewise.dns.sources import Sources
from zonewise.embedded.apiserver.auth.authentication import AUTHENTICATED
from zonewise.embedded.apiserver.http.local_transport import LocalTransport
from zonewise.embedded.apiserver.request.call import User
from zonewise.embedded.seed.seeder import Seeder
from zonewise.runtime.client.client import Client

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def plant(cluster: VirtualCluster, *objects: dict[str, Any]) -> None:
    """Create objects in the cluster."""
    await Seeder(cluster.client, cluster.server.registry).create(objects)


async def reader(cluster: VirtualCluster, group: str, *resources: str) -> Client:
    """A client that may read some resources and nothing else."""
    meta, rbac = {"name": "dns"}, "rbac.authorization.k8s.io"
    rule = {"apiGroups": [group], "resources": list(resources), "verbs": ["get", "list", "watch"]}
    bound = {
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "dns"},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": "dns"}],
    }
    version = {"apiVersion": f"{rbac}/v1", "metadata": meta}
    await plant(
        cluster,
        {**version, "kind": "ClusterRole", "rules": [rule]},
        {**version, "kind": "ClusterRoleBinding", **bound},
    )
    user = User("dns", (AUTHENTICATED,))
    return Client(LocalTransport(cluster.server.handle, user), field_manager="dns")


async def test_the_definition_of_locators_is_waited_for() -> None:
    """A server that may read PodLocators only starts when they are served, without a restart."""
    async with virtual_cluster({}) as cluster:
        client = await reader(cluster, "zonewise.io", "podlocators")
        finding = asyncio.create_task(Sources.find(client))
        await asyncio.sleep(30)
        assert not finding.done()
        await plant(cluster, definition())
        assert await finding == Sources(locators=True, nodes=False)


async def test_pods_serve_where_there_are_no_locators() -> None:
    """Without the definition, locations are read from pods and nodes."""
    async with virtual_cluster({}) as cluster:
        client = await reader(cluster, "", "pods", "nodes")
        assert await Sources.find(client) == Sources(locators=False, nodes=True)
