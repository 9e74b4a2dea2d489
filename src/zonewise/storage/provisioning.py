"""The topology that a provisioner requests from a driver, and what follows a failed call. Pure.

A claim becomes a requirement in the way Kubernetes' own provisioner does it, because drivers are
built for that. ``requisite`` are the domains that are allowed: what the class allows, else those of
all nodes that have the driver's keys. ``preferred`` are the same, rotated:

=====================================  ==========================  =============================
claim                                  ``requisite``               ``preferred``
=====================================  ==========================  =============================
waits for its pod; a node is selected  all, in order               begins with the node's
the same, strict                       the node's only             the node's only
binds at once                          all, in order               begins at the claim's offset
the same, ``immediate`` off            no requirement at all       no requirement at all
the class allows some                  those, with the keys that   begins at the claim's offset
                                       the class names             (or with the node's)
=====================================  ==========================  =============================

A claim's offset is a hash of its name, moved by its ordinal: claims of a StatefulSet go round
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


class ProvisioningState(Enum):
    """What a provisioner does after a failed call: external-provisioner's states."""

    RESCHEDULE = "reschedule"
    """Nothing is left behind; the selected node is given up, so that another is chosen."""
    BACKGROUND = "background"
    """It may still succeed: the call is repeated, even if the claim is deleted meanwhile."""
    FINISHED = "finished"
    """Nothing is running; a later attempt starts from the beginning."""


def provisioning_state_after(code: str, *, node_selected: bool) -> ProvisioningState:
    """The state after a call failed with a code, given by its name in the protocol."""
    if code == CsiCode.RESOURCE_EXHAUSTED.value and node_selected:
        return ProvisioningState.RESCHEDULE
    uncertain = (CsiCode.ABORTED.value, CsiCode.UNAVAILABLE.value, "CANCELLED", "DEADLINE_EXCEEDED")
    return ProvisioningState.BACKGROUND if code in uncertain else ProvisioningState.FINISHED


def accessibility_requirement(
    claim: str,
    driver: str,
    nodes: Mapping[str, Mapping[str, str]],
    csi_nodes: Iterable[CSINode],
    *,
    selected_node: str = "",
    allowed: Iterable[TopologySelectorTerm] = (),
    strict: bool = False,
    immediate: bool = True,
) -> AccessibilityRequirement | None:
    """From where a claim's volume must be usable; None if nothing is required.

    ``nodes`` are the labels of all nodes, ``selected_node`` the node the scheduler chose. Raises
    StorageError if the driver is not ready on that node, or on any, or may not be used there.
    """
    keys = {csi_node.metadata.name: _topology_keys(csi_node, driver) for csi_node in csi_nodes}
    allowed_terms = tuple(allowed)
    terms = _flatten(allowed_terms)
    node_term: _Term = ()
    if selected_node:
        node_term = _selected_node_term(
            selected_node, nodes.get(selected_node), keys.get(selected_node, ())
        )
        if strict:
            if terms and not any(set(term) <= set(node_term) for term in terms):
                raise _failed_precondition(
                    "NodeNotAllowed",
                    f"node {selected_node} is in {_describe_term(node_term)}, which the class does"
                    " not allow",
                    selected_node,
                    "Allow the domain in allowedTopologies, or let the pod run elsewhere.",
                )
            return _build_requirement([node_term], 0)
    if not allowed_terms:
        if not selected_node and not immediate:
            return None
        topology_keys = keys[selected_node] if selected_node else _most_common_keys(keys.values())
        terms = _node_terms(topology_keys, nodes.values())
        if not terms:
            raise _failed_precondition(
                "DriverNotRegistered",
                f"no node has a topology that driver {driver} reports",
                "",
                "Check that the driver's node plugins run and are registered.",
            )
    if not terms:
        return None
    terms = sorted(set(terms), key=lambda term: (len(term), term))
    if not selected_node:
        return _build_requirement(terms, topology_offset(claim) % len(terms))
    for index, term in enumerate(terms):
        if set(term) <= set(node_term):
            return _build_requirement(terms, index)
    raise _failed_precondition(
        "NodeNotAllowed",
        f"node {selected_node} is in {_describe_term(node_term)}, which is not one of the allowed"
        " domains",
        selected_node,
        "Allow the domain in allowedTopologies, or let the pod run elsewhere.",
    )


def node_domains(
    driver: str, nodes: Mapping[str, Mapping[str, str]], csi_nodes: Iterable[CSINode]
) -> tuple[Mapping[str, str], ...]:
    """The domains of all nodes that have the keys a driver reports, in order."""
    topology_keys = _most_common_keys(_topology_keys(csi_node, driver) for csi_node in csi_nodes)
    return tuple(dict(term) for term in sorted(set(_node_terms(topology_keys, nodes.values()))))


def volume_node_affinity(accessible: Iterable[Mapping[str, str]]) -> VolumeNodeAffinity | None:
    """The affinity to the nodes a volume can be used from, in the given order; None: all nodes."""
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


def topology_offset(claim: str) -> int:
    """The index of a claim's first domain, modulo the number of domains."""
    name, dash, ordinal = claim.rpartition("-")
    if not dash or not (ordinal.isascii() and ordinal.isdecimal()) or int(ordinal) >= 2**32:
        return _fnv(claim)
    # data-web-0 and logs-web-0 belong to one pod, which needs both in one domain: only "web"
    # counts.
    return (_fnv(name.rpartition("-")[2]) + int(ordinal)) % 2**32


def _fnv(text: str) -> int:
    """FNV-1 in 32 bits."""
    value = 2166136261
    for byte in text.encode():
        value = (value * 16777619) % 2**32 ^ byte
    return value


def _build_requirement(terms: list[_Term], offset: int) -> AccessibilityRequirement:
    requisite = tuple(dict(term) for term in terms)
    return AccessibilityRequirement(requisite, requisite[offset:] + requisite[:offset])


def _topology_keys(csi_node: CSINode, driver: str) -> tuple[str, ...]:
    """The keys that a driver reports on a node."""
    for csi_driver in csi_node.spec.drivers or ():
        if csi_driver.name == driver:
            return tuple(sorted(csi_driver.topology_keys or ()))
    return ()


def _most_common_keys(reported: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    counts = Counter(keys for keys in reported if keys)
    return min(counts, key=lambda keys: (-counts[keys], keys), default=())


def _node_terms(keys: tuple[str, ...], nodes: Iterable[Mapping[str, str]]) -> list[_Term]:
    """The domains of the nodes that have all the keys."""
    if not keys:
        return []
    return [
        tuple((key, labels[key]) for key in keys)
        for labels in nodes
        if all(key in labels for key in keys)
    ]


def _selected_node_term(
    name: str, labels: Mapping[str, str] | None, keys: tuple[str, ...]
) -> _Term:
    if labels is None:
        raise _failed_precondition(
            "NodeMissing", f"there is no node {name}", name, "The scheduler chooses another node."
        )
    if not keys:
        raise _failed_precondition(
            "DriverNotRegistered",
            f"the driver reports no topology key on node {name}",
            name,
            "Check that the driver's node plugin runs there and is registered.",
        )
    if missing := [key for key in keys if key not in labels]:
        raise _failed_precondition(
            "LabelsMissing",
            f"node {name} has no label {' and '.join(missing)}, which the driver reports there",
            name,
            "Restart the driver's node plugin there: it labels the node when it is registered.",
        )
    return tuple((key, labels[key]) for key in keys)


def _flatten(allowed: Iterable[TopologySelectorTerm]) -> list[_Term]:
    """All combinations of one value per key, for each term of a class."""
    terms: list[_Term] = []
    for term in allowed:
        expressions = term.match_label_expressions
        by_key = {expression.key: expression.values or () for expression in expressions}
        if by_key:
            keys = sorted(by_key)
            choices = product(*(by_key[key] for key in keys))
            terms += [tuple(zip(keys, values, strict=True)) for values in choices]
    return terms


def _describe_term(term: _Term) -> str:
    return ", ".join(f"{key}={value}" for key, value in term)


def _failed_precondition(code: str, message: str, node: str, fix: str) -> StorageError:
    reason = Reason(code=code, message=message, object=f"Node/{node}" if node else "", fix=fix)
    return StorageError(Refusal(CsiCode.FAILED_PRECONDITION, reason))
