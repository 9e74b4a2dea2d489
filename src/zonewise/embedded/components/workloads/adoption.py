"""The objects of an owner: looked up by owner reference, adopted and released by selector.

An object belongs to the controller that its owner reference names, by uid; the selector only says
which orphans a controller may adopt. So:

- an object with the owner's uid that matches belongs to the owner;
- one with the owner's uid that no longer matches is released: the reference is removed;
- one without a controller that matches is adopted, unless it, or its new owner, is being deleted.

If two controllers try to adopt the same orphan, the server refuses the second: an object has at
most one controlling owner. Adoption first reads from the server whether the owner still exists with
that uid, because a store may not have seen its deletion, and an orphan adopted by a deleted owner
would be garbage collected. It is read once per sync and only if there is something to adopt.

Both patches carry the uid of their object, so they never change a new object of the same name.
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

BY_CONTROLLER = "controller"
ORPHANS = "orphans"


def controller_uid(item: Object) -> tuple[str, ...]:
    """The uid of the controlling owner."""
    owner = item.metadata.controller
    return () if owner is None else (owner.uid,)


def orphan_namespace(item: Object) -> tuple[str, ...]:
    """The namespace of an object without a controller."""
    return (item.metadata.namespace,) if item.metadata.controller is None else ()


def index_by_controller(store: Store[T]) -> Store[T]:
    """Index a store by the controlling owner, and orphans by namespace."""
    store.add_index(BY_CONTROLLER, controller_uid)
    store.add_index(ORPHANS, orphan_namespace)
    return store


def selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Whether a selector matches these labels; most are decided without compiling it."""
    if not labels or not selector.match_labels.items() <= labels.items():
        return False
    return from_object(selector).matches(labels)


async def claim_objects(
    client: Client,
    owner: Object,
    selector: Selector,
    store: Store[T],
    *,
    fits: Callable[[T], bool] = lambda _: True,
) -> tuple[T, ...]:
    """The objects of an owner, after adopting and releasing by selector and ``fits``."""
    meta = owner.metadata
    terminating = meta.deletion_timestamp is not None
    claimed: list[T] = []
    for item in store.by(BY_CONTROLLER, meta.uid):
        if selector.matches(item.metadata.labels) and fits(item):
            claimed.append(item)
        elif not terminating:
            await release(client, item, meta.uid)
    if not terminating:
        orphans = store.by(ORPHANS, meta.namespace)
        candidates = [item for item in orphans if _is_adoptable(item, selector) and fits(item)]
        if candidates and await _still_exists(client, owner):
            claimed += [item for item in candidates if await adopt(client, item, owner)]
    return tuple(claimed)


async def adopt(client: Client, item: Object, owner: Object) -> bool:
    """Adopt an orphan; False if it is deleted or has another controller by now."""
    reference = msgspec.to_builtins(owner_reference(owner))
    body = {"metadata": {"uid": item.metadata.uid, "ownerReferences": [reference]}}
    return await _patch_owners(client, item, body)


async def release(client: Client, item: Object, uid: str) -> bool:
    """Release an object; False if it is deleted."""
    reference = {"$patch": "delete", "uid": uid}
    body = {"metadata": {"uid": item.metadata.uid, "ownerReferences": [reference]}}
    return await _patch_owners(client, item, body)


def _is_adoptable(item: Object, selector: Selector) -> bool:
    meta = item.metadata
    return meta.deletion_timestamp is None and selector.matches(meta.labels)


async def _patch_owners(client: Client, item: Object, body: Mapping[str, object]) -> bool:
    try:
        namespace, name = item.key
        await client.patch(type(item), name, namespace, body, kind="strategic")
    except (NotFound, Conflict, Invalid):
        return False
    return True


async def _still_exists(client: Client, owner: Object) -> bool:
    try:
        current = await client.get(type(owner), owner.metadata.name, owner.metadata.namespace)
    except NotFound:
        return False
    meta = current.metadata
    return meta.uid == owner.metadata.uid and meta.deletion_timestamp is None
