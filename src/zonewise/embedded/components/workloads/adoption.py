"""The objects of an owner: found by reference, adopted and released by selector.

An object belongs to the controller its owner reference names, by uid; the selector only says which
ones a controller *would* adopt. So:

- what carries our uid and matches is ours;
- what carries our uid and matches no more is released: the reference is removed;
- what has no controller and matches is adopted, unless it, or its new owner, is being deleted.

If two controllers try to adopt the same orphan, the server refuses the second: an object has at
most one controlling owner. Adoption first reads from the server whether the owner still exists with
that uid, because a store may not have seen its deletion, and an orphan adopted by a deleted owner
would be garbage collected. It is read once per pass and only if there is something to adopt.

Both changes carry the uid of the object they are about, so they never touch a successor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from zonewise.api.errors import Conflict, Invalid, NotFound
from zonewise.api.meta import LabelSelector, Object
from zonewise.api.values.selector import Selector, from_object
from zonewise.embedded.components.workloads.creation import owner_reference
from zonewise.runtime.cache.store import Store
from zonewise.runtime.client.client import Client

T = TypeVar("T", bound=Object)

OWNED = "controller"
ORPHANS = "orphans"


def by_controller(item: Object) -> tuple[str, ...]:
    """The uid of the controlling owner."""
    owner = item.metadata.controller
    return () if owner is None else (owner.uid,)


def by_no_controller(item: Object) -> tuple[str, ...]:
    """The namespace of an object without a controller."""
    return (item.metadata.namespace,) if item.metadata.controller is None else ()


def indexed(store: Store[T]) -> Store[T]:
    """A store in which owned objects and orphans are found."""
    store.add_index(OWNED, by_controller)
    store.add_index(ORPHANS, by_no_controller)
    return store


def selects(wanted: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Whether a selector matches these labels; most are decided without compiling it."""
    if not labels or not wanted.match_labels.items() <= labels.items():
        return False
    return from_object(wanted).matches(labels)


async def claimed(
    client: Client,
    owner: Object,
    selector: Selector,
    store: Store[T],
    *,
    fits: Callable[[T], bool] = lambda _: True,
) -> tuple[T, ...]:
    """The objects of an owner, after adopting and releasing by selector and ``fits``."""
    meta = owner.metadata
    leaving = meta.deletion_timestamp is not None
    mine: list[T] = []
    for item in store.by(OWNED, meta.uid):
        if selector.matches(item.metadata.labels) and fits(item):
            mine.append(item)
        elif not leaving:
            await release(client, item, meta.uid)
    if not leaving:
        orphans = store.by(ORPHANS, meta.namespace)
        strays = [item for item in orphans if _wanted(item, selector) and fits(item)]
        if strays and await _lives(client, owner):
            mine += [item for item in strays if await adopt(client, item, owner)]
    return tuple(mine)


async def adopt(client: Client, item: Object, owner: Object) -> bool:
    """Adopt an orphan; False if it is deleted or has another controller by now."""
    reference = msgspec.to_builtins(owner_reference(owner))
    body = {"metadata": {"uid": item.metadata.uid, "ownerReferences": [reference]}}
    return await _changed(client, item, body)


async def release(client: Client, item: Object, uid: str) -> bool:
    """Release an object; False if it is deleted."""
    gone = {"$patch": "delete", "uid": uid}
    body = {"metadata": {"uid": item.metadata.uid, "ownerReferences": [gone]}}
    return await _changed(client, item, body)


def _wanted(item: Object, selector: Selector) -> bool:
    meta = item.metadata
    return meta.deletion_timestamp is None and selector.matches(meta.labels)


async def _changed(client: Client, item: Object, body: Mapping[str, object]) -> bool:
    try:
        await client.patch(
            type(item), item.metadata.name, item.metadata.namespace, body, kind="strategic"
        )
    except (NotFound, Conflict, Invalid):
        return False
    return True


async def _lives(client: Client, owner: Object) -> bool:
    try:
        now = await client.get(type(owner), owner.metadata.name, owner.metadata.namespace)
    except NotFound:
        return False
    return now.metadata.uid == owner.metadata.uid and now.metadata.deletion_timestamp is None
