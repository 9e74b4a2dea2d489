"""Which nodes a DaemonSet selects, and how its pods are tied to them.

A node is eligible if the template's node selector and required node affinity select it and its
taints are tolerated; then a pod *should run* there. Where only a NoSchedule taint was added later,
an existing pod *may stay*. Resources, ports and spread are left to the scheduler: the pod is made
and waits.

Daemons also have to serve unhealthy nodes, so their pods tolerate the taints of the node lifecycle.
A pod is tied to its node by its name, in place of the template's own required node affinity, and
the scheduler binds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from zonewise.api.codec import convert
from zonewise.api.objects.apps import opened
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod, PodSpec, Toleration
from zonewise.api.objects.taints import kept_off, tolerated
from zonewise.api.values import nodeselector
from zonewise.api.values import selector as labelselector
from zonewise.api.values.nodeselector import NAME_FIELD, NodeTerms
from zonewise.api.values.selector import Selector

_ALWAYS = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)
_ON_HOST_NETWORK = ("node.kubernetes.io/network-unavailable", "NoSchedule")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a pod should run on a node, and whether an existing one may stay."""

    run: bool
    stay: bool


_YES = Fit(True, True)
_NO = Fit(False, False)
_NO_MORE = Fit(False, True)


@dataclass(frozen=True, slots=True)
class NodePlacement:
    """Where the pods of a template may be; compiled, as many nodes are checked."""

    node: str
    labels: Selector
    terms: NodeTerms | None
    tolerations: tuple[Toleration, ...]
    spec: dict[str, Any]
    """The spec of a pod but for its node."""

    def fit(self, node: Node) -> Fit:
        """Whether a node is meant."""
        name, labels = node.metadata.name, node.metadata.labels
        if self.node not in ("", name) or not self.labels.matches(labels):
            return _NO
        if self.terms is not None and not self.terms.matches(labels, name):
            return _NO
        taints = node.spec.taints
        if not taints or not kept_off(taints, self.tolerations):
            return _YES
        driven = any(
            one.effect == "NoExecute" and not tolerated(one, self.tolerations) for one in taints
        )
        return _NO if driven else _NO_MORE

    def spec_for(self, node: str) -> msgspec.Raw:
        """The spec of the pod for a node."""
        name = {"key": NAME_FIELD, "operator": "In", "values": [node]}
        affinity = self.spec.get("affinity", {})
        on_node = affinity.get("nodeAffinity", {})
        required = {**on_node.get(_REQUIRED, {}), "nodeSelectorTerms": [{"matchFields": [name]}]}
        tied = {**affinity, "nodeAffinity": {**on_node, _REQUIRED: required}}
        return msgspec.Raw(msgspec.json.encode({**self.spec, "affinity": tied}))


@lru_cache(maxsize=256)
def place_of(template: bytes) -> NodePlacement:
    """Where the pods of a template may be."""
    raw = opened(msgspec.Raw(template)).spec
    spec: dict[str, Any] = msgspec.json.decode(raw)
    spec["tolerations"] = _tolerating(spec)
    lean = convert(PodSpec, spec)
    required = None
    if lean.affinity is not None and lean.affinity.node_affinity is not None:
        required = lean.affinity.node_affinity.required
    return NodePlacement(
        node=lean.node_name,
        labels=labelselector.from_labels(lean.node_selector),
        terms=None if required is None else nodeselector.from_object(required),
        tolerations=lean.tolerations,
        spec=spec,
    )


def node_of(pod: Pod) -> str:
    """The node a daemon's pod is on, or is meant for; "" if it says neither."""
    if pod.spec.node_name:
        return pod.spec.node_name
    affinity = pod.spec.affinity
    on_node = None if affinity is None else affinity.node_affinity
    required = None if on_node is None else on_node.required
    for term in () if required is None else required.node_selector_terms or ():
        for condition in term.match_fields or ():
            if condition.key == NAME_FIELD and condition.operator == "In":
                return condition.values[0] if condition.values else ""
    return ""


def _tolerating(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The template's tolerations and those of every daemon; an equal one is not repeated."""
    added = [*_ALWAYS, *([_ON_HOST_NETWORK] if spec.get("hostNetwork") else [])]
    found: list[dict[str, Any]] = list(spec.get("tolerations", ()))
    for key, effect in added:
        toleration = {"key": key, "operator": "Exists", "effect": effect}
        for index, one in enumerate(found):
            same = {name: value for name, value in one.items() if name != "tolerationSeconds"}
            if same == toleration:
                found[index] = toleration
                break
        else:
            found.append(toleration)
    return found
