"""Custom resources whose definition has defaults: what is read, and the cost of that."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster

from zonewise.api import Resource, unstructured
from zonewise.api.objects.apiextensions import CustomResourceDefinition
from zonewise.embedded.apiserver.store.entry import Entry
from zonewise.embedded.machinery.decoding import decoder
from zonewise.embedded.seed.seeder import Seeder

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

Obj = dict[str, Any]
Ring = unstructured(Resource("db.example", "v1", "Ring", "rings"))
RINGS = "db.example/rings"
PATH = "/apis/db.example/v1/namespaces/default/rings/r"


def definition(spec: Obj, status: Obj | None = None) -> Obj:
    """A definition with these fields in spec, and with status as a subresource if it has any."""
    properties: Obj = {"spec": {"type": "object", "default": {}, "properties": spec}}
    if status is not None:
        properties["status"] = status
    return {
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
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
                    "subresources": {"status": {}} if status is not None else {},
                }
            ],
        },
    }


async def create(cluster: VirtualCluster, defined: Obj, body: Obj) -> Entry:
    """Define the kind and create one object; the entry that is stored."""
    registry = cluster.server.registry
    await Seeder(cluster.client, registry).create([copy.deepcopy(defined)])
    await until(lambda: registry.by_kind("db.example/v1", "Ring") is not None)
    await cluster.client.create(Ring({"metadata": {"name": "r", "namespace": "default"}, **body}))
    entry = cluster.server.state.latest(RINGS, "default", "r")
    assert entry is not None
    return entry


async def read(cluster: VirtualCluster) -> Obj:
    """The object as a client gets it."""
    answer: Obj = (await cluster.client.raw("GET", PATH)).json()
    return answer


async def test_objects_stored_with_defaults_are_read_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading an object that lacks no default does not decode it by the schema."""
    decoded: list[Obj] = []
    decode = decoder.decode_custom_value

    def count(*args: Any, **options: Any) -> decoder.Decoded:
        decoded.append(args[2])
        return decode(*args, **options)

    async with virtual_cluster({}) as cluster:
        defined = definition({"color": {"type": "string", "default": "red"}})
        entry = await create(cluster, defined, {"spec": {}})
        monkeypatch.setattr(decoder, "decode_custom_value", count)
        assert (await cluster.client.raw("GET", PATH)).body == entry.raw
        assert (await read(cluster))["spec"] == {"color": "red"}
        assert not decoded
        await cluster.client.patch(Ring, "r", "default", {"spec": {"color": "blue"}})
        assert len(decoded) == 1, "only the result of the patch"
        assert (await read(cluster))["spec"] == {"color": "blue"}
        assert len(decoded) == 1


async def test_a_default_that_a_write_removed_is_read() -> None:
    """A new object is stored without a status; readers get its default."""
    async with virtual_cluster({}) as cluster:
        status = {
            "type": "object",
            "default": {"phase": "New"},
            "properties": {"phase": {"type": "string"}},
        }
        entry = await create(cluster, definition({}, status), {"status": {"phase": "Old"}})
        assert b"phase" not in entry.raw
        assert (await read(cluster))["status"] == {"phase": "New"}
        assert (await read(cluster))["status"] == {"phase": "New"}


async def test_a_changed_definition_applies_to_what_is_stored() -> None:
    """An added default is read in stored objects, a removed field is not."""
    async with virtual_cluster({}) as cluster:
        text = {"type": "string"}
        before = definition({"color": {**text, "default": "red"}, "old": text})
        await create(cluster, before, {"spec": {"old": "x"}})
        assert (await read(cluster))["spec"] == {"color": "red", "old": "x"}
        after = definition({"color": {**text, "default": "red"}, "size": {**text, "default": "S"}})
        name = "rings.db.example"
        patch = {"spec": {"versions": after["spec"]["versions"]}}
        await cluster.client.patch(CustomResourceDefinition, name, None, patch)
        for _ in range(2):
            assert (await read(cluster))["spec"] == {"color": "red", "size": "S"}
