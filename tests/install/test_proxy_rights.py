"""The rights that ``zonewise install --proxy`` prints: enough for a proxy, and none to write."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from tests.embedded.virtual_cluster import until, virtual_cluster
from tests.proxy.proxier_trial import SLICE
from tests.proxy.remembering_kernel import NODE, SERVICE, Remembering

from zonewise.api.errors import Forbidden
from zonewise.api.objects.locator import PodLocator
from zonewise.api.unstructured import unstructured
from zonewise.controllers.locators.definition import definition
from zonewise.embedded.apiserver.http.local_transport import LocalTransport
from zonewise.embedded.apiserver.request.call import User
from zonewise.embedded.seed.seeder import Seeder
from zonewise.install.proxy import PROXY, ProxyInstallation, render_proxy
from zonewise.proxy.proxier import Proxier
from zonewise.proxy.settings import ProxySettings
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.client.client import Client

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

RACK = "example.com/rack"
LOCATOR = unstructured(PodLocator.resource)
GROUPS = ("system:serviceaccounts", f"system:serviceaccounts:{PROXY}", "system:authenticated")


async def test_a_proxy_may_read_locators_and_not_write_them() -> None:
    """Under its printed account a proxy routes by labels that PodLocators have, and may neither
    create, change nor delete one.
    """
    async with virtual_cluster({}) as cluster:
        manifests = render_proxy(ProxyInstallation(image="zonewise:1"))
        rights = [item for item in manifests if item["kind"].startswith("ClusterRole")]
        assert len(rights) == 2
        await Seeder(cluster.client, cluster.server.registry).create([*rights, definition()])
        for name in ("n1", "n2"):
            await cluster.client.create(NODE({"metadata": {"name": name, "labels": {RACK: "r1"}}}))
        metadata = {"name": "db", "namespace": "default"}
        located = {"nodeName": "n2", "nodeLabels": {RACK: "r1"}, "ips": [{"ip": "10.244.0.5"}]}
        await cluster.client.create(LOCATOR({"metadata": metadata, **located}))
        keyed = {**metadata, "annotations": {"zonewise.io/topology-keys": RACK}}
        port = {"name": "p", "port": 80, "targetPort": 8080}
        service = await cluster.client.create(
            SERVICE({"metadata": keyed, "spec": {"ports": [port]}})
        )
        await cluster.client.create(
            SLICE(
                {
                    "metadata": {**metadata, "labels": {"kubernetes.io/service-name": "db"}},
                    "addressType": "IPv4",
                    "ports": [{"name": "p", "port": 8080, "protocol": "TCP"}],
                    "endpoints": [{"addresses": ["10.244.0.5"], "nodeName": "n2"}],
                }
            )
        )
        user = User(f"system:serviceaccount:{PROXY}:{PROXY}", GROUPS)
        client = Client(LocalTransport(cluster.server.handle, user), field_manager="proxy")
        cache, kernel = Cache(client), Remembering()
        proxier = Proxier(cache, kernel, ProxySettings(node_name="n1"))
        tasks = [asyncio.create_task(work) for work in (cache.run(), proxier.run())]
        address = str(service.raw["spec"]["clusterIP"])
        await until(lambda: kernel.chosen(address) == {"10.244.0.5"})
        assert any("podlocators" in stats.resource for stats in cache.stats)
        for refused in (
            client.create(LOCATOR({"metadata": {**metadata, "name": "mine"}, **located})),
            client.patch(PodLocator, "db", "default", {"nodeName": "n1"}),
            client.delete(PodLocator, "db", "default"),
        ):
            with pytest.raises(Forbidden):
                await refused
        for task in reversed(tasks):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        kernel.heard.close()
