"""Zonewise on a real cluster, with the rights that ``zonewise install`` prints and no others."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from tests.kubernetes.crowd import Crowd

from tools import realkube as real
from zonewise.api import EndpointSlice, Namespace, Node, ObjectMeta, Pod, Service
from zonewise.api.errors import NotFound
from zonewise.api.objects.admissionregistration import (
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
)
from zonewise.install.installation import (
    NAME,
    WEBHOOK,
    BudgetsMode,
    ClientAuthority,
    Installation,
    Role,
)
from zonewise.install.manifests import render_manifests
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config

CONFIGURATIONS = (ValidatingWebhookConfiguration, MutatingWebhookConfiguration)
RIGHTS = (
    *("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
)
QUIET = 5.0
PATIENCE = 180.0


@dataclass
class Installed:
    """Zonewise on a real cluster, as ``zonewise install`` prints it, in a namespace of its own."""

    plane: real.ControlPlane
    client: Client
    namespace: str
    role: Role = "adopt"
    budgets: BudgetsMode = "off"
    client_authority: ClientAuthority | None = None
    programs: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def account(self) -> str:
        """The controller's user name."""
        return f"system:serviceaccount:{self.namespace}:zonewise"

    @property
    def needs_webhook(self) -> bool:
        """Whether a webhook is needed."""
        return self.role == "adopt" or self.budgets != "off"

    async def apply(self, *flags: str) -> None:
        """Put the printed manifests onto the cluster, and run what the role needs."""
        await self.put()
        if self.needs_webhook:
            await self.start("webhook", "--listen", "127.0.0.1:0", "--host", "127.0.0.1")
        await self.lead("controller", *flags)

    async def put(self) -> None:
        """Put the printed manifests onto the cluster."""
        await asyncio.to_thread(self._kubectl, "apply", "--server-side")

    async def lead(self, name: str = "controller", *flags: str) -> None:
        """Run a controller until it leads."""
        await self.start(name, "--lease-namespace", self.namespace, *flags)
        await self.heard(name, "leading")

    async def remove(self) -> None:
        """End the programs and take everything away."""
        for name in list(self.programs):
            await asyncio.to_thread(self.end, name)
        await asyncio.to_thread(self._kubectl, "delete", "--wait=false", "--ignore-not-found")

    def _kubectl(self, *words: str) -> None:
        objects = render_manifests(
            Installation(
                role=self.role,
                version="test",
                namespace=self.namespace,
                budgets=self.budgets,
                client_authority=self.client_authority,
            )
        )
        if not self.needs_webhook:
            # Webhooks without a server would only delay writes of Services.
            objects = [manifest for manifest in objects if manifest["kind"] in RIGHTS]
        if words[0] == "delete":
            # All installations on one control plane share the definitions.
            objects = [
                manifest for manifest in objects if manifest["kind"] != "CustomResourceDefinition"
            ]
        completed = self.plane.kubectl(*words, "-f", "-", stdin=yaml.safe_dump_all(objects))
        assert words[0] != "apply" or completed.stderr == "", completed.stderr

    async def kubeconfig(self, account: str) -> Path:
        """The kubeconfig of one of the printed accounts."""
        answer = await self.client.raw(
            "POST",
            f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}/token",
            headers={"Content-Type": "application/json"},
            body=json.dumps({"spec": {"expirationSeconds": 7200}}).encode(),
        )
        token = answer.json()["status"]["token"]
        return self.plane.kubeconfig_with_token(f"{self.namespace}-{account}", token)

    async def start(self, name: str, *flags: str) -> None:
        """Run a program under its printed account; the webhook is called where it is.

        The name of a second controller begins with ``controller`` too.
        """
        kubeconfig = await self.kubeconfig(WEBHOOK if name.startswith("webhook") else NAME)
        arguments = ("--metrics-listen", "127.0.0.1:0", "-n", self.namespace, *flags)
        log = self._log(name)
        command = (
            *(name.partition("-")[0], "--endpointslices", self.role),
            *("--budgets", self.budgets),
        )
        program = await asyncio.to_thread(_program, log, command, kubeconfig, *arguments)
        self.programs[name] = program
        if name == "webhook":
            served = await self.heard(name, "webhooks are served")
            await self.lead_to(served["port"])
            await self.heard(name, "a certificate is served")

    async def another_webhook(self, name: str) -> int:
        """Run one more webhook; returns its port."""
        await self.start(name, "--listen", "127.0.0.1:0", "--host", "127.0.0.1")
        served = await self.heard(name, "webhooks are served")
        await self.heard(name, "a certificate is served")
        return int(served["port"])

    def end(self, name: str) -> None:
        """Kill a program."""
        program = self.programs.pop(name)
        program.kill()
        program.wait()

    def _log(self, name: str) -> Path:
        return self.plane.folder / f"{self.namespace}-{name}.log"

    async def heard(self, name: str, event: str) -> dict[str, Any]:
        """Wait for an event in a program's log; returns its last line."""
        matching: list[dict[str, Any]] = []

        def heard() -> bool:
            lines = [
                line for line in self._log(name).read_text().splitlines(True) if line[-1:] == "\n"
            ]
            entries = [json.loads(line) for line in lines if line.startswith("{")]
            matching[:] = [line for line in entries if line["event"] == event]
            assert matching or self.programs[name].poll() is None, lines[-3:]
            return bool(matching)

        await until(heard)
        return matching[-1]

    async def lead_to(self, port: int) -> None:
        """Have the API server call its webhooks at a port."""
        for cls in CONFIGURATIONS:
            resource = cls.resource
            try:
                configuration = (
                    await self.client.raw("GET", resource.path(name="zonewise"))
                ).json()
            except NotFound:
                continue
            change = []
            for index, hook in enumerate(configuration["webhooks"]):
                pointer = f"/webhooks/{index}/clientConfig"
                client_config = hook["clientConfig"]
                path = (
                    client_config["service"]["path"]
                    if "service" in client_config
                    else urlsplit(client_config["url"]).path
                )
                url = f"https://127.0.0.1:{port}{path}"
                change.append({"op": "add", "path": f"{pointer}/url", "value": url})
                if "service" in client_config:
                    change.append({"op": "remove", "path": f"{pointer}/service"})
            await self.client.patch(cls, "zonewise", None, change, kind="json")


def _program(
    log: Path, command: tuple[str, ...], kubeconfig: Path, *flags: str
) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "zonewise", *command),
                *("-v", "--log-format", "json", "--kubeconfig", str(kubeconfig), *flags),
            ],
            stderr=file,
        )


@asynccontextmanager
async def cluster(plane: real.ControlPlane, namespace: str) -> AsyncIterator[tuple[Crowd, Cache]]:
    """A crowd in a namespace of its own, and stores over the cluster."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            Client(HttpsTransport(load_config(plane.kubeconfig)))
        )
        await client.create(Namespace(metadata=ObjectMeta(name=namespace)))
        crowd = Crowd(client, namespace, random.Random(namespace))
        cache = Cache(client)
        cache.store(EndpointSlice)
        cache.store(Pod, namespace=namespace)
        cache.store(Service)
        cache.store(Node)
        following = asyncio.create_task(cache.run())
        await cache.synced()
        try:
            yield crowd, cache
        finally:
            for name in crowd.nodes:
                await client.delete(Node, name)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def until(true: Callable[[], bool]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if true():
                return
            await asyncio.sleep(0.1)


def written(plane: real.ControlPlane, namespace: str) -> list[str]:
    """The users that wrote slices of a namespace, in order."""
    return [
        entry["user"]["username"]
        for entry in plane.audited()
        if entry["stage"] == "ResponseComplete" and entry["objectRef"]["namespace"] == namespace
    ]


async def quiet(plane: real.ControlPlane, namespace: str) -> list[str]:
    """Wait until there were no writes for a while; returns the users that wrote so far."""
    async with asyncio.timeout(PATIENCE):
        before: list[str] | None = None
        while (now := await asyncio.to_thread(written, plane, namespace)) != before:
            before = now
            await asyncio.sleep(QUIET)
        return now


async def complete(crowd: Crowd, cache: Cache) -> None:
    """Wait until the slices have exactly the addresses of the pods."""
    pods = cache.store(Pod, namespace=crowd.namespace)
    slices = cache.store(EndpointSlice)

    def same() -> bool:
        there = {pod.status.pod_ip for pod in pods if pod.status.pod_ip}
        addresses = [
            (row.addresses or ("",))[0]
            for piece in slices
            if piece.metadata.namespace == crowd.namespace
            for row in piece.endpoints or ()
        ]
        return len(addresses) == len(there) and set(addresses) == there

    await until(same)
