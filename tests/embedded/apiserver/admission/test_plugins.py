"""What admission plugins wait for and refuse."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.embedded.virtual_cluster import VirtualCluster, virtual_cluster

from zonewise.api.errors import Forbidden

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def post(cluster: VirtualCluster, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Create an object."""
    answer = await cluster.client.raw("POST", f"/api/v1/{path}", body=msgspec.json.encode(body))
    created: dict[str, Any] = msgspec.json.decode(answer.body)
    return created


def pod(account: str = "") -> dict[str, Any]:
    """A pod of one container."""
    spec: dict[str, Any] = {"containers": [{"name": "c", "image": "c"}]}
    return {"metadata": {"name": "p"}, "spec": spec | {"serviceAccountName": account}}


async def test_a_pod_may_follow_its_namespace_at_once() -> None:
    """A pod waits for the account of its new namespace, which is made after the namespace."""
    async with virtual_cluster({}) as cluster:
        await post(cluster, "namespaces", {"metadata": {"name": "new"}})
        assert cluster.server.state.latest("/serviceaccounts", "new", "default") is None
        created = await post(cluster, "namespaces/new/pods", pod())
    assert created["spec"]["serviceAccountName"] == "default"


async def test_no_pod_waits_for_an_account_that_does_not_exist() -> None:
    """Only the account that every namespace gets is waited for; others are refused at once."""
    async with virtual_cluster({}) as cluster:
        with pytest.raises(Forbidden, match='serviceaccount "other" not found'):
            await post(cluster, "namespaces/default/pods", pod("other"))


async def test_the_first_plugin_in_the_order_of_a_real_server_refuses() -> None:
    """Of several plugins that would refuse a pod, ServiceAccount is before Priority."""
    body = pod("other")
    body["spec"]["priorityClassName"] = "none"
    async with virtual_cluster({}) as cluster:
        with pytest.raises(Forbidden, match='serviceaccount "other" not found'):
            await post(cluster, "namespaces/default/pods", body)
        del body["spec"]["serviceAccountName"]
        with pytest.raises(Forbidden, match="no PriorityClass with name none"):
            await post(cluster, "namespaces/default/pods", body)
