"""Garbage collection on objects in memory, without a server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from zonewise.api.errors import Conflict, Status
from zonewise.embedded.apiserver.controllers.garbage_collector import (
    FOREGROUND,
    ORPHAN,
    GarbageActions,
    GarbageCollector,
    ObjectKey,
)
from zonewise.embedded.apiserver.registry import Registry, ServedKind
from zonewise.embedded.apiserver.strategy.base import Rules
from zonewise.embedded.machinery.schema.kinds import served_kinds

Obj = dict[str, Any]

SETS, PODS = "apps/replicasets", "/pods"


class World:
    """Objects, and a collector that gets their changes."""

    def __init__(self) -> None:
        self.objects: dict[ObjectKey, Obj] = {}
        self.refused: set[ObjectKey] = set()
        served = [ServedKind(kind=kind, rules=Rules()) for kind in served_kinds()]
        self.collector = GarbageCollector(
            Registry(served),
            GarbageActions(
                get_object=self.objects.get,
                delete=self.delete,
                drop_owners=self.drop_owners,
                drop_finalizer=self.drop_finalizer,
                unblock=self.unblock,
            ),
        )

    def put(
        self, storage: str, name: str, *owners: Obj, namespace: str = "d", **meta: Any
    ) -> ObjectKey:
        """An object with these owners."""
        node = ObjectKey(storage, namespace, name)
        self.objects[node] = {
            "metadata": {
                "name": name,
                "uid": meta.pop("uid", f"uid-{name}"),
                "ownerReferences": list(owners),
                **meta,
            }
        }
        self.tell(node)
        return node

    def tell(self, node: ObjectKey) -> None:
        """Pass an object's current state to the collector."""
        obj = self.objects[node]
        self.collector.observe(node, obj["metadata"]["uid"], msgspec.json.encode(obj))

    def gone(self, node: ObjectKey) -> None:
        """Remove an object."""
        uid = self.objects.pop(node)["metadata"]["uid"]
        self.collector.observe(node, uid, None)

    async def delete(self, node: ObjectKey, uid: str, policy: str) -> None:
        if node in self.refused:
            raise Conflict(Status(code=409))
        meta = self.objects[node]["metadata"]
        assert meta["uid"] == uid
        if policy == "Foreground":
            self.mark(node, FOREGROUND)
        elif not meta.get("finalizers"):
            self.gone(node)

    def mark(self, node: ObjectKey, finalizer: str) -> None:
        """Delete an object that waits for a finalizer."""
        meta = self.objects[node]["metadata"]
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        meta.setdefault("finalizers", [])
        if finalizer not in meta["finalizers"]:
            meta["finalizers"].append(finalizer)
        self.tell(node)

    async def drop_owners(self, node: ObjectKey, uids: frozenset[str]) -> None:
        meta = self.objects[node]["metadata"]
        meta["ownerReferences"] = [
            owner for owner in meta["ownerReferences"] if owner["uid"] not in uids
        ]
        self.tell(node)

    async def unblock(self, node: ObjectKey) -> None:
        for owner in self.objects[node]["metadata"]["ownerReferences"]:
            owner["blockOwnerDeletion"] = False
        self.tell(node)

    async def drop_finalizer(self, node: ObjectKey, finalizer: str) -> None:
        meta = self.objects[node]["metadata"]
        meta["finalizers"].remove(finalizer)
        if not meta["finalizers"]:
            self.gone(node)
        else:
            self.tell(node)


def owner(name: str, uid: str | None = None, *, block: bool = False) -> Obj:
    """A reference to a ReplicaSet."""
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": name,
        "uid": uid or f"uid-{name}",
        "blockOwnerDeletion": block,
    }


@pytest.fixture
async def world() -> World:
    """An empty world."""
    return World()


async def test_dependents_follow_their_owner(world: World) -> None:
    """When the last owner is gone, its dependents are deleted, and theirs."""
    top = world.put(SETS, "top")
    middle = world.put(SETS, "middle", owner("top"))
    leaf = world.put(PODS, "leaf", owner("middle"))
    world.gone(top)
    await world.collector.process_queue()
    assert middle not in world.objects
    assert leaf not in world.objects


async def test_a_refused_deletion_is_tried_again_and_delays_no_other(world: World) -> None:
    """Of three dependents the first is refused once; the others are deleted at once, it later."""
    top = world.put(SETS, "web")
    pods = [world.put(PODS, f"p{n}", owner("web")) for n in range(3)]
    world.refused = {pods[0]}
    world.gone(top)
    await world.collector.process_queue()
    assert list(world.objects) == pods[:1]
    world.refused = set()
    await world.collector.process_queue()
    assert not world.objects


async def test_a_living_owner_keeps(world: World) -> None:
    """With one existing owner an object stays and loses only references to missing ones."""
    first = world.put(SETS, "first")
    world.put(SETS, "second")
    pod = world.put(PODS, "pod", owner("first"), owner("second"))
    world.gone(first)
    await world.collector.process_queue()
    names = [owner["name"] for owner in world.objects[pod]["metadata"]["ownerReferences"]]
    assert names == ["second"]


async def test_a_namesake_is_no_owner(world: World) -> None:
    """An owner with the right name and the wrong uid does not count."""
    world.put(SETS, "set")
    pod = world.put(PODS, "pod", owner("set", uid="another"))
    await world.collector.process_queue()
    assert pod not in world.objects


async def test_unknown_kinds_are_taken_as_alive(world: World) -> None:
    """Nothing is deleted because its owner's kind is unknown."""
    pod = world.put(PODS, "pod", {**owner("x"), "apiVersion": "example.com/v1", "kind": "Thing"})
    await world.collector.process_queue()
    assert pod in world.objects


async def test_orphans_are_let_go(world: World) -> None:
    """An owner that orphans its dependents is deleted, and they stay without a reference."""
    top = world.put(SETS, "top")
    pod = world.put(PODS, "pod", owner("top"))
    world.mark(top, ORPHAN)
    await world.collector.process_queue()
    assert top not in world.objects
    assert world.objects[pod]["metadata"]["ownerReferences"] == []


async def test_foreground_waits_for_what_blocks(world: World) -> None:
    """An owner deleted in the foreground is removed after the dependents that block it."""
    top = world.put(SETS, "top")
    pod = world.put(PODS, "pod", owner("top", block=True), finalizers=["example.com/slow"])
    world.mark(top, FOREGROUND)
    await world.collector.process_queue()
    assert top in world.objects, "its dependent is still there"
    world.objects[pod]["metadata"]["finalizers"].clear()
    world.gone(pod)
    await world.collector.process_queue()
    assert top not in world.objects


async def test_a_circle_does_not_wait_for_itself(world: World) -> None:
    """Three objects that own each other are all deleted when one is deleted in the foreground."""
    for name, above in (("a", "c"), ("b", "a"), ("c", "b")):
        world.put(SETS, name, owner(above, block=True))
    world.mark(ObjectKey(SETS, "d", "a"), FOREGROUND)
    for _ in range(9):
        await world.collector.process_queue()
    assert not world.objects


async def test_owners_in_other_namespaces_do_not_count(world: World) -> None:
    """A namespaced owner counts only in its own namespace."""
    world.put(SETS, "set", namespace="elsewhere")
    pod = world.put(PODS, "pod", owner("set"))
    await world.collector.process_queue()
    assert pod not in world.objects
