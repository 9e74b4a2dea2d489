"""Pools by their own labels, so that a class need not list them. Pure.

A backend reports what a pool says about itself (``PoolState.labels``): in Ceph the metadata of the
pool's application whose keys begin with ``zonewise.``, in a data folder the domain that the
configuration declares. A class that says ``poolLabels: all`` uses every pool whose labels name a
domain of the driver; ``poolLabels: tier=fast`` those that have this label besides. So a pool for a
new zone is used as soon as it is labelled.

The program ``ceph`` allows letters, digits, ``-``, ``_`` and ``.`` in a key, so there is no slash.
Monitors take one, and who writes to them otherwise may use ``zonewise.io/`` as everywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zonewise.api.reason import Reason
from zonewise.storage.domains import DomainLabels, Segments, domain_value_error
from zonewise.storage.errors import CsiCode, Refusal
from zonewise.storage.placement_reasons import MENTION_LIMIT
from zonewise.storage.pools import PoolSpec, PoolState
from zonewise.storage.strict_json import ShapeError

LABEL_PREFIX = "zonewise."
"""What the keys of labels begin with in Ceph: ``zonewise.zone``."""
LONG_PREFIX = "zonewise.io/"
"""The same where keys may have a slash; of both the short one counts."""
EVERY_POOL = "all"
POOL_LABELS = "poolLabels"


@dataclass(frozen=True, slots=True)
class PoolSelector:
    """Which of the pools with labels a class uses."""

    required: Mapping[str, str] = field(default_factory=dict)
    """Labels that a pool must have besides those of its domain."""
    file_system: str = ""
    """The file system that it must be a data pool of, if the class names one."""


def parse_pool_selector(text: str, path: str, file_system: str = "") -> PoolSelector:
    """``all``, or ``NAME=VALUE,…``."""
    if text.strip() == EVERY_POOL:
        return PoolSelector(file_system=file_system)
    required: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (name and equals) or domain_value_error(value):
            raise ShapeError(
                path,
                f"must be {EVERY_POOL!r}, or labels that the pools have, as in 'tier=fast'; it is"
                f" {text!r}",
            )
        if name in required:
            raise ShapeError(path, f"label {name!r} is given twice")
        required[name] = value
    return PoolSelector(required, file_system)


def labels_in_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """The labels in the metadata that Ceph keeps of a pool's application."""
    labels: dict[str, str] = {}
    for key in sorted(metadata):
        name = key.removeprefix(LONG_PREFIX)
        if name != key:
            labels.setdefault(name, metadata[key])
        elif key.startswith(LABEL_PREFIX):
            labels[key.removeprefix(LABEL_PREFIX)] = metadata[key]
    return labels


def select_pools(
    selector: PoolSelector, states: Mapping[str, PoolState], labels: DomainLabels
) -> tuple[PoolSpec, ...]:
    """The pools that a selector means, with the domains that they are labelled with, by name."""
    return tuple(
        PoolSpec(name, segments=segments)
        for name, state in sorted(states.items())
        if (segments := _domain_of(state, labels))
        and selector.required.items() <= state.labels.items()
        and state.file_system in (selector.file_system or state.file_system, "")
    )


def refuse_unlabelled(
    selector: PoolSelector, states: Mapping[str, PoolState], labels: DomainLabels
) -> Refusal:
    """Why a class that takes pools by their labels has none."""
    needed_labels = [" or ".join(labels.names) or "any", *_describe(selector.required)]
    if selector.file_system:
        needed_labels.append(f"file system {selector.file_system}")
    labelled = [
        f"{name} ({', '.join(_describe(state.labels))})"
        for name, state in sorted(states.items())
        if state.labels
    ]
    existing_labels = ", ".join(labelled[:MENTION_LIMIT])
    if len(labelled) > MENTION_LIMIT:
        existing_labels += f" and {len(labelled) - MENTION_LIMIT} more"
    message = (
        f"the class takes pools by their own labels ({POOL_LABELS}), and no pool has the labels it"
        f" needs: {', '.join(needed_labels)}; "
    )
    message += f"pools with labels are {existing_labels}" if labelled else "no pool has any label"
    return Refusal(
        CsiCode.FAILED_PRECONDITION,
        Reason(
            code="NoLabelledPool",
            message=message,
            numbers={"pools": len(states), "labelledPools": len(labelled)},
            fix="Label the pools, with the commands that 'zonewise csi pools' prints, or list them"
            " in the StorageClass.",
        ),
    )


def _domain_of(state: PoolState, labels: DomainLabels) -> Segments:
    """The domain a pool is labelled with; empty if it is not, or a value cannot be a node's."""
    segments = {
        name: state.labels[name]
        for name in labels.names or sorted(state.labels)
        if name in state.labels
    }
    return {} if any(domain_value_error(value) for value in segments.values()) else segments


def _describe(labels: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in sorted(labels.items())]
