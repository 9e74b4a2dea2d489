"""Pod templates compared and hashed.

A ReplicaSet has its Deployment's template and one more label, the template's hash. Templates are
compared without that label and regardless of the order of members. The hash is part of the
ReplicaSet's name and separates its pods from those of other templates; a name that another
template has already is counted as a collision and hashed again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from zonewise.embedded.components.workloads.revisions import compute_hash

HASH_LABEL = "pod-template-hash"


def equal_ignoring_hash(first: msgspec.Raw, second: msgspec.Raw) -> bool:
    """Whether two templates are equal but for the hash."""
    return _normalize(bytes(first)) == _normalize(bytes(second))


def hash_template(template: msgspec.Raw, collisions: int | None) -> str:
    """The hash of a template."""
    return compute_hash(_normalize(bytes(template)), collisions)


def add_hash_label(template: msgspec.Raw, template_hash: str) -> msgspec.Raw:
    """The template with its hash as a label."""
    value = msgspec.json.decode(template)
    metadata = value.get("metadata") or {}
    labels = {**(metadata.get("labels") or {}), HASH_LABEL: template_hash}
    return msgspec.Raw(msgspec.json.encode({**value, "metadata": {**metadata, "labels": labels}}))


@lru_cache(maxsize=4096)
def _normalize(template: bytes) -> bytes:
    value: dict[str, Any] = msgspec.json.decode(template)
    metadata = {k: v for k, v in (value.get("metadata") or {}).items() if v}
    labels = {k: v for k, v in metadata.pop("labels", {}).items() if k != HASH_LABEL}
    unhashed = {**value, "metadata": {**metadata, "labels": labels}}
    return msgspec.json.encode(unhashed, order="sorted")
