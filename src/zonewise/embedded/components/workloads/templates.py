"""Pod templates compared and hashed.

A ReplicaSet has its Deployment's template and one label more, the template's hash. Two templates
are the same if they are equal without that label; the order of members says nothing. The hash makes
the ReplicaSet's name and keeps its pods apart from those of other templates; a name that is taken
by another template is counted as a collision and hashed again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from zonewise.embedded.components.workloads.revisions import digest

HASH = "pod-template-hash"


def same(one: msgspec.Raw, other: msgspec.Raw) -> bool:
    """Whether two templates make the same pods."""
    return _normal(bytes(one)) == _normal(bytes(other))


def hashed(template: msgspec.Raw, collisions: int | None) -> str:
    """A short text for a template."""
    return digest(_normal(bytes(template)), collisions)


def labeled(template: msgspec.Raw, text: str) -> msgspec.Raw:
    """The template with its hash as a label."""
    value = msgspec.json.decode(template)
    metadata = value.get("metadata") or {}
    labels = {**(metadata.get("labels") or {}), HASH: text}
    return msgspec.Raw(msgspec.json.encode({**value, "metadata": {**metadata, "labels": labels}}))


@lru_cache(maxsize=4096)
def _normal(template: bytes) -> bytes:
    value: dict[str, Any] = msgspec.json.decode(template)
    metadata = {k: v for k, v in (value.get("metadata") or {}).items() if v}
    labels = {k: v for k, v in metadata.pop("labels", {}).items() if k != HASH}
    return msgspec.json.encode(
        {**value, "metadata": {**metadata, "labels": labels}}, order="sorted"
    )
