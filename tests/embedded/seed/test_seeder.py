"""Objects are created in a cluster once, and the cluster records their origin."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.embedded.virtual_cluster import VirtualCluster, virtual_cluster

from zonewise.embedded.seed import seed_marker
from zonewise.embedded.seed.seeder import RETRY_SECONDS, Seeder, SeedRefused

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


def build_object(kind: str, name: str, version: str = "v1", **fields: Any) -> dict[str, Any]:
    """An object."""
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **fields}


def config(name: str, namespace: str = "new") -> dict[str, Any]:
    """A ConfigMap in a namespace."""
    return build_object("ConfigMap", name) | {"metadata": {"name": name, "namespace": namespace}}


def seeder(cluster: VirtualCluster) -> Seeder:
    """A seeder for this cluster."""
    return Seeder(cluster.client, cluster.server.registry)


WIDGETS = build_object(
    "CustomResourceDefinition",
    "widgets.example.com",
    "apiextensions.k8s.io/v1",
    spec={
        "group": "example.com",
        "scope": "Cluster",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }
        ],
    },
)


async def test_dependencies_are_created_first() -> None:
    """In any order of objects, namespaces and definitions are created first."""
    async with virtual_cluster({}) as cluster:
        written: list[str] = []
        refused = await seeder(cluster).create(
            [
                build_object("Widget", "w", "example.com/v1"),
                config("c"),
                build_object("Namespace", "new"),
                WIDGETS,
            ],
            on_created=lambda obj: written.append(obj["kind"]),
        )
        assert refused == []
        assert written == ["CustomResourceDefinition", "Namespace", "ConfigMap", "Widget"]


async def test_existing_objects_are_not_changed() -> None:
    """Seeding again changes nothing, and is no refusal."""
    async with virtual_cluster({}) as cluster:
        objects = [build_object("Namespace", "new"), config("c")]
        await seeder(cluster).create(objects)
        path = "/api/v1/namespaces/new/configmaps/c"
        before = (await cluster.client.raw("GET", path)).body
        assert await seeder(cluster).create(objects) == []
        assert (await cluster.client.raw("GET", path)).body == before


async def test_refusals_do_not_keep_others_out() -> None:
    """Refused and unknown objects are reported; no namespace means default."""
    async with virtual_cluster({}) as cluster:
        refused = await seeder(cluster).create(
            [
                config("Bad Name", "default"),
                build_object("Gadget", "g", "example.com/v1"),
                config("good", "default"),
                config("homeless", "nowhere"),
                build_object("ConfigMap", "unsaid"),
            ]
        )
        reasons = {(refusal.kind, refusal.name): refusal.reason for refusal in refused}
        assert set(reasons) == {
            ("ConfigMap", "default/Bad Name"),
            ("ConfigMap", "nowhere/homeless"),
            ("Gadget", "g"),
        }
        assert "lowercase RFC 1123" in reasons["ConfigMap", "default/Bad Name"]
        assert reasons["Gadget", "g"] == "example.com/v1 has no Gadget here"
        assert isinstance(refused[0], SeedRefused)
        for name in ("good", "unsaid"):
            await cluster.client.raw("GET", f"/api/v1/namespaces/default/configmaps/{name}")


async def test_many_unknown_kinds_are_waited_for_together() -> None:
    """Waiting for missing definitions takes no longer for more of them."""
    async with virtual_cluster({}) as cluster:
        loop = asyncio.get_running_loop()
        began = loop.time()
        gadgets = [build_object("Gadget", f"g{number}", "example.com/v1") for number in range(300)]
        assert len(await seeder(cluster).create(gadgets)) == len(gadgets)
        assert loop.time() - began < 2 * RETRY_SECONDS


async def test_a_cluster_records_its_origin() -> None:
    """There is no origin before it was recorded, and the last one counts."""
    async with virtual_cluster({}) as cluster:
        assert await seed_marker.read_origin(cluster.client) is None
        await seed_marker.record_origin(cluster.client, "a test")
        await seed_marker.record_origin(cluster.client, "another test")
        assert await seed_marker.read_origin(cluster.client) == "another test"
