"""Quotas and limits of namespaces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster

from zonewise.api.errors import Forbidden, Status
from zonewise.api.objects.pod import Pod

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


@asynccontextmanager
async def counting() -> AsyncIterator[VirtualCluster]:
    """A cluster that writes the status of its quotas."""
    async with virtual_cluster({}) as cluster:
        work = asyncio.create_task(cluster.server.quota_status.run())
        yield cluster
        work.cancel()


async def post(cluster: VirtualCluster, resource: str, name: str, **body: Any) -> dict[str, Any]:
    """Create an object in ``default``."""
    whole = {"metadata": {"name": name}, **body}
    answer = await cluster.client.raw(
        "POST", f"/api/v1/namespaces/default/{resource}", body=msgspec.json.encode(whole)
    )
    created: dict[str, Any] = msgspec.json.decode(answer.body)
    return created


async def pod(
    cluster: VirtualCluster, name: str, resources: Any = None, **spec: Any
) -> dict[str, Any]:
    """A pod of one container."""
    container = {"name": "c", "image": "c", "resources": resources or {}}
    return await post(cluster, "pods", name, spec={"containers": [container], **spec})


def used(cluster: VirtualCluster, name: str = "q") -> dict[str, str]:
    """The usage in a quota's status."""
    entry = cluster.server.state.get("/resourcequotas", "default", name)
    status = msgspec.json.decode(entry.raw).get("status") if entry else None
    usage: dict[str, str] = (status or {}).get("used") or {}
    return usage


async def test_a_quota_counts_and_refuses() -> None:
    """Pods, CPU, Services and objects of a kind are counted; what is deleted is free again."""
    async with counting() as cluster:
        hard = {
            "pods": "2",
            "requests.cpu": "1",
            "limits.memory": "1Gi",
            "services.nodeports": "1",
            "count/secrets": "1",
        }
        await post(cluster, "resourcequotas", "q", spec={"hard": hard})
        await until(lambda: used(cluster) == dict.fromkeys(hard, "0"))
        with pytest.raises(Forbidden, match=r"failed quota: q: must specify limits.memory for: c;"):
            await pod(cluster, "silent", {"requests": {"memory": "1Mi"}})
        sized = {"requests": {"cpu": "400m"}, "limits": {"memory": "256Mi", "cpu": "1"}}
        await pod(cluster, "a", sized)
        await until(lambda: used(cluster)["requests.cpu"] == "400m")
        assert used(cluster)["limits.memory"] == "256Mi"
        large = {"requests": {"cpu": "700m"}, "limits": {"memory": "1Mi", "cpu": "1"}}
        with pytest.raises(Forbidden) as caught:
            await pod(cluster, "b", large)
        assert str(caught.value) == (
            'pods "b" is forbidden: exceeded quota: q, requested: requests.cpu=700m, used:'
            " requests.cpu=400m, limited: requests.cpu=1"
        )
        await post(cluster, "secrets", "one")
        with pytest.raises(Forbidden, match="count/secrets=1"):
            await post(cluster, "secrets", "two")
        ports = [{"name": name, "port": port} for name, port in (("a", 80), ("b", 81))]
        with pytest.raises(Forbidden, match=r"requested: services.nodeports=2"):
            await post(cluster, "services", "s", spec={"type": "NodePort", "ports": ports})
        await cluster.client.delete(Pod, "a", "default")
        await until(lambda: used(cluster)["pods"] == "0")
        await pod(cluster, "b", large)


async def test_the_last_of_a_quota_is_given_once() -> None:
    """Of many concurrent pods only as many are created as fit."""
    async with counting() as cluster:
        await post(cluster, "resourcequotas", "q", spec={"hard": {"pods": "3"}})
        await until(lambda: used(cluster) == {"pods": "0"})
        answers = await asyncio.gather(
            *(pod(cluster, f"p{n}") for n in range(10)), return_exceptions=True
        )
        assert sum(isinstance(answer, dict) for answer in answers) == 3
        assert sum(isinstance(answer, Forbidden) for answer in answers) == 7
        await until(lambda: used(cluster) == {"pods": "3"})
        with pytest.raises(Forbidden):
            await pod(cluster, "late")


async def test_scopes() -> None:
    """A quota of best effort pods counts no others; finished pods use nothing."""
    async with counting() as cluster:
        spec = {"hard": {"pods": "5"}}
        await post(cluster, "resourcequotas", "best", spec={**spec, "scopes": ["BestEffort"]})
        await post(cluster, "resourcequotas", "ending", spec={**spec, "scopes": ["Terminating"]})
        await pod(cluster, "plain")
        await pod(cluster, "sized", {"requests": {"cpu": "1"}}, activeDeadlineSeconds=9)
        await until(lambda: used(cluster, "best") == {"pods": "1"} == used(cluster, "ending"))
        body = {"status": {"phase": "Succeeded"}}
        await cluster.client.patch(Pod, "plain", "default", body, subresource="status")
        await until(lambda: used(cluster, "best") == {"pods": "0"})


async def test_limit_ranges_give_and_refuse() -> None:
    """Containers get defaults; too small and too large requests are refused."""
    async with virtual_cluster({}) as cluster:
        limit = {
            "type": "Container",
            "min": {"cpu": "50m"},
            "max": {"cpu": "500m"},
            "default": {"cpu": "300m"},
            "defaultRequest": {"cpu": "100m"},
            "maxLimitRequestRatio": {"cpu": "4"},
        }
        await post(cluster, "limitranges", "l", spec={"limits": [limit]})
        created = await pod(cluster, "a")
        assert created["spec"]["containers"][0]["resources"] == {
            "requests": {"cpu": "100m"},
            "limits": {"cpu": "300m"},
        }
        assert created["metadata"]["annotations"]["kubernetes.io/limit-ranger"] == (
            "LimitRanger plugin set: cpu request for container c; cpu limit for container c"
        )
        for requests, limits, why in (
            ("10m", "40m", "minimum cpu usage per Container is 50m, but request is 10m"),
            ("300m", "600m", "maximum cpu usage per Container is 500m, but limit is 600m"),
            ("60m", "480m", "max limit to request ratio per Container is 4, but provided ratio"),
        ):
            with pytest.raises(Forbidden, match=why):
                await pod(cluster, "b", {"requests": {"cpu": requests}, "limits": {"cpu": limits}})


async def test_a_status_that_is_refused_is_written_later_and_not_in_a_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a webhook refuses the status, the write is retried every few seconds."""
    attempts: list[str] = []

    async def refuse(*_: object, **__: object) -> None:
        attempts.append("once more")
        raise Forbidden(Status(message="no"))

    async with counting() as cluster:
        with monkeypatch.context() as broken:
            broken.setattr(cluster.server.quota_status._writer, "change", refuse)
            await post(cluster, "resourcequotas", "q", spec={"hard": {"pods": "2"}})
            await asyncio.sleep(60)
        assert 5 <= len(attempts) <= 20
        await until(lambda: used(cluster) == {"pods": "0"})
