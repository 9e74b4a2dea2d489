"""What the server does to every object's metadata, and what it refuses there.

``begin`` and ``carry`` set what only the server may set; ``faults`` and ``update_faults`` say what
is wrong with the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from zonewise.api import field_errors
from zonewise.api.errors import StatusCause
from zonewise.api.values import names

Obj = dict[str, Any]

ANNOTATIONS_LIMIT = 256 * 1024
GENERATED_LENGTH = 5
GENERATED_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
NAME_LIMIT = 63

_NAME_PART = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]\Z")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?\Z")
_NAME_PART_TEXT = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end"
    " with an alphanumeric character"
)
_LABEL_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.',"
    " and must start and end with an alphanumeric character"
)
STANDARD_FINALIZERS = frozenset({"kubernetes", "orphan", "foregroundDeletion"})
CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
SERVER_OWNED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")


def begin(obj: Obj, *, namespace: str, uid: str, now: str, generation: bool) -> None:
    """Make a client's metadata that of a new object."""
    meta = obj["metadata"]
    for key in ("selfLink", "resourceVersion", *SERVER_OWNED):
        meta.pop(key, None)
    if namespace:
        meta["namespace"] = namespace
    meta["uid"] = uid
    meta["creationTimestamp"] = now
    if generation:
        meta["generation"] = 1


def generated_name(base: str, choose: Callable[[str], str]) -> str:
    """A name of ``generateName`` and five letters, short enough to be a DNS label."""
    letters = "".join(choose(GENERATED_ALPHABET) for _ in range(GENERATED_LENGTH))
    return base[: NAME_LIMIT - GENERATED_LENGTH] + letters


def carry(obj: Obj, old: Obj) -> None:
    """Take over from ``old`` what an update left out and could not change anyway."""
    meta, before = obj["metadata"], old["metadata"]
    meta.pop("selfLink", None)
    if before.get("creationTimestamp"):
        meta["creationTimestamp"] = before["creationTimestamp"]
    for key in ("uid", "name", "namespace"):
        if not meta.get(key) and before.get(key):
            meta[key] = before[key]
    if before.get("deletionTimestamp"):
        for key in ("deletionTimestamp", "deletionGracePeriodSeconds"):
            if before.get(key) is not None:
                meta[key] = before[key]
    if "generation" in before:
        meta["generation"] = before["generation"]
    else:
        meta.pop("generation", None)


def owners_once(meta: Obj) -> list[str]:
    """Take out owner references that are there twice; returns their uids."""
    kept: list[Obj] = []
    twice: list[str] = []
    for owner in meta.get("ownerReferences") or ():
        if owner in kept:
            twice.append(owner.get("uid", ""))
        else:
            kept.append(owner)
    if twice:
        meta["ownerReferences"] = kept
    return twice


def object_faults(
    obj: Obj,
    *,
    namespaced: bool,
    check_name: Callable[[str], list[str]],
    custom: bool = False,
) -> list[StatusCause]:
    """What is wrong with the metadata of any object."""
    meta = obj["metadata"]
    found: list[StatusCause] = []
    name, base = meta.get("name", ""), meta.get("generateName", "")
    if base:
        # The random end makes "web-" a good name, so the base is judged with a letter behind it.
        masked = base[:-1] + "a" if base.endswith("-") and len(base) > 1 else base
        found += [
            field_errors.invalid("metadata.generateName", base, text) for text in check_name(masked)
        ]
    if not name:
        found.append(field_errors.required("metadata.name", "name or generateName is required"))
    else:
        found += [field_errors.invalid("metadata.name", name, text) for text in check_name(name)]
    if namespaced and not meta.get("namespace"):
        found.append(field_errors.required("metadata.namespace"))
    elif not namespaced and meta.get("namespace"):
        found.append(field_errors.forbidden("metadata.namespace", "not allowed on this type"))
    if meta.get("generation", 0) < 0:
        text = "must be greater than or equal to 0"
        found.append(field_errors.invalid("metadata.generation", meta["generation"], text))
    if meta.get("labels"):
        found += label_faults("metadata.labels", meta["labels"])
    if meta.get("annotations"):
        found += annotation_faults("metadata.annotations", meta["annotations"])
    if meta.get("ownerReferences"):
        found += owner_faults(meta["ownerReferences"])
    if meta.get("finalizers"):
        found += finalizer_faults(meta["finalizers"], custom=custom)
    return found


def update_faults(obj: Obj, old: Obj) -> list[StatusCause]:
    """What an update may not do to metadata."""
    meta, before = obj["metadata"], old["metadata"]
    found: list[StatusCause] = []
    if before.get("deletionTimestamp"):
        new = [
            name for name in meta.get("finalizers", ()) if name not in before.get("finalizers", ())
        ]
        if new:
            shown = "{" + ", ".join(f'"{name}"' for name in new) + "}"
            found.append(
                field_errors.forbidden(
                    "metadata.finalizers",
                    "no new finalizers can be added if the object is being deleted, found new"
                    f" finalizers []string{shown}",
                )
            )
    for key in ("name", "namespace", *SERVER_OWNED):
        if meta.get(key) != before.get(key):
            found.append(
                field_errors.invalid(f"metadata.{key}", meta.get(key), "field is immutable")
            )
    return found


def qualified_name(text: str) -> list[str]:
    """Why a text is no qualified name (``prefix.example/name``)."""
    found = []
    prefix, slash, name = text.partition("/")
    if "/" in name:
        return [
            "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and"
            " must start and end with an alphanumeric character, with an optional DNS subdomain"
            " prefix and '/'"
        ]
    if not slash:
        name = text
    elif not prefix:
        found.append("prefix part must be non-empty")
    else:
        found += [f"prefix part {sentence}" for sentence in names.subdomain(prefix)]
    if not name:
        found.append("name part must be non-empty")
    elif len(name.encode()) > NAME_LIMIT:
        found.append(f"name part must be no more than {NAME_LIMIT} bytes")
    if not _NAME_PART.match(name):
        found.append(_NAME_PART_TEXT)
    return found


def label_value(text: str) -> list[str]:
    """Why a text is no label's value."""
    found = []
    if len(text.encode()) > NAME_LIMIT:
        found.append(f"must be no more than {NAME_LIMIT} bytes")
    if not _LABEL_VALUE.match(text):
        found.append(_LABEL_VALUE_TEXT)
    return found


def label_faults(path: str, labels: dict[str, str]) -> list[StatusCause]:
    """What is wrong with a map of labels."""
    found = []
    for key, value in labels.items():
        found += [field_errors.invalid(path, key, text) for text in qualified_name(key)]
        found += [field_errors.invalid(path, value, text) for text in label_value(value)]
    return found


def annotation_faults(path: str, annotations: dict[str, str]) -> list[StatusCause]:
    """What is wrong with a map of annotations."""
    found = []
    size = 0
    for key, value in annotations.items():
        found += [field_errors.invalid(path, key, text) for text in qualified_name(key.lower())]
        size += len(key.encode()) + len(value.encode())
    if size > ANNOTATIONS_LIMIT:
        found.append(field_errors.too_long(path, ANNOTATIONS_LIMIT))
    return found


def owner_faults(owners: list[Obj]) -> list[StatusCause]:
    """What is wrong with owner references."""
    path = "metadata.ownerReferences"
    found = []
    controllers = 0
    for owner in owners:
        if owner.get("apiVersion", "").count("/") > 1:
            text = "unexpected GroupVersion string"
            found.append(field_errors.invalid(f"{path}.apiVersion", owner["apiVersion"], text))
        elif not owner.get("apiVersion", "").rpartition("/")[2]:
            text = "version must not be empty"
            found.append(
                field_errors.invalid(f"{path}.apiVersion", owner.get("apiVersion", ""), text)
            )
        for key in ("kind", "name", "uid"):
            if not owner.get(key):
                found.append(
                    field_errors.invalid(f"{path}.{key}", owner.get(key, ""), "must not be empty")
                )
        if owner.get("kind") == "Event" and owner.get("apiVersion") == "v1":
            found.append(
                field_errors.invalid(
                    path, owner, "/v1, Kind=Event is disallowed from being an owner"
                )
            )
        controllers += bool(owner.get("controller"))
    if controllers > 1:
        text = "Only one reference can have Controller set to true"
        found.append(field_errors.invalid(path, owners, text))
    return found


def finalizer_faults(finalizers: list[str], *, custom: bool) -> list[StatusCause]:
    """What is wrong with finalizers; built-in kinds take bare names only of the server's own."""
    path = "metadata.finalizers"
    found = []
    for index, name in enumerate(finalizers):
        found += [field_errors.invalid(path, name, text) for text in qualified_name(name)]
        if not custom and "/" not in name and name not in STANDARD_FINALIZERS and name != CLEANUP:
            text = "name is neither a standard finalizer name nor is it fully qualified"
            found.append(field_errors.invalid(f"{path}[{index}]", name, text))
    if "orphan" in finalizers and "foregroundDeletion" in finalizers:
        text = "finalizer orphan and finalizer foregroundDeletion cannot be both set"
        found.append(field_errors.invalid(path, finalizers, text))
    return found
