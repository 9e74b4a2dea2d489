"""The history of a StatefulSet or DaemonSet, as ControllerRevisions.

A revision stores the pod template as the patch that restores it; that is what ``kubectl rollout
undo`` sends. Its name ends with a hash of that patch, so the same template leads to the same name
however often it is written: a sync that does not see its own revision yet gets AlreadyExists.

*Numbers* grow. A template that existed before does not get a second revision: the old one gets the
next number, so the newest state always has the highest one and the history reads 1, 3, 4 after an
undo.

*Collisions*: a revision of that name with other data is another template (or another workload's).
The hash is then computed again with a count, which is stored in the workload's status.

*Bounded*: of those that neither the workload nor a pod refers to, the ``revisionHistoryLimit``
newest ones are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from zonewise.api.errors import AlreadyExists, NotFound
from zonewise.api.meta import Object, ObjectMeta
from zonewise.api.objects.apps import ControllerRevision, decode_pod_template
from zonewise.embedded.components.workloads.creation import owner_reference
from zonewise.runtime.client.client import Client

HASH_LABEL = "controller.kubernetes.io/hash"
REVISION_LABEL = "controller-revision-hash"
"""The revision a pod was created from."""

DEFAULT_HISTORY_LIMIT = 10
"""The API server's default of ``revisionHistoryLimit``."""

_MAX_PREFIX = 223
_SAFE_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_ESCAPES = {
    b"<": b"\\u003c",
    b">": b"\\u003e",
    b"&": b"\\u0026",
    "\u2028".encode(): b"\\u2028",
    "\u2029".encode(): b"\\u2029",
}


@lru_cache(maxsize=1024)
def make_patch(template: bytes) -> bytes:
    """The patch that restores a template."""
    document = msgspec.json.decode(template)
    document["$patch"] = "replace"
    return _canonical({"spec": {"template": document}})


@lru_cache(maxsize=1024)
def template_of(data: bytes) -> msgspec.Raw:
    """The template that a patch restores."""
    template = msgspec.json.decode(data)["spec"]["template"]
    template.pop("$patch", None)
    return msgspec.Raw(msgspec.json.encode(template))


@lru_cache(maxsize=1024)
def normalize(data: bytes) -> bytes:
    """The same data as ``make_patch`` writes it: the server may have reordered it."""
    return _canonical(msgspec.json.decode(data))


def compute_hash(data: bytes, collisions: int | None) -> str:
    """The hash in a revision's name; equal to Kubernetes' own for StatefulSets."""
    value = 0x811C9DC5
    for byte in data + (b"" if collisions is None else b"%d" % collisions):
        value = value * 0x01000193 & 0xFFFFFFFF ^ byte
    return "".join(_SAFE_ALPHABET[ord(digit) % len(_SAFE_ALPHABET)] for digit in str(value))


def sort_revisions(history: Iterable[ControllerRevision]) -> list[ControllerRevision]:
    """Sort revisions, oldest first."""
    return sorted(
        history,
        key=lambda revision: (
            revision.revision,
            revision.metadata.creation_timestamp or "",
            revision.metadata.name,
        ),
    )


def find_revision(
    history: Sequence[ControllerRevision], data: bytes
) -> tuple[ControllerRevision | None, int]:
    """The newest revision with this data, or None, and the number it should have."""
    next_number = history[-1].revision + 1 if history else 1
    for revision in reversed(history):
        if normalize(bytes(revision.data)) == data:
            return revision, revision.revision if revision is history[-1] else next_number
    return None, next_number


def select_surplus(
    history: Sequence[ControllerRevision],
    in_use: Callable[[ControllerRevision], bool],
    *,
    keep: int,
) -> list[ControllerRevision]:
    """The unused revisions to delete, oldest first; ``keep`` of the unused ones stay."""
    unused = [revision for revision in history if not in_use(revision)]
    return unused[: max(len(unused) - keep, 0)]


async def ensure_revision(
    client: Client,
    owner: Object,
    template: msgspec.Raw,
    history: Sequence[ControllerRevision],
    *,
    hash_label: str,
    collisions: int | None,
) -> tuple[ControllerRevision, int | None]:
    """Find, renumber or create the revision of a workload's template.

    Also returns the count of collisions.
    """
    data = make_patch(bytes(template))
    revision, number = find_revision(history, data)
    if revision is None:
        labels = decode_pod_template(template).metadata.labels
        return await create_revision(
            client, owner, data, number, labels=labels, hash_label=hash_label, collisions=collisions
        )
    if revision.revision != number:
        revision = await renumber(client, revision, number)
    return revision, collisions


async def create_revision(
    client: Client,
    owner: Object,
    data: bytes,
    number: int,
    *,
    labels: Mapping[str, str],
    hash_label: str,
    collisions: int | None,
) -> tuple[ControllerRevision, int | None]:
    """Create a revision, or get the existing one; also returns the count of collisions."""
    while True:
        name_hash = compute_hash(data, collisions)
        revision = ControllerRevision(
            metadata=ObjectMeta(
                name=f"{owner.metadata.name[:_MAX_PREFIX]}-{name_hash}",
                namespace=owner.metadata.namespace,
                labels={**labels, hash_label: name_hash},
                annotations=owner.metadata.annotations,
                owner_references=(owner_reference(owner),),
            ),
            data=msgspec.Raw(data),
            revision=number,
        )
        try:
            return await client.create(revision), collisions
        except AlreadyExists:
            existing = await client.get(
                ControllerRevision, revision.metadata.name, owner.metadata.namespace
            )
            if normalize(bytes(existing.data)) == data:
                return existing, collisions
        collisions = (collisions or 0) + 1


async def renumber(client: Client, revision: ControllerRevision, number: int) -> ControllerRevision:
    """Give an old revision a new number."""
    meta = revision.metadata
    body = {"metadata": {"uid": meta.uid}, "revision": number}
    return await client.patch(ControllerRevision, meta.name, meta.namespace, body)


async def delete_revisions(client: Client, revisions: Iterable[ControllerRevision]) -> None:
    """Delete revisions."""
    for revision in revisions:
        meta = revision.metadata
        try:
            await client.delete(ControllerRevision, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            continue


def _canonical(document: object) -> bytes:
    """JSON as Go writes a map: sorted, and with the characters of HTML escaped."""
    text = msgspec.json.encode(document, order="sorted")
    for plain, escaped in _ESCAPES.items():
        text = text.replace(plain, escaped)
    return text
