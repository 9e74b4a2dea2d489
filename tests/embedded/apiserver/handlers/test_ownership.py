"""The owner of a field after a write through a subresource."""

from __future__ import annotations

from typing import Any

import pytest
from tests.embedded.virtual_cluster import until, virtual_cluster

from zonewise.api import Conflict, Resource, unstructured
from zonewise.embedded.seed.seeder import Seeder

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

Ring = unstructured(Resource("db.example", "v1", "Ring", "rings"))
DEFINITION: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "rings.db.example"},
    "spec": {
        "group": "db.example",
        "names": {"kind": "Ring", "plural": "rings"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "properties": {"size": {"type": "integer"}}}
                        },
                    }
                },
                "subresources": {
                    "scale": {
                        "specReplicasPath": ".spec.size",
                        "statusReplicasPath": ".status.size",
                    }
                },
            }
        ],
    },
}


async def test_the_writer_of_a_scale_owns_the_size() -> None:
    """After a custom object was scaled, applying another size is a conflict."""
    async with virtual_cluster({}) as cluster:
        registry = cluster.server.registry
        await Seeder(cluster.client, registry).create([DEFINITION])
        await until(lambda: registry.by_kind("db.example/v1", "Ring") is not None)
        size = {"spec": {"size": 1}}
        await cluster.client.apply(Ring, "r", "default", size, field_manager="one")
        scale = {"spec": {"replicas": 4}}
        await cluster.client.patch(Ring, "r", "default", scale, subresource="scale")
        with pytest.raises(Conflict):
            await cluster.client.apply(Ring, "r", "default", size, field_manager="one")
