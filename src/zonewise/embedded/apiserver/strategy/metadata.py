"""What the server does to every object's metadata, and what it refuses there.

``begin`` and ``carry`` set what only the server may set; the ``validate_`` functions are the rules
for the rest.
"""

from __future__ import annotations

from collections.abc import Callable

from zonewise.api.field_cursor import IMMUTABLE, Field
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy.base import Obj, revert

ANNOTATIONS_LIMIT = 256 * 1024
GENERATED_LENGTH = 5
GENERATED_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
NAME_LIMIT = 63

STANDARD_FINALIZERS = frozenset({"kubernetes", "orphan", "foregroundDeletion"})
NOT_QUALIFIED = "name is neither a standard finalizer name nor is it fully qualified"
CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
SERVER_OWNED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
IMMUTABLE_KEYS = ("name", "namespace", *SERVER_OWNED)


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
    for key in ("deletionTimestamp", "deletionGracePeriodSeconds"):
        if before.get("deletionTimestamp") and before.get(key) is not None:
            meta[key] = before[key]
    revert(meta, before, "generation")


def owners_once(meta: Obj) -> list[str]:
    """Take out owner references that are there twice; returns their uids."""
    owners = meta.get("ownerReferences") or ()
    unique = [owner for index, owner in enumerate(owners) if owner not in owners[:index]]
    if len(unique) == len(owners):
        return []
    meta["ownerReferences"] = unique
    return [owner.get("uid", "") for index, owner in enumerate(owners) if owner in owners[:index]]


def validate_object_meta(
    meta: Field, *, namespaced: bool, find_name_errors: Callable[[str], list[str]], custom: bool
) -> None:
    """The metadata of any object; ``custom`` if a definition made its kind."""
    fields = meta.value
    name, prefix = fields.get("name", ""), fields.get("generateName", "")
    if prefix:
        # The random end makes "web-" a good name, so the prefix is judged with a letter behind it.
        masked = prefix[:-1] + "a" if prefix.endswith("-") and len(prefix) > 1 else prefix
        meta["generateName"].without_errors(find_name_errors(masked))
    if not name:
        meta["name"].missing("name or generateName is required")
    else:
        meta["name"].without_errors(find_name_errors(name))
    if namespaced:
        if not fields.get("namespace"):
            meta["namespace"].missing()
    elif fields.get("namespace"):
        meta["namespace"].forbid("not allowed on this type")
    if fields.get("generation", 0) < 0:
        meta["generation"].not_negative()
    if fields.get("labels"):
        validate_labels(meta["labels"])
    if fields.get("annotations"):
        validate_annotations(meta["annotations"])
    if fields.get("ownerReferences"):
        _validate_owner_references(meta["ownerReferences"])
    if fields.get("finalizers"):
        _validate_finalizers(meta["finalizers"], custom=custom)


def validate_object_meta_update(meta: Field, old: Obj) -> None:
    """What an update may not do to metadata."""
    fields = meta.value
    if old.get("deletionTimestamp"):
        before = old.get("finalizers", ())
        added = [name for name in fields.get("finalizers", ()) if name not in before]
        if added:
            listed = ", ".join(f'"{name}"' for name in added)
            meta["finalizers"].forbid(
                "no new finalizers can be added if the object is being deleted, found new"
                f" finalizers []string{{{listed}}}"
            )
    for key in IMMUTABLE_KEYS:
        if fields.get(key) != old.get(key):
            meta[key].invalid(IMMUTABLE)


def validate_labels(labels: Field) -> None:
    """A map of labels, where there is one."""
    for key, value in (labels.value or {}).items():
        for detail in names.qualified_name_errors(key):
            labels.invalid(detail, key)
        for detail in names.label_value_errors(value):
            labels.invalid(detail, value)


def validate_annotations(annotations: Field) -> None:
    """A map of annotations, where there is one."""
    size = 0
    for key, value in (annotations.value or {}).items():
        for detail in names.qualified_name_errors(key.lower()):
            annotations.invalid(detail, key)
        size += len(key.encode()) + len(value.encode())
    if size > ANNOTATIONS_LIMIT:
        annotations.too_long(ANNOTATIONS_LIMIT)


def _validate_owner_references(owners: Field) -> None:
    controllers = 0
    for reference in owners.value:
        owner = owners.holding(reference)  # reported without its index
        version = owner.get("apiVersion", "")
        if version.value.count("/") > 1:
            version.invalid("unexpected GroupVersion string")
        elif not version.value.rpartition("/")[2]:
            version.invalid("version must not be empty")
        for key in ("kind", "name", "uid"):
            if not reference.get(key):
                owner.get(key, "").invalid("must not be empty")
        if reference.get("kind") == "Event" and version.value == "v1":
            owner.invalid("/v1, Kind=Event is disallowed from being an owner")
        controllers += bool(reference.get("controller"))
    if controllers > 1:
        owners.invalid("Only one reference can have Controller set to true")


def _validate_finalizers(finalizers: Field, *, custom: bool) -> None:
    """Finalizers; only those of the server itself may have bare names on built-in kinds."""
    for finalizer in finalizers.each():
        name = finalizer.value
        finalizers.holding(name).qualified_name()
        if not custom and "/" not in name and name not in STANDARD_FINALIZERS and name != CLEANUP:
            finalizer.invalid(NOT_QUALIFIED)
    if "orphan" in finalizers.value and "foregroundDeletion" in finalizers.value:
        finalizers.invalid("finalizer orphan and finalizer foregroundDeletion cannot be both set")
