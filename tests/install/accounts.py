"""Programs with the permissions that ``zonewise install`` prints, and what they are refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.embedded.virtual_cluster import VirtualCluster
from tests.install.enforced import enforce

from zonewise.embedded.apiserver.http.local_transport import LocalTransport
from zonewise.embedded.apiserver.request.call import User
from zonewise.install.installation import NAME, WEBHOOK, Installation, Obj
from zonewise.install.manifests import render_manifests
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import Request, Response

GROUPS = ("system:serviceaccounts", f"system:serviceaccounts:{NAME}", "system:authenticated")
CONTROLLER_USER, WEBHOOK_USER = (
    User(f"system:serviceaccount:{NAME}:{account}", GROUPS) for account in (NAME, WEBHOOK)
)
ROLES = ("ClusterRole", "Role")


@dataclass
class Refusals:
    """The refused requests of all programs."""

    refused: list[str] = field(default_factory=list)
    first: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Watched:
    """A transport of one account that records refusals."""

    below: LocalTransport
    refusals: Refusals

    async def send(self, request: Request) -> Response:
        """Send a request."""
        response = await self.below.send(request)
        if response.status == 403:
            self.refusals.refused.append(f"{request.method} {request.path}")
            self.refusals.first.set()
        return response

    async def close(self) -> None:
        """Nothing is open."""


@dataclass
class Accounts:
    """The clients of the two programs, and their refusals."""

    controller: Client
    webhook: Client
    refusals: Refusals

    @classmethod
    def of(cls, cluster: VirtualCluster) -> Accounts:
        """The clients of a cluster where the programs are installed."""
        refusals = Refusals()
        controller, webhook = (
            Client(Watched(LocalTransport(cluster.server.handle, user), refusals))
            for user in (CONTROLLER_USER, WEBHOOK_USER)
        )
        return cls(controller, webhook, refusals)


@dataclass(frozen=True)
class Verb:
    """One verb on one resource of a printed role."""

    kind: str
    account: str
    number: int
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.kind}-{self.account}-{self.number}-{self.resource}-{self.verb}"


def list_verbs(installation: Installation) -> Iterator[Verb]:
    """Every verb of every printed role."""
    for item in render_manifests(installation):
        if item["kind"] in ROLES:
            for number, rule in enumerate(item["rules"]):
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        name = item["metadata"]["name"]
                        yield Verb(item["kind"], name, number, resource, verb)


def without(objects: list[Obj], less: Verb) -> list[Obj]:
    """The manifests without one verb on one resource."""
    changed: list[Obj] = json.loads(json.dumps(objects))
    number, resource, verb = less.number, less.resource, less.verb
    rules = next(
        item["rules"]
        for item in changed
        if (item["kind"], item["metadata"]["name"]) == (less.kind, less.account)
    )
    rule = rules[number]
    rules[number] = rule | {"verbs": [each for each in rule["verbs"] if each != verb] or ["none"]}
    others = [each for each in rule["resources"] if each != resource]
    if others:
        rules.append(rule | {"resources": others, "verbs": [verb]})
    return changed


async def install(cluster: VirtualCluster, objects: list[Obj]) -> None:
    """Apply everything, with policies in force; webhooks match nothing, as nothing serves them."""
    enforce(cluster.server, objects)
    disabled = json.loads(json.dumps(objects))
    for item in disabled:
        for webhook in item.get("webhooks", ()):
            webhook["rules"][0]["resources"] = ["nothing"]
    await create(cluster, disabled)


async def create(cluster: VirtualCluster, objects: list[Obj]) -> None:
    """Create objects of any kind."""
    for item in objects:
        served = cluster.server.registry.by_kind(item["apiVersion"], item["kind"])
        assert served is not None
        path = served.kind.resource.path(item["metadata"].get("namespace", ""))
        body = json.dumps(item).encode()
        await cluster.client.raw(
            "POST", path, headers={"Content-Type": "application/json"}, body=body
        )


async def until_refused(work: Coroutine[Any, Any, Any], refusals: Refusals) -> None:
    """Run the programs until a request is refused, or to their end."""
    tasks = [asyncio.create_task(work), asyncio.create_task(refusals.first.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
