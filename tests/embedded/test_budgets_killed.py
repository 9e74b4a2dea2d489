"""Evictions through the embedded server as a process that is killed while it answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

pytestmark = pytest.mark.system

SECONDS = 120.0
PODS = "/api/v1/namespaces/default/pods"
BUDGETS = {
    "TopologyDisruptionBudget": "/apis/zonewise.io/v1alpha1/namespaces/default"
    "/topologydisruptionbudgets",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
}
ZONE = {"key": "topology.kubernetes.io/zone", "operator": "Exists"}
TERM = {"matchExpressions": [ZONE]}
COUNT = 50
MOST = 5
"""What the tightest of the three budgets allows, over all zones."""

Obj = dict[str, Any]


class Api:
    """A client that repeats requests until a condition is true."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ask(self, method: str, path: str, body: Obj | None = None) -> tuple[int, Obj]:
        """One request; status 0 without an answer."""
        patching = {"Content-Type": "application/merge-patch+json"}
        headers = patching if method == "PATCH" else {"Content-Type": "application/json"}
        data = None if body is None else json.dumps(body)
        try:
            async with self._session.request(method, path, data=data, headers=headers) as answer:
                return answer.status, await answer.json()
        except aiohttp.ClientError:
            return 0, {}

    async def items(self, path: str) -> list[Obj]:
        """A list, repeated until it is answered."""
        async with asyncio.timeout(SECONDS):
            while True:
                status, answer = await self.ask("GET", path)
                if status == 200:
                    return list(answer["items"])
                await asyncio.sleep(0.2)

    async def evict(self, name: str) -> int:
        """Evict a pod."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": "default"},
        }
        return (await self.ask("POST", f"{PODS}/{name}/eviction", body))[0]

    async def counted(self) -> None:
        """Wait until every budget was counted."""
        async with asyncio.timeout(SECONDS):
            while True:
                budgets = [item for path in BUDGETS.values() for item in await self.items(path)]
                if len(budgets) == 3 and all(
                    budget.get("status", {}).get("observedGeneration")
                    == budget["metadata"]["generation"]
                    for budget in budgets
                ):
                    return
                await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def lives(folder: Path) -> AsyncIterator[tuple[Api, asyncio.subprocess.Process]]:
    """The cluster in a process; killed at the end if it still runs."""
    (folder / "kubeconfig").unlink(missing_ok=True)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "zonewise", "up", "--empty", "--data", str(folder)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(SECONDS):
            while not (folder / "kubeconfig").exists():
                assert process.returncode is None
                await asyncio.sleep(0.05)
        config = yaml.safe_load((folder / "kubeconfig").read_text())
        trusted = ssl.create_default_context()
        trusted.check_hostname = False
        trusted.verify_mode = ssl.CERT_NONE
        token = config["users"][0]["user"]["token"]
        async with aiohttp.ClientSession(
            config["clusters"][0]["cluster"]["server"],
            headers={"Authorization": f"Bearer {token}"},
            connector=aiohttp.TCPConnector(ssl=trusted, limit=0),
        ) as session:
            yield Api(session), process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def living(pods: list[Obj]) -> dict[str, str]:
    """Names of pods that run and are not terminating, by uid."""
    return {
        pod["metadata"]["uid"]: pod["metadata"]["name"]
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"] and pod["spec"].get("nodeName")
    }


def ready(pod: Obj) -> bool:
    """Whether it serves."""
    conditions = pod.get("status", {}).get("conditions", ())
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )


async def build(api: Api, kind: str) -> None:
    """Nodes in three zones, fifty Ready pods, three budgets, two of them of this kind; then no node
    accepts another pod.
    """
    for zone in "abc":
        labels = {"topology.kubernetes.io/zone": zone}
        node = {"metadata": {"name": f"{zone}-1", "labels": labels}}
        assert (await api.ask("POST", "/api/v1/nodes", node))[0] == 201
    web = {
        "metadata": {"name": "web"},
        "spec": {
            "replicas": COUNT,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": "c"}]},
            },
        },
    }
    path = "/apis/apps/v1/namespaces/default/deployments"
    assert (await api.ask("POST", path, web))[0] == 201
    async with asyncio.timeout(SECONDS):
        while True:
            if sum(map(ready, await api.items(PODS))) == COUNT:
                break
            await asyncio.sleep(0.2)
    for zone in "abc":
        body = {"spec": {"unschedulable": True}}
        assert (await api.ask("PATCH", f"/api/v1/nodes/{zone}-1", body))[0] == 200
    specs: dict[str, Obj] = {
        "zones": {"maxUnavailable": 4, "nodeSelectorTerm": TERM},
        "half": {"minAvailable": "50%"},
        "all": {"maxUnavailable": MOST},
    }
    for name, spec in specs.items():
        of_kind = kind if name != "zones" else "TopologyDisruptionBudget"
        plain = of_kind == "PodDisruptionBudget"
        budget = {
            "apiVersion": "policy/v1" if plain else "zonewise.io/v1alpha1",
            "kind": of_kind,
            "metadata": {"name": name},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec},
        }
        assert (await api.ask("POST", BUDGETS[of_kind], budget))[0] == 201
    await api.counted()


@pytest.mark.parametrize(
    ("after", "kind"), [(1, "PodDisruptionBudget"), (3, "TopologyDisruptionBudget")]
)
async def test_fifty_evictions_and_a_kill(after: int, kind: str, tmp_path: Path) -> None:
    """Killed with -9 while it answers fifty evictions, and sent all of them again after a restart,
    a cluster evicts exactly as many pods as all three budgets allow.
    """
    granted = 0
    async with lives(tmp_path) as (api, process):
        await build(api, kind)
        before = living(await api.items(PODS))
        assert len(before) == COUNT
        evictions = {asyncio.create_task(api.evict(name)) for name in before.values()}
        for answer in asyncio.as_completed(evictions):
            status = await answer
            assert status in (201, 429)
            granted += status == 201
            if granted == after:
                process.kill()
                break
        rest = await asyncio.gather(*evictions)
        granted = sum(status == 201 for status in rest)
    assert after <= granted <= MOST
    async with lives(tmp_path) as (api, process):
        await api.counted()
        async with asyncio.timeout(SECONDS):
            while True:
                left = living(await api.items(PODS))
                await asyncio.gather(
                    *(api.evict(name) for uid, name in left.items() if uid in before)
                )
                left = living(await api.items(PODS))
                gone = sum(uid not in left for uid in before)
                assert gone <= MOST
                if gone == MOST:
                    break
                await asyncio.sleep(0.5)
        answers = await asyncio.gather(
            *(api.evict(name) for uid, name in left.items() if uid in before)
        )
        assert set(answers) == {429}
        left = living(await api.items(PODS))
        assert sum(uid not in left for uid in before) == MOST
