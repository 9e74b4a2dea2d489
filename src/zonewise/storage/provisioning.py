"""What a provisioner requests from a driver, and what it does with the answer. Pure.

A claim becomes a requirement in the way Kubernetes' own provisioner does it, because drivers are
built for that. ``requisite`` are the domains that are allowed: what the class allows, else those of
all nodes that have the driver's keys. ``preferred`` are the same, rotated:

=====================================  ==========================  =============================
claim                                  ``requisite``               ``preferred``
=====================================  ==========================  =============================
waits for its pod; a node is selected  all, in order               begins with the node's
the same, strict                       the node's only             the node's only
binds at once                          all, in order               begins at the claim's own place
the same, ``immediate`` off            no requirement at all       no requirement at all
the class allows some                  those, with the keys that   begins at the claim's own place
                                       the class names             (or with the node's)
=====================================  ==========================  =============================

A claim's own place is a hash of its name, moved by its ordinal: claims of a StatefulSet go round
the zones, and all claims of one of its pods go to the same zone.

Where nodes report different keys and none is selected, the keys most of them report are used, so
that a claim does not get a different requirement on each attempt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from itertools import product

from zonewise.api.objects.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from zonewise.api.objects.storage import CSINode, TopologySelectorTerm, VolumeNodeAffinity
from zonewise.api.reason import Reason
from zonewise.storage.errors import CsiCode, Refusal, StorageError
from zonewise.storage.placement import AccessibilityRequirement

_Term = tuple[tuple[str, str], ...]
"""Keys and values, by key: terms are compared and sorted."""


class Afterwards(Enum):
    """What a failed call leaves to the provisioner."""

    RESCHEDULE = "reschedule"
    """Nothing is left behind; another node may do: the selected one is given up."""
    BACKGROUND = "background"
    """It may still happen: the call is repeated, even if the claim is deleted meanwhile."""
    FINISHED = "finished"
    """Nothing is running; tried again later as if for the first time."""


def afterwards(code: str, *, selected: bool) -> Afterwards:
    """What follows from the code of a failed call, by its name in the protocol."""
    if code == CsiCode.RESOURCE_EXHAUSTED.value and selected:
        return Afterwards.RESCHEDULE
    unsure = (CsiCode.ABORTED.value, CsiCode.UNAVAILABLE.value, "CANCELLED", "DEADLINE_EXCEEDED")
    return Afterwards.BACKGROUND if code in unsure else Afterwards.FINISHED


def accessibility_requirement(
    claim: str,
    driver: str,
    nodes: Mapping[str, Mapping[str, str]],
    csi_nodes: Iterable[CSINode],
    *,
    selected: str = "",
    allowed: Iterable[TopologySelectorTerm] = (),
    strict: bool = False,
    immediate: bool = True,
) -> AccessibilityRequirement | None:
    """From where a claim's volume must be usable; None if nothing is required.

    ``nodes`` are the labels of all nodes, ``selected`` the node the scheduler chose. Raises
    StorageError if the driver is not ready on that node, or on any, or may not be used there.
    """
    keys = {one.metadata.name: _keys(one, driver) for one in csi_nodes}
    limits = tuple(allowed)
    terms = _flattened(limits)
    here: _Term = ()
    if selected:
        here = _of_selected(selected, nodes.get(selected), keys.get(selected, ()))
        if strict:
            if terms and not any(set(term) <= set(here) for term in terms):
                raise _refused(
                    "NodeNotAllowed",
                    f"node {selected} is in {_words(here)}, which the class does not allow",
                    selected,
                    "Allow the domain in allowedTopologies, or let the pod run elsewhere.",
                )
            return _requirement([here], 0)
    if not limits:
        if not selected and not immediate:
            return None
        wanted = keys[selected] if selected else _usual(keys.values())
        terms = _of_nodes(wanted, nodes.values())
        if not terms:
            raise _refused(
                "DriverNotRegistered",
                f"no node has a topology that driver {driver} reports",
                "",
                "See that the driver's node plugins run and are registered.",
            )
    if not terms:
        return None
    terms = sorted(set(terms), key=lambda term: (len(term), term))
    if not selected:
        return _requirement(terms, own_place(claim) % len(terms))
    for place, term in enumerate(terms):
        if set(term) <= set(here):
            return _requirement(terms, place)
    raise _refused(
        "NodeNotAllowed",
        f"node {selected} is in {_words(here)}, which is none of the domains allowed",
        selected,
        "Allow the domain in allowedTopologies, or let the pod run elsewhere.",
    )


def domains_of(
    driver: str, nodes: Mapping[str, Mapping[str, str]], csi_nodes: Iterable[CSINode]
) -> tuple[Mapping[str, str], ...]:
    """The domains of all nodes that have the keys a driver reports, in order."""
    usual = _usual(_keys(one, driver) for one in csi_nodes)
    return tuple(dict(term) for term in sorted(set(_of_nodes(usual, nodes.values()))))


def volume_node_affinity(
    accessible: Iterable[Mapping[str, str]],
) -> VolumeNodeAffinity | None:
    """The nodes a volume can be used from, in the order of the answer; None is all of them."""
    terms = tuple(
        NodeSelectorTerm(
            match_expressions=tuple(
                NodeSelectorRequirement(key=key, operator="In", values=(term[key],))
                for key in sorted(term)
            )
        )
        for term in accessible
        if term
    )
    return VolumeNodeAffinity(required=NodeSelector(node_selector_terms=terms)) if terms else None


def own_place(claim: str) -> int:
    """Where a claim begins among the domains, before it is cut to their number."""
    name, dash, ordinal = claim.rpartition("-")
    if not dash or not (ordinal.isascii() and ordinal.isdecimal()) or int(ordinal) >= 2**32:
        return _fnv(claim)
    # data-web-0 and logs-web-0 are of one pod, which needs them in one place: only "web" counts.
    return (_fnv(name.rpartition("-")[2]) + int(ordinal)) % 2**32


def _fnv(text: str) -> int:
    """FNV-1 in 32 bits."""
    value = 2166136261
    for byte in text.encode():
        value = (value * 16777619) % 2**32 ^ byte
    return value


def _requirement(terms: list[_Term], first: int) -> AccessibilityRequirement:
    told = tuple(dict(term) for term in terms)
    return AccessibilityRequirement(told, told[first:] + told[:first])


def _keys(csi_node: CSINode, driver: str) -> tuple[str, ...]:
    """The keys that a driver reports on a node."""
    for one in csi_node.spec.drivers or ():
        if one.name == driver:
            return tuple(sorted(one.topology_keys or ()))
    return ()


def _usual(reported: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    counts = Counter(keys for keys in reported if keys)
    return min(counts, key=lambda keys: (-counts[keys], keys), default=())


def _of_nodes(keys: tuple[str, ...], nodes: Iterable[Mapping[str, str]]) -> list[_Term]:
    """The domains of the nodes that have all the keys."""
    if not keys:
        return []
    return [
        tuple((key, labels[key]) for key in keys)
        for labels in nodes
        if all(key in labels for key in keys)
    ]


def _of_selected(name: str, labels: Mapping[str, str] | None, keys: tuple[str, ...]) -> _Term:
    if labels is None:
        raise _refused("NodeMissing", f"there is no node {name}", name, "Another is chosen.")
    if not keys:
        raise _refused(
            "DriverNotRegistered",
            f"the driver reports no topology key on node {name}",
            name,
            "See that the driver's node plugin runs there and is registered.",
        )
    if lacking := [key for key in keys if key not in labels]:
        raise _refused(
            "LabelsMissing",
            f"node {name} has no label {' and '.join(lacking)}, which the driver reports there",
            name,
            "Restart the driver's node plugin there: it labels the node when it is registered.",
        )
    return tuple((key, labels[key]) for key in keys)


def _flattened(allowed: Iterable[TopologySelectorTerm]) -> list[_Term]:
    """Every choice of a value per key, for each term of a class."""
    found: list[_Term] = []
    for term in allowed:
        by_key = {one.key: one.values or () for one in term.match_label_expressions}
        if by_key:
            keys = sorted(by_key)
            choices = product(*(by_key[key] for key in keys))
            found += [tuple(zip(keys, values, strict=True)) for values in choices]
    return found


def _words(term: _Term) -> str:
    return ", ".join(f"{key}={value}" for key, value in term)


def _refused(code: str, message: str, node: str, fix: str) -> StorageError:
    why = Reason(code=code, message=message, object=f"Node/{node}" if node else "", fix=fix)
    return StorageError(Refusal(CsiCode.FAILED_PRECONDITION, why))
