"""Selectors inside objects: of labels and of nodes, whether they are valid and what they match."""

from __future__ import annotations

from zonewise.api.field_cursor import Field
from zonewise.embedded.apiserver.strategy.base import Obj
from zonewise.embedded.apiserver.strategy.metadata import validate_labels

COMPARING = ("Gt", "Lt")
NOT_AN_OPERATOR = "not a valid selector operator"


def validate_label_selector(selector: Field) -> None:
    """A label selector, where there is one."""
    if not selector.value:
        return
    validate_labels(selector["matchLabels"])
    for requirement in selector["matchExpressions"].each():
        validate_selector_requirement(requirement)


def validate_selector_requirement(
    requirement: Field, *, of_nodes: bool = False, check_values: bool = True
) -> None:
    """One requirement on labels; those on nodes' labels may compare numbers."""
    operator, values = requirement.get("operator", ""), requirement["values"]
    match operator.value:
        case "In" | "NotIn":
            values.required("must be specified when `operator` is 'In' or 'NotIn'")
        case "Exists" | "DoesNotExist":
            values.forbid_filled(
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            )
        case "Gt" | "Lt" if of_nodes:
            if len(values.value or ()) != 1:
                values.missing("must be specified single value when `operator` is 'Lt' or 'Gt'")
        case _:
            operator.invalid(NOT_AN_OPERATOR)
    requirement.get("key", "").qualified_name()
    if check_values:
        for value in values.each():
            value.label_value()


def validate_node_selector(selector: Field) -> None:
    """Terms of which a node must match one."""
    terms = selector["nodeSelectorTerms"]
    if terms.required("must have at least one node selector term"):
        for term in terms.each():
            validate_node_selector_term(term)


def validate_node_selector_term(term: Field, *, check_values: bool = True) -> None:
    """Requirements that a node must match all."""
    for requirement in term["matchExpressions"].each():
        validate_selector_requirement(requirement, of_nodes=True, check_values=check_values)
    for requirement in term["matchFields"].each():
        _validate_field_requirement(requirement)


def _validate_field_requirement(requirement: Field) -> None:
    operator, values = requirement.get("operator", ""), requirement["values"]
    if operator.value not in {"In", "NotIn"}:
        operator.invalid(NOT_AN_OPERATOR)
    elif len(values.value or ()) != 1:
        values.missing(
            "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        )
    key = requirement.get("key", "")
    if key.value != "metadata.name":
        key.invalid("not a valid field selector key")
        return
    for value in values.each():
        value.dns_subdomain()


def is_empty(selector: Obj) -> bool:
    """Whether a selector selects everything."""
    return not selector.get("matchLabels") and not selector.get("matchExpressions")


def matches(selector: Obj | None, labels: dict[str, str] | None) -> bool:
    """Whether a valid selector selects these labels; None selects nothing."""
    if selector is None:
        return False
    present = labels or {}
    for key, value in (selector.get("matchLabels") or {}).items():
        if present.get(key) != value:
            return False
    return all(
        _requirement_matches(requirement, present)
        for requirement in selector.get("matchExpressions") or ()
    )


def _requirement_matches(requirement: Obj, labels: dict[str, str]) -> bool:
    key = requirement.get("key", "")
    match requirement.get("operator"):
        case "In":
            return key in labels and labels[key] in requirement["values"]
        case "NotIn":
            return key not in labels or labels[key] not in requirement["values"]
        case "Exists":
            return key in labels
        case _:
            return key not in labels
