"""One namespace on each of two clusters, in which a test does the same and compares.

No kubelet runs the pods: no node fits them, and a test writes their status itself. So every
difference comes from the controllers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from zonewise.api.errors import ApiError
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config

Obj = dict[str, Any]
Scene = Callable[["Side"], Awaitable[Any]]

PATIENCE = 180.0
POLL = 0.1
GROUPS = {
    "pods": "/api/v1",
    "events": "/api/v1",
    "replicasets": "/apis/apps/v1",
    "deployments": "/apis/apps/v1",
    "statefulsets": "/apis/apps/v1",
    "jobs": "/apis/batch/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "persistentvolumeclaims": "/api/v1",
    "limitranges": "/api/v1",
    "resourcequotas": "/api/v1",
    "secrets": "/api/v1",
    "services": "/api/v1",
}
WIDE = {"persistentvolumes": "/api/v1", "storageclasses": "/apis/storage.k8s.io/v1"}
TIMES = frozenset({"lastTransitionTime", "lastProbeTime", "startTime", "completionTime"})


class Side:
    """A namespace on one of the two clusters."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self.namespace = namespace

    async def send(
        self, method: str, resource: str, body: Obj | None = None, *, form: str = "json"
    ) -> Obj:
        """One request about ``plural`` or ``plural/name``."""
        plural = resource.partition("/")[0]
        wide = WIDE.get(plural)
        where = wide or f"{GROUPS[plural]}/namespaces/{self.namespace}"
        answer = await self._client.raw(
            method,
            f"{where}/{resource}",
            headers={"Content-Type": f"application/{form}"},
            body=None if body is None else json.dumps(body).encode(),
        )
        content: Obj = json.loads(answer.body)
        return content

    async def make(self, resource: str, name: str, spec: Obj) -> Obj:
        """Create an object."""
        return await self.send("POST", resource, {"metadata": {"name": name}, "spec": spec})

    async def pods(self, **labels: str) -> list[Obj]:
        """The pods that are not on their way out, oldest first."""
        listed = await self.send("GET", "pods")
        return [
            pod
            for pod in sorted(listed["items"], key=lambda pod: pod["metadata"]["name"])
            if not pod["metadata"].get("deletionTimestamp")
            and labels.items() <= (pod["metadata"].get("labels") or {}).items()
        ]

    async def living(self, count: int, **labels: str) -> list[Obj]:
        """Wait until there are so many pending pods."""

        async def there() -> list[Obj] | None:
            listed = await self.pods(**labels)
            pods = [pod for pod in listed if pod["status"].get("phase") == "Pending"]
            return pods if len(pods) == count else None

        pods: list[Obj] = await until(there, what=f"{count} new pods {labels}")
        return pods

    async def become(self, pod: Obj, phase: str, *, ready: bool = False, code: int = 0) -> None:
        """Write the status that a kubelet would report for a pod."""
        name = pod["metadata"]["name"]
        now = "2026-01-01T00:00:00Z"
        state: Obj = {"running": {"startedAt": now}}
        if phase in {"Succeeded", "Failed"}:
            state = {"terminated": {"exitCode": code, "startedAt": now, "finishedAt": now}}
        container = {
            "name": "c",
            "image": "c",
            "imageID": "c",
            "ready": ready,
            "restartCount": 0,
            "state": state,
        }
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        status = {"phase": phase, "conditions": conditions, "containerStatuses": [container]}
        await self.send(
            "PATCH", f"pods/{name}/status", {"status": status}, form="strategic-merge-patch+json"
        )

    async def ready(self, count: int, **labels: str) -> list[Obj]:
        """Make so many new pods Ready."""
        pods = await self.living(count, **labels)
        for pod in pods:
            await self.become(pod, "Running", ready=True)
        return pods

    async def evict(self, pod: Obj, **options: Any) -> tuple[int, str, list[str], float | None]:
        """Evict a pod: the answer's code, message, causes and pause."""
        name = pod["metadata"]["name"]
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": self.namespace},
            "deleteOptions": options or None,
        }
        try:
            await self.send("POST", f"pods/{name}/eviction", body)
        except ApiError as error:
            details = error.status.details
            causes = (details.causes if details else None) or ()
            lines = [f"{cause.reason}: {cause.message}" for cause in causes]
            return error.code, error.status.message, lines, error.retry_after
        return 201, "", [], None

    async def budget(self, name: str, *expected: int) -> Obj:
        """Wait for expected, desired, healthy and allowed pods; the whole status, timeless."""

        async def there() -> Obj | None:
            budget = await self.send("GET", f"poddisruptionbudgets/{name}")
            status: Obj = budget["status"]
            has = tuple(
                status.get(key)
                for key in (
                    "expectedPods",
                    "desiredHealthy",
                    "currentHealthy",
                    "disruptionsAllowed",
                )
            )
            if status.get("observedGeneration") != budget["metadata"]["generation"]:
                return None
            return status if has == expected else None

        status: Obj = timeless(await until(there, what=f"{name} {expected}"))
        return status

    async def job(self, name: str, last: str) -> Obj:
        """Wait for a condition of a Job; the whole status, timeless."""

        async def there() -> Obj | None:
            job = await self.send("GET", f"jobs/{name}")
            status: Obj = job.get("status") or {}
            types = [condition["type"] for condition in status.get("conditions") or ()]
            return status if last in types else None

        status: Obj = timeless(await until(there, what=f"{name} {last}"))
        return status

    async def event_reasons(self, kind: str) -> set[tuple[str, str]]:
        """Types and reasons of the events about objects of a kind."""
        listed = await self.send("GET", "events")
        return {
            (event["type"], event["reason"])
            for event in listed["items"]
            if event["involvedObject"]["kind"] == kind
        }


async def until(
    look: Callable[[], Awaitable[Any]], *, what: str = "it", within: float = PATIENCE
) -> Any:
    """Wait until a look returns something other than None."""
    try:
        async with asyncio.timeout(within):
            while True:
                seen = await look()
                if seen is not None:
                    return seen
                await asyncio.sleep(POLL)
    except TimeoutError:
        raise AssertionError(f"{what} did not come") from None


def timeless(value: Any) -> Any:
    """A value without times, which differ between clusters."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in TIMES}
    return [timeless(item) for item in value] if isinstance(value, list) else value


@asynccontextmanager
async def side(kubeconfig: Path, namespace: str) -> AsyncIterator[Side]:
    """A namespace of its own on a cluster."""
    async with Client(HttpsTransport(load_config(kubeconfig=kubeconfig))) as client:
        body = json.dumps({"metadata": {"name": namespace}}).encode()
        json_body = {"Content-Type": "application/json"}
        await client.raw("POST", "/api/v1/namespaces", headers=json_body, body=body)
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"

        async def there() -> bool | None:
            try:
                await client.raw("GET", account)
            except ApiError:
                return None
            return True

        await until(there, what="the account")
        yield Side(client, namespace)


async def both(theirs: Path, mine: Path, namespace: str, scene: Scene) -> None:
    """Run a scene on both clusters at once and compare what it returns."""

    async def act(kubeconfig: Path) -> Any:
        async with side(kubeconfig, namespace) as there:
            return await scene(there)

    expected, actual = await asyncio.gather(act(theirs), act(mine))
    assert actual == expected
