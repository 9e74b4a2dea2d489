"""The same commands on a real control plane and on ours, seen in every detail.

A script is a function of a ``Scene``: it gives kubectl commands and collects what is then seen.
``compare`` runs it on both clusters at once. The kubelets are ours on both.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from difflib import unified_diff
from pathlib import Path
from typing import Any

from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.core import Node
from zonewise.embedded.components.kubelet.kubelets import Kubelets
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config
from zonewise.runtime.program.program import Program

Obj = dict[str, Any]
NODES = ("n1", "n2", "n3")
PATIENCE = 180.0
CHANCE = "the object has been modified"
"""In the message of an event about a write conflict, which happens on one cluster or another."""


class Scene:
    """One cluster, as kubectl shows it."""

    def __init__(self, kubectl: Path, kubeconfig: Path, namespace: str) -> None:
        self._command = (str(kubectl), *("--kubeconfig", str(kubeconfig), "-n", namespace))

    async def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """What a command prints."""
        done = await asyncio.to_thread(
            subprocess.run,
            [*self._command, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def items(self, kind: str) -> list[Obj]:
        """All objects of a kind."""
        objects: list[Obj] = json.loads(await self.kubectl("get", kind, "-o", "json"))["items"]
        return sorted(objects, key=lambda obj: str(obj["metadata"]["name"]))

    async def until(self, kind: str, holds: Callable[[list[Obj]], bool]) -> list[Obj]:
        """The objects of a kind, once a condition holds for them."""
        deadline = time.monotonic() + PATIENCE
        while True:
            objects = await self.items(kind)
            if holds(objects):
                return objects
            assert time.monotonic() < deadline, json.dumps(objects)[:4000]
            await asyncio.sleep(0.2)

    async def event_lines(self, kind: str) -> list[str]:
        """Type, reason and message of the events about objects of a kind, each once."""
        events = await self.items("events")
        return sorted(
            {
                f"{event['type']} {event['reason']}: {event['message']}"
                for event in events
                if event["involvedObject"]["kind"] == kind and CHANCE not in event["message"]
            }
        )


def normalize(value: Any, *hashes: str) -> Any:
    """A value without uids, times, and the hashes and random names given."""
    text = json.dumps(value, sort_keys=True)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UID", text)
    for number, digest in enumerate(hashes):
        text = text.replace(digest, f"HASH{number}")
    return json.loads(re.sub(r"(agent|kube-api-access)-[a-z0-9]{5}\b", r"\1-RANDOM", text))


def without_placement(pod: Obj) -> Obj:
    """A pod as it was created, without its node and projected volumes."""
    meta, spec = pod["metadata"], pod["spec"]
    fields = ("generateName", "labels", "annotations", "ownerReferences")
    return {
        "metadata": {key: meta[key] for key in fields if key in meta},
        "spec": {key: value for key, value in spec.items() if key not in ("nodeName", "volumes")},
        "volumes": [volume for volume in spec["volumes"] if "projected" not in volume],
    }


def to_lines(seen: Any) -> list[str]:
    """A value as lines of JSON."""
    return json.dumps(seen, indent=1, sort_keys=True).splitlines()


@asynccontextmanager
async def inhabited(kubeconfig: Path, *, kubelets: bool) -> AsyncIterator[None]:
    """Nodes on a cluster for the length of a block, and kubelets if it has none."""
    transport = HttpsTransport(load_config(kubeconfig=kubeconfig))

    def connect(manager: str) -> Client:
        return Client(transport, field_manager=manager)

    components = Program(connect, clock=time.time, rng=random.Random(1))
    if kubelets:
        components.add("kubelets", Kubelets)
    work = asyncio.create_task(components.run())
    client = connect("test")
    try:
        for name in NODES:
            await client.create(Node(metadata=ObjectMeta(name=name)))
        yield
    finally:
        for name in NODES:
            await client.delete(Node, name)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await transport.close()


async def compare(
    script: Callable[[Scene], Awaitable[list[Any]]],
    namespace: str,
    *,
    kubectl: Path,
    theirs: Path,
    ours: Path,
) -> None:
    """Run a script on both clusters, in a namespace of its own; fail at the first difference."""

    async def performed(kubeconfig: Path, *, kubelets: bool) -> list[Any]:
        scene = Scene(kubectl, kubeconfig, namespace)
        async with inhabited(kubeconfig, kubelets=kubelets):
            await scene.kubectl("create", "namespace", namespace)
            await scene.until(
                "serviceaccounts",
                lambda accounts: any(
                    account["metadata"]["name"] == "default" for account in accounts
                ),
            )
            try:
                return await script(scene)
            finally:
                await scene.kubectl("delete", "namespace", namespace, "--wait=false")
                await scene.until("pods", lambda pods: not pods)

    expected, actual = await asyncio.gather(
        performed(theirs, kubelets=True), performed(ours, kubelets=False)
    )
    for step, (right, mine) in enumerate(zip(expected, actual, strict=True), start=1):
        difference = list(unified_diff(to_lines(right), to_lines(mine), lineterm="", n=2))
        assert not difference, "\n".join((f"step {step}", *difference))
