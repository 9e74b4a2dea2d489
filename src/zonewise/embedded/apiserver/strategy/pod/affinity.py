"""Where a pod may be scheduled: affinity, tolerations, spreading."""

from __future__ import annotations

from zonewise.api.field_cursor import Field
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy.base import Obj
from zonewise.embedded.apiserver.strategy.selectors import (
    validate_label_selector,
    validate_node_selector,
    validate_node_selector_term,
)

TAINT_EFFECTS = ("NoExecute", "NoSchedule", "PreferNoSchedule")
WEIGHT_RULE = "must be in the range 1-100"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
DEFAULT_TOLERATIONS = tuple(
    {
        "key": f"node.kubernetes.io/{condition}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 300,
    }
    for condition in ("not-ready", "unreachable")
)
"""What admission adds to nearly every pod, and is known to be valid."""


def validate_affinity(affinity: Field) -> None:
    """The affinity of a pod."""
    nodes = affinity["nodeAffinity"]
    if nodes.value is not None:
        if nodes.value.get(REQUIRED) is not None:
            validate_node_selector(nodes[REQUIRED])
        for term in nodes[PREFERRED].each():
            term.get("weight", 0).between(1, 100, WEIGHT_RULE)
            validate_node_selector_term(term["preference"], check_values=False)
    for key in ("podAffinity", "podAntiAffinity"):
        pods = affinity[key]
        for term in pods[REQUIRED].each():
            _validate_pod_affinity_term(term)
        for weighted in pods[PREFERRED].each():
            weighted.get("weight", 0).between(1, 100, WEIGHT_RULE)
            _validate_pod_affinity_term(weighted["podAffinityTerm"])


def _validate_pod_affinity_term(term: Field) -> None:
    validate_label_selector(term["labelSelector"])
    validate_label_selector(term["namespaceSelector"])
    for namespace in term["namespaces"].value or ():
        term.child("namespace", namespace).dns_label()
    _validate_label_keys(term)
    topology_key = term.get("topologyKey", "")
    topology_key.required("can not be empty")
    topology_key.qualified_name()


def _validate_label_keys(term: Field) -> None:
    """``matchLabelKeys`` and ``mismatchLabelKeys`` need a selector and may not contradict it."""
    match, mismatch = term["matchLabelKeys"], term["mismatchLabelKeys"]
    if not match.value and not mismatch.value:
        return
    selector = term["labelSelector"].value
    for keys in (match, mismatch):
        if selector is None:
            keys.forbid_filled("must not be specified when labelSelector is not set")
            continue
        for key in keys.each():
            key.qualified_name()
    if selector is not None:
        # The server itself adds an expression per key, so only a second mention is a clash.
        selected = set(selector.get("matchLabels") or ())
        indexes = {key: index for index, key in enumerate(match.value or ())}
        for requirement in selector.get("matchExpressions") or ():
            key = requirement.get("key", "")
            if key in indexes and key in selected:
                Field(key, term, indexes[key]).invalid(
                    "exists in both matchLabelKeys and labelSelector"
                )
            selected.add(key)
    for key in match.each():
        if key.value in (mismatch.value or ()):
            key.invalid("exists in both matchLabelKeys and mismatchLabelKeys")


def validate_tolerations(tolerations: Field) -> None:
    """The tolerations of a pod."""
    for index, fields in enumerate(tolerations.value):
        if fields in DEFAULT_TOLERATIONS:
            continue
        toleration = tolerations.item(index)
        operator, effect = toleration.get("operator", ""), toleration.get("effect", "")
        value = fields.get("value", "")
        if fields.get("key"):
            toleration["key"].qualified_name()
        elif operator.value != "Exists":
            operator.invalid("operator must be Exists when `key` is empty")
        if fields.get("tolerationSeconds") is not None and effect.value != "NoExecute":
            effect.invalid("effect must be 'NoExecute' when `tolerationSeconds` is set")
        match operator.value:
            case "Exists":
                if value:
                    operator.invalid("value must be empty when `operator` is 'Exists'", value)
            case "" | "Equal":
                details = names.label_value_errors(value)
                if details:
                    operator.invalid(";".join(details), value)
            case _:
                operator.unsupported(("Equal", "Exists"))
        effect.optional().enum(TAINT_EFFECTS)


def validate_topology_spread_constraints(constraints: Field) -> None:
    """How evenly the pods of a selection are spread."""
    for index, constraint in enumerate(constraints.each()):
        action, key = constraint.get("whenUnsatisfiable", ""), constraint.get("topologyKey", "")
        constraint.get("maxSkew", 0).positive()
        key.required("can not be empty")
        action.enum(("DoNotSchedule", "ScheduleAnyway"))
        pair = (key.value, action.value)
        if pair in (
            (other.get("topologyKey", ""), other.get("whenUnsatisfiable", ""))
            for other in constraints.value[index + 1 :]
        ):
            constraint["{topologyKey, whenUnsatisfiable}"].duplicate(
                f"{{{key.value}, {action.value}}}"
            )
        domains = constraint["minDomains"]
        if domains.value is not None:
            domains.positive()
            if action.value != "DoNotSchedule":
                domains.invalid(
                    "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not"
                    f" {action.value}"
                )
        constraint["nodeAffinityPolicy"].enum(("Honor", "Ignore"))
        constraint["nodeTaintsPolicy"].enum(("Honor", "Ignore"))
        _validate_label_keys(constraint)
        validate_label_selector(constraint["labelSelector"])


def merge_label_keys(spec: Obj, labels: dict[str, str]) -> None:
    """Write the values of ``matchLabelKeys`` and their opposites into the selectors."""
    for constraint in spec.get("topologySpreadConstraints") or ():
        _merge(constraint, labels)
    affinity = spec.get("affinity") or {}
    for key in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(key) or {}
        for weighted in terms.get(PREFERRED) or ():
            _merge(weighted.get("podAffinityTerm") or {}, labels)
        for term in terms.get(REQUIRED) or ():
            _merge(term, labels)


def _merge(term: Obj, labels: dict[str, str]) -> None:
    selector = term.get("labelSelector")
    if selector is None:
        return
    for name, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
        for key in term.get(name) or ():
            if key in labels:
                selector.setdefault("matchExpressions", []).append(
                    {"key": key, "operator": operator, "values": [labels[key]]}
                )
