"""The history of a StatefulSet or DaemonSet, as ControllerRevisions.

A revision holds the pod template as the patch that restores it; that is what ``kubectl rollout
undo`` sends. Its name carries a hash of that patch, so the same template leads to the same name
however often it is written: a pass that does not see its own revision yet gets AlreadyExists.

*Numbers* grow. A template that existed before does not get a second revision: the old one gets the
next number, so the newest state always has the highest one and the history reads 1, 3, 4 after an
undo.

*Collisions*: a revision of that name with other data is another state (or another workload's). The
hash is then taken again with a count, which the workload's status keeps.

*Bounded*: of those that neither the workload nor a pod refers to, ``revisionHistoryLimit`` are
kept, the newest ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from zonewise.api.errors import AlreadyExists, NotFound
from zonewise.api.meta import Object, ObjectMeta
from zonewise.api.objects.apps import ControllerRevision, opened
from zonewise.embedded.components.workloads.creation import owner_reference
from zonewise.runtime.client.client import Client

HASH_LABEL = "controller.kubernetes.io/hash"
REVISION_LABEL = "controller-revision-hash"
"""What a pod of a set carries: the revision it was made from."""

HISTORY = 10
"""What the API server makes of a missing ``revisionHistoryLimit``."""

_PREFIX = 223
_SAFE = "bcdfghjklmnpqrstvwxz2456789"
_ESCAPED = {
    b"<": b"\\u003c",
    b">": b"\\u003e",
    b"&": b"\\u0026",
    "\u2028".encode(): b"\\u2028",
    "\u2029".encode(): b"\\u2029",
}


@lru_cache(maxsize=1024)
def patch_of(template: bytes) -> bytes:
    """The patch that puts this template back."""
    document = msgspec.json.decode(template)
    document["$patch"] = "replace"
    return _canonical({"spec": {"template": document}})


@lru_cache(maxsize=1024)
def template_of(data: bytes) -> msgspec.Raw:
    """The template a patch puts back."""
    template = msgspec.json.decode(data)["spec"]["template"]
    template.pop("$patch", None)
    return msgspec.Raw(msgspec.json.encode(template))


@lru_cache(maxsize=1024)
def normal(data: bytes) -> bytes:
    """The same data as ``patch_of`` writes it: the server may have reordered it."""
    return _canonical(msgspec.json.decode(data))


def digest(data: bytes, collisions: int | None) -> str:
    """The hash in a revision's name; equal to what Kubernetes gives a StatefulSet's revision."""
    value = 0x811C9DC5
    for byte in data + (b"" if collisions is None else b"%d" % collisions):
        value = value * 0x01000193 & 0xFFFFFFFF ^ byte
    return "".join(_SAFE[ord(digit) % len(_SAFE)] for digit in str(value))


def ordered(history: Iterable[ControllerRevision]) -> list[ControllerRevision]:
    """Oldest first."""
    return sorted(
        history,
        key=lambda one: (one.revision, one.metadata.creation_timestamp or "", one.metadata.name),
    )


def choose(
    history: Sequence[ControllerRevision], data: bytes
) -> tuple[ControllerRevision | None, int]:
    """The newest revision with this data, if there is one, and the number it should have."""
    following = history[-1].revision + 1 if history else 1
    for one in reversed(history):
        if normal(bytes(one.data)) == data:
            return one, one.revision if one is history[-1] else following
    return None, following


def surplus(
    history: Sequence[ControllerRevision],
    in_use: Callable[[ControllerRevision], bool],
    *,
    keep: int,
) -> list[ControllerRevision]:
    """Which of these to delete, oldest first; ``keep`` of them stay besides those in use."""
    unused = [one for one in history if not in_use(one)]
    return unused[: max(len(unused) - keep, 0)]


async def present(
    client: Client,
    owner: Object,
    template: msgspec.Raw,
    history: Sequence[ControllerRevision],
    *,
    hash_label: str,
    collisions: int | None,
) -> tuple[ControllerRevision, int | None]:
    """The revision of a workload's template: found, moved to the end of the history, or recorded.

    Also gives the count of collisions.
    """
    data = patch_of(bytes(template))
    found, number = choose(history, data)
    if found is None:
        labels = opened(template).metadata.labels
        return await record(
            client,
            owner,
            data,
            number,
            labels=labels,
            hash_label=hash_label,
            collisions=collisions,
        )
    if found.revision != number:
        found = await renumber(client, found, number)
    return found, collisions


async def record(
    client: Client,
    owner: Object,
    data: bytes,
    number: int,
    *,
    labels: Mapping[str, str],
    hash_label: str,
    collisions: int | None,
) -> tuple[ControllerRevision, int | None]:
    """Create a revision, or find the existing one; also gives the count of collisions."""
    while True:
        text = digest(data, collisions)
        revision = ControllerRevision(
            metadata=ObjectMeta(
                name=f"{owner.metadata.name[:_PREFIX]}-{text}",
                namespace=owner.metadata.namespace,
                labels={**labels, hash_label: text},
                annotations=owner.metadata.annotations,
                owner_references=(owner_reference(owner),),
            ),
            data=msgspec.Raw(data),
            revision=number,
        )
        try:
            return await client.create(revision), collisions
        except AlreadyExists:
            there = await client.get(
                ControllerRevision, revision.metadata.name, owner.metadata.namespace
            )
            if normal(bytes(there.data)) == data:
                return there, collisions
        collisions = (collisions or 0) + 1


async def renumber(client: Client, revision: ControllerRevision, number: int) -> ControllerRevision:
    """Give an old revision a new number."""
    meta = revision.metadata
    body = {"metadata": {"uid": meta.uid}, "revision": number}
    return await client.patch(ControllerRevision, meta.name, meta.namespace, body)


async def forget(client: Client, revisions: Iterable[ControllerRevision]) -> None:
    """Delete revisions."""
    for one in revisions:
        meta = one.metadata
        try:
            await client.delete(ControllerRevision, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            continue


def _canonical(document: object) -> bytes:
    """JSON as Go writes a map: sorted, and safe to put into HTML."""
    text = msgspec.json.encode(document, order="sorted")
    for plain, escaped in _ESCAPED.items():
        text = text.replace(plain, escaped)
    return text
