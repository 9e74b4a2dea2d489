"""Which nodes a DaemonSet selects, and how its pods are tied to them.

A node is eligible if the template's node selector and required node affinity select it and its
taints are tolerated; then a pod *should run* there. Where only a NoSchedule taint was added later,
an existing pod *may stay*. Resources, ports and spread are left to the scheduler: the pod is
created and waits.

Daemons also have to run on unhealthy nodes, so their pods tolerate the taints of the node
lifecycle. A pod is tied to its node by a node affinity to the node's name, which replaces the
template's own required node affinity, and the scheduler binds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from zonewise.api.codec import convert
from zonewise.api.objects.apps import decode_pod_template
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod, PodSpec, Toleration
from zonewise.api.objects.taints import has_untolerated_taint, is_tolerated
from zonewise.api.values import nodeselector
from zonewise.api.values import selector as labelselector
from zonewise.api.values.nodeselector import NAME_FIELD, NodeTerms
from zonewise.api.values.selector import Selector

_DAEMON_TOLERATIONS = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)
_HOST_NETWORK_TOLERATION = ("node.kubernetes.io/network-unavailable", "NoSchedule")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class DaemonFit:
    """Whether a pod should run on a node, and whether an existing one may stay."""

    should_run: bool
    may_stay: bool


_FITS = DaemonFit(True, True)
_DOES_NOT_FIT = DaemonFit(False, False)
_MAY_STAY = DaemonFit(False, True)


@dataclass(frozen=True, slots=True)
class NodePlacement:
    """Which nodes the pods of a template may run on; compiled, as many nodes are checked."""

    node: str
    labels: Selector
    terms: NodeTerms | None
    tolerations: tuple[Toleration, ...]
    spec: dict[str, Any]
    """The spec of a pod without its node affinity."""

    def fit(self, node: Node) -> DaemonFit:
        """Whether a pod should run on a node."""
        name, labels = node.metadata.name, node.metadata.labels
        if self.node not in ("", name) or not self.labels.matches(labels):
            return _DOES_NOT_FIT
        if self.terms is not None and not self.terms.matches(labels, name):
            return _DOES_NOT_FIT
        taints = node.spec.taints
        if not taints or not has_untolerated_taint(taints, self.tolerations):
            return _FITS
        evicting = (taint for taint in taints if taint.effect == "NoExecute")
        evicted = not all(is_tolerated(taint, self.tolerations) for taint in evicting)
        return _DOES_NOT_FIT if evicted else _MAY_STAY

    def spec_for(self, node: str) -> msgspec.Raw:
        """The spec of the pod for a node."""
        name = {"key": NAME_FIELD, "operator": "In", "values": [node]}
        affinity = self.spec.get("affinity", {})
        node_affinity = affinity.get("nodeAffinity", {})
        terms = {"nodeSelectorTerms": [{"matchFields": [name]}]}
        required = {**node_affinity.get(_REQUIRED, {}), **terms}
        pinned = {**affinity, "nodeAffinity": {**node_affinity, _REQUIRED: required}}
        return msgspec.Raw(msgspec.json.encode({**self.spec, "affinity": pinned}))


@lru_cache(maxsize=256)
def placement_of(template: bytes) -> NodePlacement:
    """Which nodes the pods of a template may run on."""
    raw = decode_pod_template(msgspec.Raw(template)).spec
    spec: dict[str, Any] = msgspec.json.decode(raw)
    spec["tolerations"] = _add_daemon_tolerations(spec)
    pod_spec = convert(PodSpec, spec)
    required = None
    if pod_spec.affinity is not None and pod_spec.affinity.node_affinity is not None:
        required = pod_spec.affinity.node_affinity.required
    return NodePlacement(
        node=pod_spec.node_name,
        labels=labelselector.from_labels(pod_spec.node_selector),
        terms=None if required is None else nodeselector.from_object(required),
        tolerations=pod_spec.tolerations,
        spec=spec,
    )


def node_of(pod: Pod) -> str:
    """The node a daemon's pod is bound to, or is created for; "" if it has neither."""
    if pod.spec.node_name:
        return pod.spec.node_name
    affinity = pod.spec.affinity
    node_affinity = None if affinity is None else affinity.node_affinity
    required = None if node_affinity is None else node_affinity.required
    for term in () if required is None else required.node_selector_terms or ():
        for condition in term.match_fields or ():
            if condition.key == NAME_FIELD and condition.operator == "In":
                return condition.values[0] if condition.values else ""
    return ""


def _add_daemon_tolerations(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The template's tolerations and those of every daemon, without duplicates."""
    added = [*_DAEMON_TOLERATIONS, *([_HOST_NETWORK_TOLERATION] if spec.get("hostNetwork") else [])]
    tolerations: list[dict[str, Any]] = list(spec.get("tolerations", ()))
    for key, effect in added:
        toleration = {"key": key, "operator": "Exists", "effect": effect}
        for index, existing in enumerate(tolerations):
            without_seconds = {
                name: value for name, value in existing.items() if name != "tolerationSeconds"
            }
            if without_seconds == toleration:
                tolerations[index] = toleration
                break
        else:
            tolerations.append(toleration)
    return tolerations
