"""Kinds by the path of a request."""

from __future__ import annotations

from collections.abc import Iterable

from zonewise.embedded.machinery.schema.kinds import Kind


def by_path(kinds: Iterable[Kind]) -> dict[tuple[str, str, str], Kind]:
    """Kinds by group, version and plural."""
    return {(k.resource.group, k.resource.version, k.resource.plural): k for k in kinds}
